"""An observer that raises, given as it is."""

from __future__ import annotations

from typing import Any

import anyio
import numpy as np
import pytest

import accy_async
from accy_async import DType
from accy_async.backends import RecordingBackend
from accy_async.errors import InvalidType
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.observe import Observer

GIVE_UP_S = 20.0


@pytest.mark.anyio
@pytest.mark.parametrize("through", ["session", "run"])
@pytest.mark.parametrize(
    "event",
    [
        "run_started",
        "run_edges",
        "node_submitted",
        "node_details",
        "node_started",
        "node_finished",
        "node_skipped",
        "run_finished",
        "phase_started",
        "phase_finished",
    ],
)
async def test_it_breaks_nothing_that_it_observes(event: str, through: str) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError(event)

    observer = type("Broken", (Observer,), {event: broken})()
    g = LaunchGraphBuilder()
    x, out = g.scratch("x", DType.F32, 4), g.host("out", DType.F32, 4)
    g.fill(x, 1.0)
    g.copy_out(x, out)
    failing = g.host_call(lambda: 1 / 0)
    g.host_call(print, after=failing)
    answer = np.zeros(4, np.float32)
    of_run = observer if through == "run" else None
    of_session = observer if through == "session" else None
    with anyio.fail_after(GIVE_UP_S):
        async with accy_async.open_session("cpu", observer=of_session) as session:
            array = await session.upload(np.ones(4, np.float32))
            await session.download(array)
            with pytest.raises(ExceptionGroup) as caught:
                await session.run(g.build(), {"out": answer}, observer=of_run)
    assert [type(error) for error in caught.value.exceptions] == [ZeroDivisionError]
    assert np.all(answer == 1.0)
    assert not any(session.live_objects().values())


def small_plan() -> LaunchGraphPlan:
    g = LaunchGraphBuilder()
    g.fill(g.scratch("x", DType.F32, 4), 1.0)
    return g.build()


class Told:
    """No `Observer`, but told of some event as one is."""

    def __init__(self) -> None:
        self.runs = 0

    def run_started(self, *arguments: object) -> None:
        self.runs += 1


@pytest.mark.anyio
@pytest.mark.parametrize("wrong", [True, 1, "observer", object(), Observer, Told])
async def test_what_observes_nothing_is_refused_before_anything_is_opened(
    wrong: Any,
) -> None:
    """It was logged once, at the first event, and told nothing more."""
    device = RecordingBackend()
    with pytest.raises(InvalidType, match="an Observer"):
        async with accy_async.open_session(device, observer=wrong):
            pass
    assert not device._owners
    async with accy_async.open_session(device) as session:
        with pytest.raises(InvalidType, match="an Observer"):
            session.start(small_plan(), observer=wrong)
        assert session.statistics().runs == 0


@pytest.mark.anyio
async def test_what_is_told_of_some_events_only_is_an_observer() -> None:
    told = Told()
    observer: Any = told
    async with accy_async.open_session(
        RecordingBackend(), observer=observer
    ) as session:
        await session.run(small_plan())
    assert told.runs == 1
