"""Short names for published models: the targets and retrained models of TOFU and MUSE on the Hub.

Those of TOFU (open-unlearning) were trained under OpenUnlearning's prompts: score them with the protocol
`open-unlearning`. Those of MUSE come without a tokenizer of their own, which is Llama-2's. Revisions are pinned where
they are known; whatever is loaded, the hash of its weights is part of every key.
"""

from __future__ import annotations

from typing import NamedTuple


class Published(NamedTuple):
    """A model on the Hub."""

    repository: str
    revision: str | None = None
    tokenizer: str | None = None  #: where the tokenizer comes from, when not from the model


_LLAMA_2 = "NousResearch/Llama-2-7b-hf"
_TOFU = {
    "llama-2-7b": "Llama-2-7b-chat-hf",
    "llama-3.2-1b": "Llama-3.2-1B-Instruct",
    "llama-3.2-3b": "Llama-3.2-3B-Instruct",
    "llama-3.1-8b": "Llama-3.1-8B-Instruct",
}
_ROLES = {"target": "full", "retrained90": "retain90", "retrained95": "retain95", "retrained99": "retain99"}

PUBLISHED: dict[str, Published] = {
    f"tofu-{short}-{role}": Published(f"open-unlearning/tofu_{model}_{part}")
    for short, model in _TOFU.items()
    for role, part in _ROLES.items()
}
PUBLISHED |= {
    "muse-news-target": Published("muse-bench/MUSE-News_target", "a2f39769e9a0b98ec1cdd12f65e9962502208935", _LLAMA_2),
    "muse-news-retrained": Published(
        "muse-bench/MUSE-News_retrain", "324ef49ee0a038078aba7d8de831edf57235c9b3", _LLAMA_2
    ),
    "muse-books-target": Published(
        "muse-bench/MUSE-Books_target", "c8dd3fb23a726762ec66d277933c7cff6767f3c2", _LLAMA_2
    ),
    "muse-books-retrained": Published(
        "muse-bench/MUSE-Books_retrain", "1d67430e4e8bdf2a65823740e909792519175ac2", _LLAMA_2
    ),
}
