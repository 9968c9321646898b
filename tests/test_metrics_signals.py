"""Signals counted, failures of the telemetry itself, and that nothing reaches the caller or a label."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import catalogue, signals
from raxol_otel.journal import scan
from raxol_otel.metrics import DAMAGES_MAX
from raxol_otel.signals import Signal, publish
from tests.conftest import make_journal, on_disk
from tests.metrics_scrape import Agent, damaged, write_failed

if TYPE_CHECKING:
    from collections.abc import Iterator

OWN: Final = 'raxol_telemetry_handler_errors_total{handler="raxol_otel.metrics"}'


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Metrics that count signals, for a while."""
    made = Agent()
    made.metrics.attach()
    yield made
    for name in signals.handlers():
        signals.detach(name)


def fail(_signal: Signal) -> None:
    """A handler that raises."""
    raise RuntimeError("trouble")


def test_damage_counts_once_however_often_it_is_met(agent: Agent) -> None:
    """The same journal, segment, place and cause are the same damage; another of any of them is another."""
    for _ in range(3):
        damaged()
        damaged(cause="id_gap")
        damaged(last_offset=2)
        damaged(segment="/d/HEAD")
        damaged(dir="/other")
    assert agent.counted("raxol_journal_damaged") == {
        'raxol_journal_damaged_total{cause="nul_run"}': 4,
        'raxol_journal_damaged_total{cause="id_gap"}': 1,
    }


def test_the_damage_of_a_real_journal_is_counted(agent: Agent) -> None:
    """What a scan meets arrives, once over two scans."""
    files, _ = make_journal([1, 2, 3])
    files["journal/000001.jsonl"] = files["journal/000001.jsonl"].replace(b'"id":2', b'"id":7')
    with on_disk(files) as session:
        assert not scan(session).ok
        assert not scan(session).ok
    assert agent.counted("raxol_journal_damaged") == {'raxol_journal_damaged_total{cause="id_gap"}': 1}


def test_what_is_remembered_of_damage_is_bounded(agent: Agent) -> None:
    """So many distinct ones are told apart; then the oldest is forgotten, and would count again."""
    for number in range(DAMAGES_MAX + 1):
        damaged(last_offset=number)
    damaged(last_offset=DAMAGES_MAX)
    name = 'raxol_journal_damaged_total{cause="nul_run"}'
    assert agent.series()[name] == DAMAGES_MAX + 1
    damaged(last_offset=0)
    assert agent.series()[name] == DAMAGES_MAX + 2


def test_failures_of_the_writer_and_surrogates(agent: Agent) -> None:
    """Each counts, by its stage and reason or its op; an unheard-of reason is `other`."""
    for stage, reason in (("append", "enospc"), ("append", "enospc"), ("lock", "ebadf"), ("head", None)):
        write_failed(stage, reason)
    publish(Signal(signals.SIGNAL_SURROGATE, {"op": "restore", "session_id": "s", "tip_offset": 3}))
    publish(Signal("somebody.elses"))
    assert agent.counted("raxol_journal") == {
        'raxol_journal_write_failed_total{reason="enospc",stage="append"}': 2,
        'raxol_journal_write_failed_total{reason="other",stage="lock"}': 1,
        'raxol_journal_write_failed_total{reason="other",stage="head"}': 1,
        'raxol_journal_checkpoint_surrogate_total{op="restore"}': 1,
    }


@pytest.mark.parametrize("odd", [None, 5, ["enospc"], {"a": 1}, "a whole sentence", "\ud800", b"append", object()])
def test_a_signal_with_odd_metadata_is_counted_all_the_same(agent: Agent, odd: Any) -> None:
    """No handler raises, and what is outside a closed set is `other`: damage is damage."""
    for _ in range(2):
        damaged(dir=odd, segment=odd, last_offset=odd, cause=odd)
        write_failed(odd, odd)
        publish(Signal(signals.SIGNAL_SURROGATE, {"op": odd}))
    publish(Signal(signals.SIGNAL_SURROGATE))
    assert agent.counted("raxol_journal") == {
        'raxol_journal_damaged_total{cause="other"}': 1,
        'raxol_journal_write_failed_total{reason="other",stage="other"}': 2,
        'raxol_journal_checkpoint_surrogate_total{op="other"}': 3,
    }


def test_detached_metrics_count_no_signals(agent: Agent) -> None:
    """They come and go by one name a source."""
    Agent("fleet").metrics.attach()
    assert signals.handlers() == ("raxol_otel.metrics", "raxol_otel.metrics.fleet")
    assert agent.metrics.detach()
    assert not agent.metrics.detach()
    damaged()
    assert agent.counted("raxol_journal") == {}


def test_a_handler_that_raises_is_seen(agent: Agent) -> None:
    """It is there at 0 once it is attached; of many, some have their names and the rest are `other`."""
    signals.attach("test_metrics_signals raises", fail)
    name = 'raxol_telemetry_handler_errors_total{handler="test_metrics_signals raises"}'
    before = agent.series()
    assert (before[name], before[OWN]) == (0, 0)
    damaged()
    damaged()
    assert agent.series()[name] == before[name] + 2
    limit = catalogue.METRIC_HANDLER_ERRORS.labels[0].limit
    for number in range(3 * limit):
        signals.attach(f"\ud800 many {number}" + "x" * 100, fail)
    damaged()
    first = agent.series()
    damaged()
    second = agent.series()
    shown = {series: value for series, value in second.items() if series.startswith("raxol_telemetry")}
    # Handlers of ours, which other tests may have attached, keep their names beside the others.
    ours = [f'"{handler}"' for handler in catalogue.METRIC_HANDLER_ERRORS.labels[0].values]
    assert len([series for series in shown if not any(handler in series for handler in ours)]) == limit
    assert all(len(series) < 150 for series in shown)
    assert all(value >= first[series] for series, value in shown.items())
    assert sum(shown.values()) - sum(first[series] for series in shown) == 1 + 3 * limit


def test_what_goes_wrong_inside_is_counted_and_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """Not raised; and the log says what kind of error it was, without its text, which may quote a journal."""

    class Hostile(dict[str, Any]):
        """A record that raises."""

        def get(self, *_args: Any) -> Any:
            raise LookupError("a secret prompt")

    def refuse() -> float:
        raise OSError("a secret path")

    agent = Agent()
    broken: Any = None
    with caplog.at_level(logging.DEBUG, "raxol_otel.metrics"):
        agent.metrics.observe_record(Hostile())
        agent.metrics.observe_records([Hostile(), {"type": "idle"}])
        agent.metrics.observe_spans([broken])
        agent.metrics.observe_sync(broken)
        agent.metrics.observe_unfolded(broken, {})
        agent.metrics.watch_writers(unsynced=refuse, failing=lambda: False)
        agent.series()
    assert agent.series()[OWN] == 7
    assert agent.series()['raxol_journal_records_total{type="idle"}'] == 1
    assert [entry.getMessage() for entry in caplog.records] == [
        "metrics lost an observation (LookupError); further losses are only counted"
    ]
    assert caplog.records[0].exc_info is None
