"""Replay to an OTLP endpoint: by this process or by several, with or without a state file."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from raxol_otel.exporters.otlp import OtlpExporter
from raxol_otel.exporters.replay import replay_found
from raxol_otel.exporters.resource import replay_proto_envelope
from raxol_otel.exporters.state import DeliveryState, StateLock
from raxol_otel.exporters.workers import replay_with_workers

if TYPE_CHECKING:
    from collections.abc import Callable

    from raxol_otel.exporters.otlp import RetryPolicy
    from raxol_otel.exporters.otlp_config import OtlpConfig
    from raxol_otel.exporters.replay import ReplayOptions, ReplayReport
    from raxol_otel.exporters.sources import Found

__all__ = ["replay_otlp"]


def replay_otlp(
    found: Found,
    options: ReplayOptions,
    config: OtlpConfig,
    *,
    policy: RetryPolicy,
    state_path: str | None = None,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
    notice: Callable[[str], None] | None = None,
) -> ReplayReport:
    """Replay the sessions to the endpoint.

    Raises `UsageError` when the state file is in use or unusable, `ExportError` when spans cannot be delivered; what
    was delivered until then is remembered.
    """
    with contextlib.ExitStack() as stack:
        if state_path is not None:
            lock = StateLock(state_path)
            stack.callback(lock.release)
            # Made, or set aside, once and before any worker opens it.
            state = stack.enter_context(DeliveryState(state_path, config.endpoint, notice=notice))
            options = replace(options, state=state)
        if jobs > 1:
            return replay_with_workers(
                found, options, config, jobs=jobs, policy=policy, state_path=state_path, progress=progress
            )
        exporter = OtlpExporter(config, replay_proto_envelope(), policy=policy, notice=notice)
        stack.callback(exporter.abort)
        return replay_found(found, exporter, options, progress=progress)
