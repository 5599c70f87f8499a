"""What comes from the Hugging Face Hub: never by surprise, never after a long wait, and at a recorded revision.

What is in the local cache is used as it is, without a look at the network. Before anything is fetched the Hub's server
must answer within `WAIT` seconds. The libraries' own switches are honoured: HF_HUB_OFFLINE, HF_DATASETS_OFFLINE and
TRANSFORMERS_OFFLINE (no network), HF_ENDPOINT (a mirror), HF_HOME (the cache), HF_TOKEN.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from unlearnbench.errors import UserError

WAIT = 3.0  #: seconds for the Hub's server to answer
FLAGS = ("HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE", "TRANSFORMERS_OFFLINE")
_TRUE = {"1", "on", "yes", "true"}


def offline_flag() -> str | None:
    """The environment variable that forbids the network, or None."""
    return next((flag for flag in FLAGS if os.environ.get(flag, "").lower() in _TRUE), None)


@contextmanager
def no_network() -> Iterator[None]:
    """Inside, nothing is fetched, as if the switches forbade it: what is not in the local cache is a `UserError`."""
    before = {flag: os.environ.get(flag) for flag in FLAGS}
    os.environ.update(dict.fromkeys(FLAGS, "1"))
    loaded = [sys.modules[name] for name in ("huggingface_hub.constants", "datasets.config") if name in sys.modules]
    held = [(module, module.HF_HUB_OFFLINE) for module in loaded]
    for module in loaded:
        module.HF_HUB_OFFLINE = True  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for flag, value in before.items():
            os.environ.pop(flag, None)
            if value is not None:
                os.environ[flag] = value
        for module, value in held:
            module.HF_HUB_OFFLINE = value  # type: ignore[attr-defined]


def endpoint() -> str:
    """The address of the Hub."""
    return os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")


def reachable(address: str | None = None, wait: float = WAIT) -> bool:
    """Whether the server (or the proxy in front of it) accepts a connection in time."""
    parts = urlsplit(address or endpoint())
    proxy = getproxies().get(parts.scheme)
    if proxy and not proxy_bypass(parts.hostname or ""):
        parts = urlsplit(proxy if "//" in proxy else f"//{proxy}")
    port = parts.port or (80 if parts.scheme == "http" else 443)
    answered: list[bool] = []

    def connect() -> None:
        try:
            socket.create_connection((parts.hostname or "", port), timeout=wait).close()
            answered.append(True)
        except OSError:
            answered.append(False)

    thread = threading.Thread(target=connect, daemon=True)  # looking a name up has a time limit of its own
    thread.start()
    thread.join(wait)
    return bool(answered and answered[0])


def require_network(what: str, way_out: str) -> None:
    """Raise `UserError`, in one line, when the Hub cannot be asked for `what`."""
    flag = offline_flag()
    if flag is not None:
        raise UserError(f"{what} is not in the local cache and {flag} forbids the network: {way_out}")
    if not reachable():
        host = urlsplit(endpoint()).hostname
        raise UserError(f"{what} is not in the local cache and {host} is out of reach: {way_out}")


def model_folder(name: str, revision: str | None, patterns: Sequence[str], complete: Any) -> Path:
    """The local folder of a model repository, fetched if `complete(folder)` does not hold for the cached one.

    Raises `UserError` in one line: no network, no such repository or revision, no access.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    options: dict[str, Any] = {"revision": revision, "allow_patterns": list(patterns)}
    try:
        folder = Path(snapshot_download(name, local_files_only=True, **options))
        if complete(folder):
            return folder
    except LocalEntryNotFoundError:
        pass
    except HFValidationError:
        raise UserError(
            f"There is no model folder '{name}', and it is no name on the Hub either (those are owner/name)."
        ) from None
    at = f" --revision {revision}" if revision else ""
    way_out = f"fetch it where there is a network with `hf download {name}{at}`, or give a local folder."
    require_network(f"The model '{name}'", way_out)
    try:
        return Path(snapshot_download(name, **options))
    except (HfHubHTTPError, OSError) as error:
        raise UserError(explain(f"The model '{name}'", name, error)) from error


def dataset_rows(name: str, config: str | None, split: str, revision: str | None) -> list[dict[str, Any]]:
    """The rows of one split of a data set on the Hub, as plain mappings. Raises `UserError` in one line."""
    what = f"The data set '{name}'" + (f" ({config})" if config else "")
    way_out = "give a local copy with the option `data_dir`"
    if offline_flag() is None:
        require_network(what, f"{way_out}, or set HF_HUB_OFFLINE=1 if it was fetched before.")
    import datasets
    from huggingface_hub.errors import HfHubHTTPError

    bars = datasets.is_progress_bar_enabled()
    datasets.disable_progress_bars()
    try:
        loaded = datasets.load_dataset(name, config, split=split, revision=revision)
    except (HfHubHTTPError, OSError, ValueError) as error:
        if offline_flag() is not None:
            require_network(what, f"{way_out}.")
        raise UserError(explain(what, name, error)) from error
    finally:
        if bars:
            datasets.enable_progress_bars()
    return [dict(row) for row in loaded]


def explain(what: str, name: str, error: Exception) -> str:
    """An error of the Hub's libraries as one line that says what to do."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    chain: list[BaseException] = [error]
    while chain[-1].__cause__ is not None:
        chain.append(chain[-1].__cause__)
    for cause in chain:
        if isinstance(cause, GatedRepoError):
            return f"{what} asks for permission: accept its terms at {endpoint()}/{name}, then `hf auth login`."
        if isinstance(cause, RevisionNotFoundError):
            return f"{what} has no such revision on the Hub."
        if isinstance(cause, RepositoryNotFoundError):
            return f"{what} is not on the Hub (or is private: `hf auth login`)."
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return f"{what} cannot be had: {lines[0]}"
