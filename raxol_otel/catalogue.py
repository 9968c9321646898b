"""Every public name of the telemetry, spelled once: signals, spans, attributes, metrics and their closed value sets.

The GenAI conventions are pre-1.0; the revision is pinned here and nowhere else.
"""

from __future__ import annotations

from typing import Final

from raxol_otel.catalogue_entries import Instrument, Label, Metric, SignalEntry
from raxol_otel.catalogue_fleet import FLEET_METRICS

GENAI_REVISION: Final = "0.1.0"
SCHEMA_URL: Final = f"https://opentelemetry.io/schemas/gen-ai/{GENAI_REVISION}"
SCOPE_NAME: Final = "raxol_otel"

# Signals of the journal core
SIGNAL_DAMAGED: Final = "raxol.agent.journal.damaged"
SIGNAL_WRITE_FAILED: Final = "raxol.agent.journal.write_failed"
SIGNAL_SURROGATE: Final = "raxol.agent.journal.checkpoint.surrogate"

# Spans
SPAN_TURN: Final = "invoke_agent"
SPAN_TOOL: Final = "execute_tool"

# Attributes of the GenAI conventions
OPERATION_NAME: Final = "gen_ai.operation.name"
AGENT_NAME: Final = "gen_ai.agent.name"
CONVERSATION_ID: Final = "gen_ai.conversation.id"
REQUEST_MODEL: Final = "gen_ai.request.model"
PROVIDER_NAME: Final = "gen_ai.provider.name"
INPUT_TOKENS: Final = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS: Final = "gen_ai.usage.output_tokens"
CACHE_READ_TOKENS: Final = "gen_ai.usage.cache_read.input_tokens"
CACHE_WRITE_TOKENS: Final = "gen_ai.usage.cache_write.input_tokens"
REASONING_TOKENS: Final = "gen_ai.usage.reasoning.output_tokens"
TOOL_NAME: Final = "gen_ai.tool.name"
TOOL_CALL_ID: Final = "gen_ai.tool.call.id"
TOOL_TYPE: Final = "gen_ai.tool.type"
INPUT_MESSAGES: Final = "gen_ai.input.messages"
OUTPUT_MESSAGES: Final = "gen_ai.output.messages"
TOOL_ARGUMENTS: Final = "gen_ai.tool.call.arguments"
TOOL_RESULT: Final = "gen_ai.tool.call.result"
ERROR_TYPE: Final = "error.type"
MODALITY: Final = "gen_ai.token.modality"
USAGE_TYPE: Final = "gen_ai.token.type"

# Our own attributes
SESSION_ID: Final = "raxol.session.id"
TURN_ID: Final = "raxol.turn.id"
TURN_OUTCOME: Final = "raxol.turn.outcome"
TURN_FINAL: Final = "raxol.turn.final"
TURN_ITERATIONS: Final = "raxol.turn.iterations"
TURN_COST: Final = "raxol.turn.cost_usd"
TURN_EVIDENCE: Final = "raxol.turn.evidence"
TURN_EVIDENCE_REASON: Final = "raxol.turn.evidence.reason"
TURN_SYNTHESIZED: Final = "raxol.turn.synthesized"
BRANCH_ID: Final = "raxol.branch.id"
FIRST_OFFSET: Final = "raxol.journal.first_offset"
LAST_OFFSET: Final = "raxol.journal.last_offset"
JOURNAL_DAMAGED: Final = "raxol.journal.damaged"
PROVENANCE_TRUST: Final = "raxol.provenance.trust"
CLOCK_SKEW: Final = "raxol.clock_skew"
TOOL_OUTCOME: Final = "raxol.tool.outcome"
ITEM_TYPE: Final = "raxol.item.type"
ITEM_ID: Final = "raxol.item.id"
OBSERVED: Final = "raxol.observed"
OBSERVED_REASON: Final = "raxol.observed.reason"
REPLAYED: Final = "raxol.replayed"
JOURNAL_SEGMENT: Final = "raxol.journal.segment"
JOURNAL_STAGE: Final = "raxol.journal.stage"
DAMAGE_CAUSE: Final = "raxol.journal.damage.cause"
CHECKPOINT_OP: Final = "raxol.checkpoint.op"
TRACE_ID: Final = "raxol.trace_id"
SPAN_ID: Final = "raxol.span_id"

