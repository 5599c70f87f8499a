"""The Hub: a cached copy without a look at the network, and one line within five seconds when there is none."""

from __future__ import annotations

import http.server
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

from unlearnbench import hub
from unlearnbench.errors import UserError

NAME = "someone/some-model"


@pytest.fixture(autouse=True)
def no_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *hub.FLAGS,
        "HF_ENDPOINT",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
        "all_proxy",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the Hub, and a place in it for the model `NAME`."""
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    folder = tmp_path / "models--someone--some-model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("c0ffee")
    (folder / "snapshots" / "c0ffee").mkdir(parents=True)
    return folder / "snapshots" / "c0ffee"


@pytest.fixture
def server() -> Iterator[str]:
    listening = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{listening.server_address[1]}"
    listening.shutdown()


def whole(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def test_a_listening_server_is_reachable_and_a_closed_port_is_not(server: str) -> None:
    assert hub.reachable(server)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        assert not hub.reachable(f"http://127.0.0.1:{closed.getsockname()[1]}")


def test_the_mirror_of_the_environment_is_asked(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", server)
    assert hub.reachable()


def test_a_proxy_stands_for_the_server_behind_it(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", server)
    assert hub.reachable("http://nowhere.invalid")
    monkeypatch.setenv("no_proxy", "nowhere.invalid")
    assert not hub.reachable("http://nowhere.invalid")


def test_a_server_that_never_answers_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "create_connection", lambda *_, **__: time.sleep(60))
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        hub.model_folder("someone/not-cached-anywhere", None, ["*.json"], whole)
    assert time.monotonic() - start < 5
    (line,) = str(caught.value).splitlines()
    assert "out of reach" in line and "hf download someone/not-cached-anywhere" in line


@pytest.mark.parametrize("flag", hub.FLAGS)
def test_an_offline_flag_is_named(flag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(flag, "1")
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("asked the network"))
    with pytest.raises(UserError, match=f"{flag} forbids the network: fetch it where .* --revision v1`"):
        hub.model_folder(NAME, "v1", ["*.json"], whole)
    monkeypatch.setenv(flag, "0")
    assert hub.offline_flag() is None


def test_a_complete_cached_copy_is_used_without_the_network(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: pytest.fail("asked the network"))
    (cache / "config.json").write_text("{}")
    assert hub.model_folder(NAME, None, ["*.json"], whole) == cache


def test_an_incomplete_cached_copy_is_fetched(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(UserError, match=r"not in the local cache and huggingface\.co is out of reach"):
        hub.model_folder(NAME, None, ["*.json"], whole)


def test_a_name_that_is_no_name() -> None:
    with pytest.raises(UserError, match=r"no model folder 'runs/a/b', and it is no name on the Hub"):
        hub.model_folder("runs/a/b", None, ["*.json"], whole)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (
            GatedRepoError,
            f"asks for permission: accept its terms at https://huggingface.co/{NAME}, then `hf auth login`",
        ),
        (RevisionNotFoundError, "has no such revision on the Hub"),
        (RepositoryNotFoundError, "is not on the Hub (or is private: `hf auth login`)"),
    ],
)
def test_errors_of_the_hub_say_what_to_do(kind: type[Exception], said: str) -> None:
    error = kind.__new__(kind)  # its own constructor wants the response of a server
    Exception.__init__(error, "many\nlines")
    assert said in hub.explain("The model", NAME, error)
    try:
        raise ValueError("wrapped") from error
    except ValueError as outer:
        assert said in hub.explain("The model", NAME, outer)
    assert hub.explain("The model", NAME, ValueError("first\nsecond")) == "The model cannot be had: first"


def test_data_sets_name_the_way_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "reachable", lambda: False)
    with pytest.raises(
        UserError, match=r"\(forget10\) is not in the local cache and .*: give a local copy with the option"
    ):
        hub.dataset_rows("someone/nothing", "forget10", "train", None)


def test_rows_of_a_data_set_are_plain_mappings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    def load(name: str, config: str, split: str, revision: str) -> Any:
        assert (name, config, split, revision) == ("owner/set", "part", "train", "abc")
        return datasets.Dataset.from_list([{"a": "x"}, {"a": "y"}])

    monkeypatch.setattr(datasets, "load_dataset", load)
    monkeypatch.setattr(hub, "reachable", lambda: True)
    assert hub.dataset_rows("owner/set", "part", "train", "abc") == [{"a": "x"}, {"a": "y"}]
