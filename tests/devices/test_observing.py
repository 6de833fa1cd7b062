"""Observed runs over several devices: each node timed by its own device's clock."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.backends import BackendKind, RecordingBackend
from accy_async.observe import SpanRecorder
from accy_async.session import open_session
from tests.devices.parts import check_all_empty, ring
from tests.graphs.test_device_times import Timed, check_times

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("second", [Timed, RecordingBackend])
async def test_every_node_is_told_of_once(second: type[RecordingBackend]) -> None:
    """On devices that take the time themselves, and on those that ask guards."""
    devices = [Timed(BackendKind.CUDA), second(BackendKind.CUDA, index=1)]
    plan = ring([device.device for device in devices])
    with SpanRecorder() as recorder:
        async with open_session(devices=devices, observer=recorder) as session:
            await session.run(plan, {"out": np.zeros(4, np.uint32)})
    trace = recorder.trace()
    names = [span.name for span in trace.spans if span.name in plan.node_index]
    assert sorted(names) == sorted(node.name for node in plan.nodes)
    assert {span.state for span in trace.spans} == {"ok"}
    assert (trace.open_spans, trace.unmatched_events) == (0, 0)
    check_times(trace)
    check_all_empty(devices)


async def test_streams_of_two_devices_are_two_tracks() -> None:
    """Each device counts its streams from 1; an observer can tell them apart."""
    devices = [RecordingBackend(index=index) for index in range(2)]
    plan = ring([device.device for device in devices])
    with SpanRecorder() as recorder:
        async with open_session(devices=devices) as session:
            await session.run(plan, {"out": np.zeros(4, np.uint32)}, observer=recorder)
    tracks = {span.name: span.stream_id for span in recorder.trace().spans}
    assert tracks["work0"] != tracks["work1"]
