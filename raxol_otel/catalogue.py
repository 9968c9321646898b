"""Every public name of the telemetry, spelled once: signals, spans, attributes and their closed value sets.

The GenAI conventions are pre-1.0; the revision is pinned here and nowhere else.
"""

from __future__ import annotations

from typing import Final

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
