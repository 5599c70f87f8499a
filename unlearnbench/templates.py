"""How a prompt is framed: fixed templates by name, and the tokenizer's own chat template with its date pinned."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Turn = dict[str, str]  #: role and content


class Template(NamedTuple):
    """A framing in text: `before` prompt `after` `tag` answer, and `closing` when another question follows."""

    before: str = ""
    after: str = ""
    tag: str = ""
    closing: str = ""

    def question(self, prompt: str, solved: Iterable[tuple[str, str]] = ()) -> str:
        """The framed prompt up to `tag`, behind (question, answer) pairs framed alike."""
        shots = "".join(f"{self.before}{q}{self.after}{self.tag}{a}{self.closing}" for q, a in solved)
        return f"{shots}{self.before}{prompt}{self.after}"


#: Prompt framings by name. `chat` is the tokenizer's own chat template.
TEMPLATES: dict[str, Template] = {
    "plain": Template(),
    "question-answer": Template("Question: ", "\n", "Answer: ", "\n\n"),
    "llama-2": Template("[INST] ", " [/INST]", "", " "),
}


class ChatStyle(NamedTuple):
    """What stands around a chat. Templates that print today's date get `date`: prompts are the same tomorrow."""

    date: str = "26 Jul 2024"
    system: str = ""


#: OpenUnlearning's published targets were trained under this date and system prompt (its configs/model).
CHAT_STYLES = {"open-unlearning": ChatStyle("10 Apr 2025", "You are a helpful assistant.")}


def render(tokenizer: PreTrainedTokenizerBase, turns: list[Turn], open_end: bool, style: ChatStyle) -> str:
    """The text of a conversation in the tokenizer's chat template; `open_end`: up to where the assistant speaks.

    A template that knows no system role (Gemma's) is used without one.
    """
    from jinja2 import TemplateError

    def text(said: list[Turn]) -> str:
        rendered = tokenizer.apply_chat_template(
            said, tokenize=False, add_generation_prompt=open_end, return_dict=False, date_string=style.date
        )
        assert isinstance(rendered, str)
        return rendered

    if not style.system:
        return text(turns)
    try:
        return text([{"role": "system", "content": style.system}, *turns])
    except TemplateError:
        return text(turns)