# Span events and their attributes
EVENT_EXCEPTION: Final = "exception"
EXCEPTION_TYPE: Final = "exception.type"
EVENT_APPROVAL: Final = "raxol.approval.requested"
APPROVAL_REQUEST_ID: Final = "raxol.approval.request_id"
APPROVAL_RISK: Final = "raxol.approval.risk"
EVENT_CHECKPOINT: Final = "raxol.journal.checkpoint"
CHECKPOINT_TIP: Final = "raxol.checkpoint.tip_offset"
CHECKPOINT_REASON: Final = "raxol.checkpoint.reason"
EVENT_DECISION: Final = "raxol.decision"
DECISION_OUTCOME: Final = "raxol.decision.outcome"
DECISION_OPTION: Final = "raxol.decision.option"
DECISION_KIND: Final = "raxol.decision.kind"

# Closed value sets
TURN_OUTCOMES: Final = frozenset({"completed", "error", "canceled", "incomplete"})
TOOL_OUTCOMES: Final = frozenset({"ok", "error", "unanswered", "orphan"})
EVIDENCE_REASONS: Final = frozenset({"missing_ref", "not_evidence", "foreign_turn", "stale_evidence", "mutation_echo"})
APPROVAL_RISKS: Final = frozenset({"safe", "low", "medium", "high", "critical", "destructive"})
CHECKPOINT_REASONS: Final = frozenset({"manual", "compaction", "auto"})
ITEM_TYPES: Final = frozenset({"message", "reasoning", "tool_use", "tool_result"})
# Record types of the loop family that are known but make no span.
QUIET_TYPES: Final = frozenset({"idle", "woken", "state_change", "reserve", "settle", "release"})

# Closed value sets of labels; tests hold them to what the core and the fold know.
DAMAGE_CAUSES: Final = (
    *("unparsable", "nul_run", "spliced", "invalid_utf8", "not_object"),
    *("id_missing", "id_gap", "id_repeated"),
    *("chain_link", "chain_hash", "chain_bytes", "below_head", "head_hash"),
)
EVIDENCE_STATUSES: Final = ("accepted", "rejected", "absent", "unknown")
RECORD_TYPES: Final = (
    *("turn_started", "item_started", "item_delta", "item_completed", "turn_completed", "turn_canceled", "error"),
    *("approval_requested", *sorted(QUIET_TYPES), "observed", "checkpoint", "other"),
)
UNKNOWN_PARTS: Final = ("kind", "family", "type", "item_type")
WRITE_STAGES: Final = ("append", "datasync", "rotate", "head", "meta", "snapshot", "lock")
WRITE_REASONS: Final = (
    *("enospc", "edquot", "eio", "efbig", "eacces", "eperm", "erofs", "eisdir", "enotdir", "enoent", "emfile"),
    *("estale", "other"),
)
SURROGATE_OPS: Final = ("write", "restore")
CACHE_PARTS: Final = ("none", "read", "write")
OUTPUT_PARTS: Final = ("text", "reasoning")
OBSERVED_OUTCOMES: Final = {
    "prompted": ("none",),
    "tool_call": ("pending", "in_progress", "completed", "failed"),
    "decision": ("selected", "cancelled", "other"),
    "turn_ended": ("none",),
}
# What a label says that has no value of its own: not a name, or not one of those that are told apart.
UNNAMED: Final = "_OTHER"
OVERFLOW: Final = "other"
# A journal does not say of what modality its tokens were.
MODALITY_UNKNOWN: Final = "unknown"
USAGE_TYPES: Final = ("input", "output")
# The handlers of signals; instruments and tracing are none, but what goes wrong in them is counted so, too.
METRICS_HANDLER: Final = "raxol_otel.metrics"
LOG_EVENTS_HANDLER: Final = "raxol_otel.log_events"
INSTRUMENTS_HANDLER: Final = "raxol_otel.instruments"
TRACING_HANDLER: Final = "raxol_otel.tracing"

