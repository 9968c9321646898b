"""Token usage, added up over the provider calls of a turn. Unknown stays unknown: it is omitted, never 0."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.canonical import is_mapping
from raxol_otel.turns.values import as_count, as_mapping, integer

if TYPE_CHECKING:
    from raxol_otel.turns.span import Attributes

__all__ = ["Usage"]

# Details within the usage, and the count of theirs that matters.
_NESTED: Final = {
    "input_tokens_details": "cached_tokens",
    "prompt_tokens_details": "cached_tokens",
    "output_tokens_details": "reasoning_tokens",
    "completion_tokens_details": "reasoning_tokens",
}


class Usage:
    """Sums of one turn. `input` includes the tokens read from and written to a cache."""

    __slots__ = ("cache_read", "cache_write", "input", "output", "reasoning")

    def __init__(self) -> None:
        self.input: int | None = None
        self.output: int | None = None
        self.cache_read: int | None = None
        self.cache_write: int | None = None
        self.reasoning: int | None = None

    def add(self, usage: Any) -> None:
        """Add one call's usage, in the spelling of either family of providers."""
        if not is_mapping(usage):
            return
        known: dict[str, int] = {}
        for key, value in usage.items():
            if key in _NESTED:
                count = as_count(as_mapping(value).get(_NESTED[key]))
            else:
                count = value if type(value) is int and 0 <= value < 2**63 else as_count(value)
            if count is not None:
                known[key] = count
        if not known:
            return
        read = known.get("cache_read_input_tokens")
        write = known.get("cache_creation_input_tokens", known.get("cache_write_input_tokens"))
        sent = known.get("input_tokens", known.get("prompt_tokens"))
        if sent is not None:
            # Counted beside input_tokens by those who use these keys; the nested ones are inside already.
            self.input = (self.input or 0) + sent + (read or 0) + (write or 0)
        if read is None:
            read = known.get("input_tokens_details", known.get("prompt_tokens_details"))
        reasoning = known.get("output_tokens_details", known.get("completion_tokens_details"))
        self.cache_read = _sum(self.cache_read, read)
        self.cache_write = _sum(self.cache_write, write)
        self.output = _sum(self.output, known.get("output_tokens", known.get("completion_tokens")))
        self.reasoning = _sum(self.reasoning, reasoning)

    def describe(self, attributes: Attributes) -> None:
        """Put what is known into the attributes."""
        for key, total in (
            (names.INPUT_TOKENS, self.input),
            (names.OUTPUT_TOKENS, self.output),
            (names.CACHE_READ_TOKENS, self.cache_read),
            (names.CACHE_WRITE_TOKENS, self.cache_write),
            (names.REASONING_TOKENS, self.reasoning),
        ):
            if total is not None:
                attributes[key] = integer(total)


def _sum(total: int | None, count: int | None) -> int | None:
    return total if count is None else count + (total or 0)
