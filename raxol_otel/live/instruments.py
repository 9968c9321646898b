"""Finished turns and tool calls on OpenTelemetry instruments, for those who take metrics over OTLP.

Names, units and buckets are those of the pinned GenAI revision; only the API is used, and without an SDK nothing
happens. An attribute's value is of a closed set or one of a bounded number of names, as a Prometheus label's is.
"""

from __future__ import annotations

import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.metrics import NoOpHistogram, get_meter
from opentelemetry.trace import INVALID_SPAN, NonRecordingSpan, SpanContext, TraceFlags, set_span_in_context

from raxol_otel import __version__, signals
from raxol_otel import catalogue as names
from raxol_otel.bounds import Bounded, as_amount, partition
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.metrics import Counter, Histogram, Meter, MeterProvider

    from raxol_otel.catalogue_entries import Instrument, Label
    from raxol_otel.turns import Span
    from raxol_otel.turns.span import Attributes

__all__ = ["TurnInstruments"]

_ANSWERED: Final = frozenset({"ok", "error"})
# A name of a provider, a model or an error: one word, whatever a journal has put there.
_WORD: Final = re.compile(r"[A-Za-z0-9_@][A-Za-z0-9_.:/@+-]{0,127}", re.ASCII)
_AGENT_CHARS_MAX: Final = 128
# Not empty, which would be taken for none: then an exemplar would lead to whatever span is active.
_NOWHERE: Final = set_span_in_context(INVALID_SPAN, Context())
_SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)

_log = logging.getLogger(__name__)
# Held while anything is recorded, and across a fork: the SDK's locks are not renewed in a child, so none of them may
# be held there by a thread of ours that is gone. Reentrant, for a fork out of a recording itself (a signal handler).
_recording: Final = threading.RLock()