SIGNALS: Final = (
    SignalEntry(
        SIGNAL_DAMAGED,
        "a scan met damage; at every scan that does",
        ("dir", "segment", "session_id", "cause", "last_offset"),
        "ERROR",
        (SESSION_ID, JOURNAL_SEGMENT, DAMAGE_CAUSE, LAST_OFFSET),
    ),
    SignalEntry(
        SIGNAL_WRITE_FAILED,
        "an operation of the writer failed",
        ("stage", "reason", "session_id"),
        "ERROR for the stages append and datasync, else WARN",
        (SESSION_ID, JOURNAL_STAGE, ERROR_TYPE),
    ),
    SignalEntry(
        SIGNAL_SURROGATE,
        "a checkpoint was written or restored by the built-in fold, no backend being registered",
        ("op", "session_id", "tip_offset"),
        "INFO",
        (SESSION_ID, CHECKPOINT_OP, CHECKPOINT_TIP),
    ),
)

_AGENT: Final = ("agent",)
_OUTCOME: Final = Label("outcome", tuple(sorted(TURN_OUTCOMES)))
_TOOL: Final = Label("tool", (UNNAMED, OVERFLOW), 100)
_OBSERVED: Final = tuple(dict.fromkeys(word for words in OBSERVED_OUTCOMES.values() for word in words))

# Metrics of the signals
METRIC_DAMAGED: Final = Metric(
    "raxol_journal_damaged_total",
    "counter",
    "Distinct damage met in journals: journal, segment, place and cause.",
    labels=(Label("cause", DAMAGE_CAUSES),),
)
METRIC_WRITE_FAILED: Final = Metric(
    "raxol_journal_write_failed_total",
    "counter",
    "Operations of journal writers that failed.",
    labels=(Label("stage", WRITE_STAGES), Label("reason", WRITE_REASONS)),
    sources=_AGENT,
)
METRIC_SURROGATE: Final = Metric(
    "raxol_journal_checkpoint_surrogate_total",
    "counter",
    "Checkpoints written or restored by the built-in fold, for want of a backend.",
    labels=(Label("op", SURROGATE_OPS),),
    sources=_AGENT,
)
METRIC_HANDLER_ERRORS: Final = Metric(
    "raxol_telemetry_handler_errors_total",
    "counter",
    "Failures of the telemetry itself, by the handler of signals that raised.",
    labels=(
        Label("handler", (METRICS_HANDLER, LOG_EVENTS_HANDLER, INSTRUMENTS_HANDLER, TRACING_HANDLER, OVERFLOW), 50),
    ),
)

