"""Several observers as one; a faulty one hurts nobody but itself."""

from __future__ import annotations

import logging

import pytest

from accy_async.observe import (
    CombinedObserver,
    Observer,
    SpanRecorder,
    combine_observers,
    encode_trace,
)
from tests.observe.samples import Clock, Log, tell_everything


class Faulty(Observer):
    """Raises when a node starts."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        self.calls = 0

    def node_started(self, run_id: int, node_id: int, time_ns: int) -> None:
        self.calls += 1
        raise self.error


def test_none_stays_none() -> None:
    """Without an observer there is nothing to call."""
    assert combine_observers() is None
    assert combine_observers(None, None) is None


def test_each_is_told_everything_in_order() -> None:
    first, second = Log(), Log()
    combined = combine_observers(first, None, second)
    assert combined is not None
    tell_everything(combined)
    alone = Log()
    tell_everything(alone)
    strip = [(name, arguments[:1]) for name, arguments in alone.events]
    assert [(name, a[:1]) for name, a in first.events] == strip
    assert first.events == second.events


def test_combined_observers_are_flattened() -> None:
    one, two, three = Log(), Log(), Log()
    combined = combine_observers(combine_observers(one, two), three)
    assert isinstance(combined, CombinedObserver)
    assert combined.observers == (one, two, three)


def test_faulty_observer_is_dropped_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """What it observes goes on, as do the others; its error is logged, once."""
    faulty, log = Faulty(ValueError("mine")), Log()
    recorder = SpanRecorder(clock=Clock(1))
    combined = combine_observers(faulty, log, recorder)
    assert isinstance(combined, CombinedObserver)
    with caplog.at_level(logging.ERROR, "accy_async.observe"):
        for _ in range(3):
            tell_everything(combined)
    assert faulty.calls == 1
    assert combined.observers == (log, recorder)
    assert len(log.events) == 3 * 13
    assert len(recorder) == 9
    (record,) = caplog.records
    assert record.getMessage() == (
        "the observer Faulty failed in node_started and is told nothing more"
    )
    assert record.exc_info is not None
    assert record.exc_info[1] is faulty.error


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_interruption_passes_through(error: BaseException) -> None:
    """It is not the observer's own: it reaches the program, and none is dropped."""
    faulty = Faulty(error)
    combined = combine_observers(faulty)
    assert isinstance(combined, CombinedObserver)
    with pytest.raises(type(error)):
        combined.node_started(1, 0, 1)
    assert combined.observers == (faulty,)


@pytest.mark.anyio
async def test_cancellation_passes_through() -> None:
    """On either loop: an observer that is cancelled is not at fault."""
    import anyio

    cancelled = anyio.get_cancelled_exc_class()
    with anyio.CancelScope() as scope:
        scope.cancel()
        try:
            await anyio.sleep_forever()
        except cancelled as error:
            combined = combine_observers(Faulty(error))
            assert isinstance(combined, CombinedObserver)
            with pytest.raises(cancelled):
                combined.node_started(1, 0, 1)
            assert len(combined.observers) == 1
            raise


def test_only_overridden_events_reach_an_observer() -> None:
    """What an observer leaves to the base class is not called on it."""
    combined = combine_observers(Faulty(ValueError()))
    assert isinstance(combined, CombinedObserver)
    told = {event for event, whom in combined._listeners.items() if whom}
    assert told == {"node_started"}


def test_recorder_sees_the_same_through_the_combination() -> None:
    alone, combined_with = SpanRecorder(clock=Clock(1)), SpanRecorder(clock=Clock(1))
    tell_everything(alone)
    combined = combine_observers(combined_with, Log())
    assert combined is not None
    tell_everything(combined)
    assert encode_trace(alone.trace()) == encode_trace(combined_with.trace())
