"""C73: spans of nodes on the GPU have its own times, and states in every case."""

from __future__ import annotations

import anyio
import pytest

from accy_async.dtypes import ScalarArgument
from accy_async.graph import LaunchGraphBuilder
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.observe import SpanRecorder, encode_trace, validate_trace
from accy_async.observe.trace import Trace
from accy_async.session import open_session
from tests.gpu import native

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

SPIN_NS = 200_000


def wide(width: int, depth: int, nanoseconds: int) -> LaunchGraphPlan:
    """Chains of kernels that take their time, and one that joins them."""
    g = LaunchGraphBuilder()
    spin, long = native.entry("spin"), [ScalarArgument.u64(nanoseconds)]
    lasts = []
    for column in range(width):
        last = g.kernel(spin, [], long, name=f"{column}.0")
        for row in range(1, depth):
            last = g.kernel(spin, [], long, after=last, name=f"{column}.{row}")
        lasts.append(last)
    g.kernel(spin, [], long, after=lasts, name="join")
    return g.build()


def check(trace: Trace) -> None:
    assert trace.open_spans == trace.unmatched_events == trace.repaired_times == 0
    assert validate_trace(encode_trace(trace)) == []
    for span in trace.spans:
        assert span.started_ns is not None
        assert span.finished_ns is not None
        assert 0 < span.submitted_ns <= span.started_ns <= span.finished_ns


async def test_c73_nodes_have_the_devices_times_and_overlap_on_no_stream() -> None:
    native.host_words()
    with SpanRecorder() as recorder:
        async with open_session("cuda", observer=recorder) as session:
            for _ in range(3):
                await session.run(wide(4, 25, SPIN_NS))
        assert not any(session.live_objects().values())
    trace = recorder.trace()
    check(trace)
    assert len(trace.spans) == 303
    assert {span.state for span in trace.spans} == {"ok"}
    for span in trace.spans:  # the kernel looks at the device's clock itself
        assert span.duration_ns >= SPIN_NS - 2_000
    for run in trace.runs:
        spans = [span for span in trace.spans if span.run_id == run.run_id]
        assert len({span.stream_id for span in spans}) == 4
        assert min(span.started_ns or 0 for span in spans) >= run.started_ns


async def test_c73_a_cancelled_runs_nodes_end_in_some_state() -> None:
    native.host_words()
    with SpanRecorder() as recorder:
        async with open_session("cuda") as session:
            plan = wide(4, 25, 2_000_000)
            await session.run(plan)  # so that it is loaded and prepared
            with anyio.move_on_after(0.01):
                await session.run(plan, observer=recorder)
    trace = recorder.trace()
    check(trace)
    assert len(trace.spans) == 101
    assert {span.state for span in trace.spans} <= {"ok", "cancelled"}
    assert any(span.state == "ok" for span in trace.spans)