# Metrics of turns
METRIC_TURNS: Final = Metric("raxol_turns_total", "counter", "Turns that ended.", labels=(_OUTCOME,))
METRIC_TURN_DURATION: Final = Metric(
    "raxol_turn_duration_seconds",
    "histogram",
    "How long turns took, from their first record to their closing.",
    unit="seconds",
    labels=(_OUTCOME,),
    buckets=tuple(0.1 * 2**step for step in range(17)),
)
METRIC_ITERATIONS: Final = Metric(
    "raxol_turn_iterations",
    "histogram",
    "Provider calls of the turns that made any.",
    buckets=(1, 2, 3, 5, 8, 13, 21, 34),
)
METRIC_EVIDENCE: Final = Metric(
    "raxol_turn_evidence_total",
    "counter",
    "Completed turns by what they say of their evidence.",
    labels=(Label("status", EVIDENCE_STATUSES),),
)
METRIC_LATE: Final = Metric("raxol_turn_late_records_total", "counter", "Records of turns that had ended.")
METRIC_TOOL_CALLS: Final = Metric(
    "raxol_tool_calls_total",
    "counter",
    "Tool calls that ended, by how.",
    labels=(_TOOL, Label("outcome", tuple(sorted(TOOL_OUTCOMES)))),
)
METRIC_TOOL_DURATION: Final = Metric(
    "raxol_tool_duration_seconds",
    "histogram",
    "From a tool call to its result, where it got one; waiting for an approval included.",
    unit="seconds",
    labels=(_TOOL,),
    # Close together where tools work, with a tail for those that wait; each bucket may be there a hundredfold.
    buckets=(0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800),
)
METRIC_INPUT_TOKENS: Final = Metric(
    "raxol_input_tokens_total",
    "counter",
    "Input tokens of turns; read from or written to the provider's cache, or neither.",
    unit="tokens",
    labels=(Label("cache", CACHE_PARTS),),
)
METRIC_OUTPUT_TOKENS: Final = Metric(
    "raxol_output_tokens_total",
    "counter",
    "Output tokens of turns; spent on reasoning, or the rest.",
    unit="tokens",
    labels=(Label("kind", OUTPUT_PARTS),),
)
METRIC_COST: Final = Metric("raxol_cost_usd_total", "counter", "What turns cost, as their journals say.", unit="usd")
METRIC_APPROVALS: Final = Metric("raxol_approvals_requested_total", "counter", "Approvals that were asked for.")
METRIC_TAINTED: Final = Metric("raxol_tainted_items_total", "counter", "Completed items marked as tainted.")
METRIC_ERRORS: Final = Metric(
    "raxol_errors_total",
    "counter",
    "Error records by the error's name; a tool that failed is none.",
    labels=(Label("error_type", (UNNAMED, OVERFLOW), 50),),
)
METRIC_OBSERVED: Final = Metric(
    "raxol_observed_steps_total",
    "counter",
    "What an agent that is not run here reported doing.",
    labels=(Label("step", tuple(OBSERVED_OUTCOMES)), Label("outcome", _OBSERVED)),
    pairs=tuple((step, outcome) for step, outcomes in OBSERVED_OUTCOMES.items() for outcome in outcomes),
)
METRIC_RECORDS: Final = Metric(
    "raxol_journal_records_total",
    "counter",
    "Records of journals by their type.",
    labels=(Label("type", RECORD_TYPES),),
)
METRIC_UNKNOWN: Final = Metric(
    "raxol_journal_unknown_total",
    "counter",
    "Records and items skipped, by what of them was unknown.",
    labels=(Label("what", UNKNOWN_PARTS),),
)

# Metrics of the writer
METRIC_SYNC_DURATION: Final = Metric(
    "raxol_journal_sync_duration_seconds",
    "histogram",
    "How long it took to make records durable.",
    unit="seconds",
    buckets=tuple(0.0005 * 2**step for step in range(14)),
    sources=_AGENT,
)
METRIC_UNSYNCED: Final = Metric(
    "raxol_journal_unsynced_seconds",
    "gauge",
    "Age of the oldest record that is not yet durable, 0 when all are.",
    unit="seconds",
    sources=_AGENT,
)
METRIC_WRITER_FAILING: Final = Metric(
    "raxol_journal_writer_failing",
    "gauge",
    "1 while the last operation of any open writer failed, else 0.",
    sources=_AGENT,
)
METRIC_TORN_REPAIRS: Final = Metric(
    "raxol_journal_torn_repairs_total", "counter", "Torn tails that writers cut off when they opened.", sources=_AGENT
)

# What is counted of signals, records, turns and a writer; `METRICS` has those of the fleet exporter, too.
PROCESS_METRICS: Final = (
    *(METRIC_DAMAGED, METRIC_WRITE_FAILED, METRIC_SURROGATE, METRIC_HANDLER_ERRORS),
    *(METRIC_TURNS, METRIC_TURN_DURATION, METRIC_ITERATIONS, METRIC_EVIDENCE, METRIC_LATE),
    *(METRIC_TOOL_CALLS, METRIC_TOOL_DURATION, METRIC_INPUT_TOKENS, METRIC_OUTPUT_TOKENS, METRIC_COST),
    *(METRIC_APPROVALS, METRIC_TAINTED, METRIC_ERRORS, METRIC_OBSERVED, METRIC_RECORDS, METRIC_UNKNOWN),
    *(METRIC_SYNC_DURATION, METRIC_UNSYNCED, METRIC_WRITER_FAILING, METRIC_TORN_REPAIRS),
)
METRICS: Final = (*PROCESS_METRICS, *FLEET_METRICS)