class TurnInstruments:
    """Instruments on a meter of the user's provider, or of the global one, whenever that is set.

    `legacy`: record the client's two histograms of earlier conventions as well. `agent_name` is what a tool's span does
    not say. What goes wrong is logged once, counted as a failure of the handler `raxol_otel.instruments`, and never
    raised.
    """

    def __init__(
        self, meter_provider: MeterProvider | None = None, *, legacy: bool = False, agent_name: str | None = None
    ) -> None:
        meter = get_meter(names.SCOPE_NAME, __version__, meter_provider, names.SCHEMA_URL)
        self._agent_name = agent_name
        self._is_on = False
        self._turn_duration = _histogram(meter, names.INSTRUMENT_TURN_DURATION)
        self._inference_calls = _histogram(meter, names.INSTRUMENT_INFERENCE_CALLS)
        self._tool_calls = _histogram(meter, names.INSTRUMENT_TOOL_CALLS)
        self._tool_duration = _histogram(meter, names.INSTRUMENT_TOOL_DURATION)
        self._input_tokens = _counter(meter, names.INSTRUMENT_INPUT_TOKENS)
        self._output_tokens = _counter(meter, names.INSTRUMENT_OUTPUT_TOKENS)
        self._cache_read = _counter(meter, names.INSTRUMENT_CACHE_READ)
        self._cache_write = _counter(meter, names.INSTRUMENT_CACHE_WRITE)
        self._reasoning = _counter(meter, names.INSTRUMENT_REASONING)
        self._legacy: tuple[Histogram, Histogram] | None = None
        if legacy:
            usage, duration = names.INSTRUMENT_LEGACY_USAGE, names.INSTRUMENT_LEGACY_DURATION
            self._legacy = (_histogram(meter, usage), _histogram(meter, duration))
        self._tools = Bounded(names.METRIC_TOOL_CALLS.labels[0])
        self._errors = _Words(names.METRIC_ERRORS.labels[0])
        self._agents = Bounded(names.NAMES_AGENT)
        self._providers = _Words(names.NAMES_PROVIDER)
        self._models = _Words(names.NAMES_MODEL)

    def observe_spans(self, spans: Iterable[Span], *, exemplar: bool = False) -> None:
        """Record finished spans, see `observe_span`."""
        for span in spans:
            self.observe_span(span, exemplar=exemplar)

    def observe_span(self, span: Span, *, exemplar: bool = False) -> None:
        """Record a turn or a tool call. `exemplar`: it is exported under these ids, so that they lead to something."""
        try:
            if span.role == "item" or not (self._is_on or self._turns_on()):
                return
            context = _context_of(span) if exemplar else _NOWHERE
            with _recording:
                (self._tool if span.role == "tool" else self._turn)(span, span.attributes, context)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            if signals.count_error(names.INSTRUMENTS_HANDLER) == 1:
                # Only what kind of error: its text may quote a journal.
                _log.warning("instruments lost a span (%s); further losses are only counted", type(error).__name__)

    def _turns_on(self) -> bool:
        """Whether there is an SDK by now: without one, an attribute that is worked out is for nobody."""
        # The API's own stands in for one that is made when a provider is set, and says so nowhere else.
        made = getattr(self._turn_duration, "_real_instrument", self._turn_duration)
        self._is_on = made is not None and not isinstance(made, NoOpHistogram)
        return self._is_on

    # -- what is recorded

    def _tool(self, span: Span, said: Mapping[str, Any], context: Context) -> None:
        # A call without a result ended with its turn, a result without a call when it came: neither took that long.
        if said[names.TOOL_OUTCOME] not in _ANSWERED:
            return
        name = said.get(names.TOOL_NAME)
        attributes: Attributes = {
            names.TOOL_NAME: self._tools(values.tool_name(name) if type(name) is str else names.UNNAMED)
        }
        if names.TOOL_TYPE in said:
            attributes[names.TOOL_TYPE] = said[names.TOOL_TYPE]
        self._tool_duration.record(
            _seconds(span), attributes | self._agent(self._agent_name) | self._error(said), context
        )

    def _turn(self, span: Span, said: Mapping[str, Any], context: Context) -> None:
        outcome = said[names.TURN_OUTCOME]
        if outcome not in names.TURN_OUTCOMES:
            raise ValueError(f"not an outcome: {outcome!r}")
        seconds, agent, error = _seconds(span), self._agent(said.get(names.AGENT_NAME)), self._error(said)
        operation: Attributes = {names.OPERATION_NAME: names.SPAN_TURN}
        self._turn_duration.record(seconds, {**operation, names.TURN_OUTCOME: outcome, **agent, **error}, context)
        self._tool_calls.record(span.tool_calls, agent, context)
        spent = operation | self._model(said)
        iterations = as_amount(said.get(names.TURN_ITERATIONS))
        if iterations:
            self._inference_calls.record(iterations, agent, context)
            self._tokens(said, spent | {names.MODALITY: names.MODALITY_UNKNOWN}, context)
        if self._legacy is not None:
            usage, duration = self._legacy
            duration.record(seconds, spent | error, context)
            if iterations:
                for kind, key in zip(names.USAGE_TYPES, (names.INPUT_TOKENS, names.OUTPUT_TOKENS), strict=True):
                    amount = as_amount(said.get(key))
                    if amount is not None:
                        usage.record(amount, spent | {names.USAGE_TYPE: kind}, context)

    def _tokens(self, said: Mapping[str, Any], attributes: Attributes, context: Context) -> None:
        for counter, total, parts in (
            (
                self._input_tokens,
                said.get(names.INPUT_TOKENS),
                ((self._cache_read, names.CACHE_READ_TOKENS), (self._cache_write, names.CACHE_WRITE_TOKENS)),
            ),
            (self._output_tokens, said.get(names.OUTPUT_TOKENS), ((self._reasoning, names.REASONING_TOKENS),)),
        ):
            amount = as_amount(total)
            if amount is not None:
                counter.add(amount, attributes, context)
            known, _rest = partition(total, {key: said.get(key) for _, key in parts})
            for part, key in parts:
                if key in known:
                    part.add(known[key], attributes, context)

    # -- attributes

    def _agent(self, name: Any) -> Attributes:
        if type(name) is not str or not name:
            return {}
        return {names.AGENT_NAME: self._agents(values.clean(name, _AGENT_CHARS_MAX))}

    def _error(self, said: Mapping[str, Any]) -> Attributes:
        return {names.ERROR_TYPE: self._errors(said[names.ERROR_TYPE])} if names.ERROR_TYPE in said else {}

    def _model(self, said: Mapping[str, Any]) -> Attributes:
        attributes: Attributes = {names.PROVIDER_NAME: self._providers(said.get(names.PROVIDER_NAME))}
        if names.REQUEST_MODEL in said:
            attributes[names.REQUEST_MODEL] = self._models(said[names.REQUEST_MODEL])
        return attributes


class _Words:
    """The single words that an attribute may say, so many of them."""

    def __init__(self, label: Label) -> None:
        self._bounded = Bounded(label)

    def __call__(self, text: Any) -> str:
        """The word, `_OTHER` when it is none, `other` when it is one too many."""
        return self._bounded(text if type(text) is str and _WORD.fullmatch(text) else names.UNNAMED)


def _seconds(span: Span) -> float:
    return max(0, span.end_ns - span.start_ns) / 1e9


def _context_of(span: Span) -> Context:
    ids = SpanContext(int(span.trace_id, 16), int(span.span_id, 16), is_remote=False, trace_flags=_SAMPLED)
    return set_span_in_context(NonRecordingSpan(ids), _NOWHERE)


def _histogram(meter: Meter, made: Instrument) -> Histogram:
    return meter.create_histogram(
        made.name, made.unit, made.help, explicit_bucket_boundaries_advisory=list(made.buckets)
    )


def _counter(meter: Meter, made: Instrument) -> Counter:
    return meter.create_counter(made.name, made.unit, made.help)


os.register_at_fork(before=_recording.acquire, after_in_parent=_recording.release, after_in_child=_recording.release)
