"""The bus of the journal's signals: handlers come and go, run in order, and disturb nobody."""

from __future__ import annotations

import logging
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.signals import Signal, attach, detach, handler_errors, handlers, publish

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOGGER: Final = "raxol_otel.signals"
THREADS: Final = 4
ROUNDS: Final = 300
DAMAGED: Final = Signal(signals.SIGNAL_DAMAGED, {"dir": "/d", "cause": "nul_run"})


@pytest.fixture(autouse=True)
def _empty_bus() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction] - pytest uses it
    """A bus without handlers, before and after."""
    for name in handlers():
        detach(name)
    yield
    for name in handlers():
        detach(name)


def fail(_signal: Signal) -> None:
    """A handler that raises."""
    raise RuntimeError("handler's own trouble")


def within(seconds: float, action: Callable[[], object]) -> bool:
    """Whether the action ends in time, in a thread of its own."""
    thread = threading.Thread(target=action, daemon=True)
    thread.start()
    thread.join(seconds)
    return not thread.is_alive()


def test_handlers_get_every_signal_in_the_order_they_came() -> None:
    """Each handler is called once a signal, in the publishing thread, with the very signal."""
    seen: list[tuple[str, Signal, int]] = []
    for name in ("b", "a", "c"):
        attach(name, lambda signal, name=name: seen.append((name, signal, threading.get_ident())))  # type: ignore[misc]
    assert handlers() == ("b", "a", "c")
    publish(DAMAGED)
    assert seen == [(name, DAMAGED, threading.get_ident()) for name in ("b", "a", "c")]
    publish(Signal("other"))
    assert [signal.name for _, signal, _ in seen[3:]] == ["other"] * 3


def test_a_handler_comes_and_goes_by_its_name() -> None:
    """Attaching a name again replaces its handler, detaching forgets it and says whether there was one."""
    first: list[Signal] = []
    second: list[Signal] = []
    attach("one", first.append)
    attach("one", second.append)
    assert handlers() == ("one",)
    publish(DAMAGED)
    assert (first, second) == ([], [DAMAGED])
    assert detach("one") is True
    assert detach("one") is False
    publish(DAMAGED)
    assert second == [DAMAGED]
    assert handlers() == ()


def test_a_handler_that_raises_disturbs_nobody(caplog: pytest.LogCaptureFixture) -> None:
    """It is logged once, counted every time, stays attached, and the others still run."""
    name = "raises in test_signals"
    before = handler_errors().get(name, 0)
    seen: list[Signal] = []
    attach("before", seen.append)
    attach(name, fail)
    attach("after", seen.append)
    with caplog.at_level(logging.DEBUG, LOGGER):
        publish(DAMAGED)
        assert len(caplog.records) == 1
        publish(DAMAGED)
        publish(DAMAGED)
    assert seen == [DAMAGED] * 6
    assert handler_errors()[name] - before == 3
    assert "before" not in handler_errors()
    assert name in handlers()
    (logged,) = caplog.records
    assert logged.levelno >= logging.WARNING
    assert name in logged.getMessage()
    assert DAMAGED.name in logged.getMessage()
    assert "handler's own trouble" in caplog.text


def test_each_failing_handler_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """Once a handler, not once a process; what is counted is handed out as a copy."""
    attach("first failing one", fail)
    attach("second failing one", fail)
    publish(DAMAGED)
    publish(DAMAGED)
    assert len(caplog.records) == 2
    counted = handler_errors()
    handler_errors().clear()
    assert handler_errors() == counted


def test_what_else_fails_is_counted_like_a_handler() -> None:
    """Under its own name, from 1 on."""
    before = signals.handler_errors().get("test_signals counts", 0)
    assert [signals.count_error("test_signals counts") for _ in range(2)] == [before + 1, before + 2]
    assert signals.handler_errors()["test_signals counts"] == before + 2


def test_what_is_no_error_of_a_handler_goes_through() -> None:
    """An interrupt during a handler is the program's, not the handler's."""

    def interrupt(_signal: Signal) -> None:
        raise KeyboardInterrupt

    attach("interrupted", interrupt)
    with pytest.raises(KeyboardInterrupt):
        publish(DAMAGED)
    assert "interrupted" not in handler_errors()


def test_a_handler_may_attach_detach_and_publish() -> None:
    """The bus may be used from within: the signal under way reaches those that were there, the next the new ones."""
    seen: list[str] = []

    def once(signal: Signal) -> None:
        seen.append(f"once {signal.name}")
        detach("once")
        detach("last")
        attach("new", lambda signal: seen.append(f"new {signal.name}"))
        publish(Signal("inner"))

    attach("once", once)
    attach("last", lambda signal: seen.append(f"last {signal.name}"))
    publish(Signal("outer"))
    assert seen == ["once outer", "new inner", "last outer"]


def test_publishing_waits_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a handler, and with one, publishing takes no lock: a thread that attaches just now cannot hold it up."""
    held = threading.Lock()
    monkeypatch.setattr(signals, "_lock", held)
    seen: list[Signal] = []
    with held:
        assert within(30, lambda: publish(DAMAGED))
    attach("one", seen.append)
    with held:
        assert within(30, lambda: publish(DAMAGED))
    assert seen == [DAMAGED]


def test_a_signal_cannot_be_changed() -> None:
    """Every handler sees what was published: without metadata there is an empty mapping, shared by none."""
    signal = Signal("bare")
    assert dict(signal.metadata) == {}
    with pytest.raises(AttributeError):
        signal.name = "other"  # type: ignore[misc]
    with pytest.raises(TypeError):
        signal.metadata["x"] = 1  # type: ignore[index] # pyright: ignore[reportIndexIssue]


def test_handlers_come_and_go_while_others_publish() -> None:
    """From several threads at once: nothing raises, no signal is lost to a handler that stays, none is left behind."""
    seen: list[Any] = []
    failed: list[BaseException] = []
    ready = threading.Barrier(2 * THREADS)

    def run(work: Callable[[int], object]) -> None:
        try:
            ready.wait(30)
            for number in range(ROUNDS):
                work(number)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    def come_and_go(who: int, number: int) -> None:
        attach(f"passer-by {who}", fail if number % 2 else seen.append)
        if number % 3:
            detach(f"passer-by {who}")

    def publish_one(_number: int) -> None:
        publish(DAMAGED)

    stays: list[Any] = []
    attach("stays", stays.append)
    works = [*(partial(come_and_go, who) for who in range(THREADS)), *[partial(publish_one)] * THREADS]
    threads = [threading.Thread(target=run, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert len(stays) == THREADS * ROUNDS
    assert handlers()[0] == "stays"
    assert len(handlers()) == len(set(handlers())) <= THREADS + 1