# Instruments of OpenTelemetry: names, units and buckets of the pinned revision
_CALLS: Final = tuple(2.0**step for step in range(8))
_SECONDS: Final = tuple(0.01 * 2**step for step in range(14))
_SPENT: Final = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL, MODALITY)
_LEGACY: Final = (OPERATION_NAME, PROVIDER_NAME, REQUEST_MODEL)


def _tokens(part: str, sentence: str) -> Instrument:
    return Instrument(f"gen_ai.client.inference.usage.{part}", "counter", "{token}", sentence, attributes=_SPENT)


INSTRUMENT_TURN_DURATION: Final = Instrument(
    "gen_ai.invoke_agent.duration",
    "histogram",
    "s",
    "How long turns took, from their first record to their closing.",
    attributes=(OPERATION_NAME, AGENT_NAME, ERROR_TYPE, TURN_OUTCOME),
    buckets=tuple(0.1 * 2**step for step in range(13)),
)
INSTRUMENT_INFERENCE_CALLS: Final = Instrument(
    "gen_ai.invoke_agent.inference_calls",
    "histogram",
    "{inference_call}",
    "Provider calls of the turns that made any.",
    attributes=(AGENT_NAME,),
    buckets=_CALLS,
)
INSTRUMENT_TOOL_CALLS: Final = Instrument(
    "gen_ai.invoke_agent.tool_calls",
    "histogram",
    "{tool_call}",
    "Tool calls of turns.",
    attributes=(AGENT_NAME,),
    buckets=_CALLS,
)
INSTRUMENT_TOOL_DURATION: Final = Instrument(
    "gen_ai.execute_tool.duration",
    "histogram",
    "s",
    "From a tool call to its result, where it got one.",
    attributes=(TOOL_NAME, AGENT_NAME, ERROR_TYPE, TOOL_TYPE),
    buckets=_SECONDS,
)
INSTRUMENT_INPUT_TOKENS: Final = _tokens("input_tokens", "Input tokens of turns, those of caches included.")
INSTRUMENT_OUTPUT_TOKENS: Final = _tokens("output_tokens", "Output tokens of turns, those of reasoning included.")
INSTRUMENT_CACHE_READ: Final = _tokens("cache_read.input_tokens", "Input tokens that came from a provider's cache.")
INSTRUMENT_CACHE_WRITE: Final = _tokens("cache_write.input_tokens", "Input tokens that went into a provider's cache.")
INSTRUMENT_REASONING: Final = _tokens("reasoning.output_tokens", "Output tokens that were spent on reasoning.")
INSTRUMENT_LEGACY_USAGE: Final = Instrument(
    "gen_ai.client.token.usage",
    "histogram",
    "{token}",
    "Tokens of turns, input and output apart.",
    attributes=(*_LEGACY, USAGE_TYPE),
    buckets=tuple(4.0**step for step in range(14)),
    legacy=True,
)
INSTRUMENT_LEGACY_DURATION: Final = Instrument(
    "gen_ai.client.operation.duration",
    "histogram",
    "s",
    "How long turns took.",
    attributes=(*_LEGACY, ERROR_TYPE),
    buckets=_SECONDS,
    legacy=True,
)

INSTRUMENTS: Final = (
    *(INSTRUMENT_TURN_DURATION, INSTRUMENT_INFERENCE_CALLS, INSTRUMENT_TOOL_CALLS, INSTRUMENT_TOOL_DURATION),
    *(INSTRUMENT_INPUT_TOKENS, INSTRUMENT_OUTPUT_TOKENS, INSTRUMENT_CACHE_READ, INSTRUMENT_CACHE_WRITE),
    *(INSTRUMENT_REASONING, INSTRUMENT_LEGACY_USAGE, INSTRUMENT_LEGACY_DURATION),
)
# Bounds of their attributes, beside those of tools and errors
NAMES_AGENT: Final = Label("agent", (OVERFLOW,), 50)
NAMES_PROVIDER: Final = Label("provider", (UNNAMED, OVERFLOW), 50)
NAMES_MODEL: Final = Label("model", (UNNAMED, OVERFLOW), 100)
