"""Prompts, messages, arguments and results: kept and exported only when the user opts in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.canonical import encode, plain_repr, without_surrogates
from raxol_otel.errors import EncodeError

if TYPE_CHECKING:
    from raxol_otel.turns.span import Attributes

__all__ = ["CONTENT_CHARS_MAX", "Content", "cut"]

# Default length of one content attribute, in characters.
CONTENT_CHARS_MAX: Final = 8192
_PARTS_MAX: Final = 256


def cut(text: str, limit: int, whole: int = 0) -> str:
    """At most `limit` characters, marked where something is missing; `whole` is how many there were before."""
    if len(text) <= limit and not whole:
        return text
    return f"{text[:limit]}... [cut, {max(whole, len(text))} characters in all]"


class Content:
    """What was said in a turn, in bounded memory. `asked` and `said` are lengths in characters."""

    __slots__ = ("asked", "parts", "prompt", "said")

    def __init__(self) -> None:
        self.prompt: str | None = None
        self.parts: list[dict[str, str]] = []
        self.asked = 0
        self.said = 0

    def ask(self, prompt: Any, limit: int) -> None:
        """Keep the turn's prompt."""
        if prompt is not None:
            text = _as_text(prompt)
            self.asked = len(text)
            self.prompt = text[:limit]

    def say(self, item_type: str, content: Any, limit: int) -> None:
        """Keep a message or a piece of reasoning."""
        if content is None:
            return
        text = _as_text(content)
        self.said += len(text)
        if len(self.parts) < _PARTS_MAX:
            kind = "reasoning" if item_type == "reasoning" else "text"
            self.parts.append({"type": kind, "content": text[:limit]})

    def describe(self, attributes: Attributes, outcome: str, limit: int) -> None:
        """The turn's messages in the form of the GenAI conventions, as JSON text."""
        if self.prompt is not None:
            message: dict[str, Any] = {"role": "user", "parts": [{"type": "text", "content": self.prompt}]}
            lost = self.asked if self.asked > len(self.prompt) else 0
            attributes[names.INPUT_MESSAGES] = cut(_json([message]), limit, lost)
        if self.parts:
            reason = {"completed": "stop", "error": "error"}.get(outcome, outcome)
            message = {"role": "assistant", "parts": self.parts, "finish_reason": reason}
            lost = self.said if self.said > sum(len(part["content"]) for part in self.parts) else 0
            attributes[names.OUTPUT_MESSAGES] = cut(_json([message]), limit, lost)

    @staticmethod
    def shown(value: Any, limit: int) -> str | None:
        """A call's arguments or result as JSON text, None when there are none."""
        return None if value is None else cut(_json(value), limit)

    @classmethod
    def describe_call(cls, attributes: Attributes, arguments: str | None, result: Any, limit: int) -> None:
        """A call's arguments, as they are shown, and its result."""
        if arguments is not None:
            attributes[names.TOOL_ARGUMENTS] = arguments
        if result is not None:
            attributes[names.TOOL_RESULT] = cut(_json(result), limit)


def _as_text(value: Any) -> str:
    return without_surrogates(value) if isinstance(value, str) else _json(value)


def _json(value: Any) -> str:
    try:
        return encode(value).decode()
    except EncodeError:
        return plain_repr(value)
