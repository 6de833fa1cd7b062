"""Spans of a device that asks no guards, and takes the time of its nodes itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.backends.hooks import StreamState
from accy_async.dtypes import DType
from accy_async.errors import AccyError, DeviceLost
from accy_async.graph import LaunchGraphBuilder
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.observe import SpanRecorder, encode_trace, validate_trace
from accy_async.observe.trace import Span, Trace
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry

pytestmark = pytest.mark.anyio


class Timed(RecordingBackend):
    """A recording backend that is as deaf to guards as a GPU."""

    asks_guards = False

    def _submit(self, stream: StreamState, *given: Any, **more: Any) -> None:
        more.pop("guard", None)
        super()._submit(stream, *given[:4], **more)


def wide(width: int, depth: int) -> LaunchGraphPlan:
    """Chains side by side, which a host call joins."""
    g = LaunchGraphBuilder()
    lasts = []
    for column in range(width):
        last = None
        for row in range(depth):
            after = () if last is None else (last,)
            last = g.kernel(kernel_entry(0), [], after=after, name=f"k{column}.{row}")
        lasts.append(last)
    g.host_call(lambda: None, name="join", after=lasts)  # type: ignore[arg-type]
    return g.build()


def device_spans(trace: Trace) -> list[Span]:
    return [span for span in trace.spans if span.kind != "host"]


def check_times(trace: Trace) -> None:
    assert validate_trace(encode_trace(trace)) == []
    for span in trace.spans:
        assert span.started_ns is not None
        assert span.finished_ns is not None
        assert 0 < span.submitted_ns <= span.started_ns <= span.finished_ns


async def test_c73_every_node_has_the_devices_own_times() -> None:
    backend = Timed(operation_ns=1000.0)
    with SpanRecorder() as recorder:
        async with open_session(backend, observer=recorder) as session:
            for _ in range(3):
                await session.run(wide(4, 25))
    trace = recorder.trace()
    spans = device_spans(trace)
    assert len(spans) == 300
    assert {span.state for span in trace.spans} == {"ok"}
    assert {span.duration_ns for span in spans} == {1000}
    assert (trace.open_spans, trace.unmatched_events, trace.repaired_times) == (0, 0, 0)
    check_times(trace)
    assert not any(backend.live_objects().values())


async def test_copies_fills_and_waits_are_timed_too() -> None:
    backend = Timed()
    g = LaunchGraphBuilder()
    x, out = g.scratch("x", DType.F32, 8), g.host("out", DType.F32, 8)
    g.fill(x, 1.0, name="fill")
    g.copy_out(x, out, name="read")
    with SpanRecorder() as recorder:
        async with open_session(backend) as session:
            await session.run(
                g.build(), {"out": np.zeros(8, np.float32)}, observer=recorder
            )
    trace = recorder.trace()
    assert [(span.name, span.state) for span in trace.spans] == [
        ("fill", "ok"),
        ("read", "ok"),
    ]
    check_times(trace)


async def test_without_an_observer_nothing_is_timed() -> None:
    backend = Timed()
    async with open_session(backend) as session:
        await session.run(wide(2, 10))
    assert not any(call.startswith("create_event(") for call in backend.call_log)
    assert "create_stream" in backend.call_log
    records = Counter(call.kind for call in backend.calls)
    assert records["record_event"] < 10  # those of the edges alone


async def test_nodes_are_told_of_while_the_run_goes_on() -> None:
    backend = Timed(is_holding=True)
    with SpanRecorder() as recorder:
        async with open_session(backend, observer=recorder) as session:
            run = session.start(wide(1, 3))
            while backend.launch_count < 3:
                await anyio.lowlevel.checkpoint()
            assert len(recorder) == 0
            [stream] = [s for s in backend.ready_streams() if s is not None][-1:]
            backend.step(stream, 3)  # an event, the kernel, an event
            await anyio.wait_all_tasks_blocked()
            told = [span.name for span in recorder.trace().spans]
            backend.release_all()
            await run
    assert told in (["k0.0"], [])  # a look comes behind what was submitted last
    trace = recorder.trace()
    assert [span.state for span in trace.spans] == ["ok"] * 4
    check_times(trace)


@pytest.mark.parametrize("lose", ["silent", "cancel"])
async def test_c73_what_never_ends_has_a_state_all_the_same(lose: str) -> None:
    backend = Timed(grace_s=0.05)
    if lose == "silent":
        backend.fail_execution(3, silent=True)
    backend.hold_all()
    with (
        SpanRecorder() as recorder,
        pytest.raises((ExceptionGroup, AccyError)) as raised,
    ):
        async with open_session(backend, observer=recorder) as session:
            run = session.start(wide(1, 6))
            while backend.launch_count < 6:
                await anyio.lowlevel.checkpoint()
            if lose == "silent":
                backend.release_all()
                backend.find_fault()
                await run
            else:
                streams: list[Any] = backend.ready_streams()
                for stream in streams:
                    backend.step(stream, 7)
                run.cancel()
                await run.wait_over()
                await run
    trace = recorder.trace()
    assert trace.open_spans == 0
    assert len(trace.spans) == 7
    states = [span.state for span in trace.spans if span.kind == "kernel"]
    if lose == "silent":
        assert leaves(raised.value, DeviceLost)
        assert states.count("failed") == 4  # the suspects: what had not ended
        assert states.count("ok") == 2
    else:
        assert states.count("cancelled") >= 3
        assert "failed" not in states
    assert validate_trace(encode_trace(trace)) == []
    backend.release_all()
    assert not any(backend.live_objects().values())


def leaves(error: BaseException, kind: type[BaseException]) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for part in error.exceptions for leaf in leaves(part, kind)]
    return [error] if isinstance(error, kind) else []


async def test_refused_node_is_told_of_and_leaves_nothing() -> None:
    backend = Timed()
    backend.fail("launch", 2)
    with SpanRecorder() as recorder, pytest.raises(ExceptionGroup):
        async with open_session(backend, observer=recorder) as session:
            await session.run(wide(1, 3))
    states = {span.name: span.state for span in recorder.trace().spans}
    assert states["k0.0"] == "ok"
    assert states["k0.1"] == "failed"
    assert states["k0.2"] in ("skipped", "cancelled")
    assert not any(backend.live_objects().values())


async def test_device_that_does_not_answer_is_still_told_of(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where no round trip comes back, times are as good as they can be."""
    backend = Timed()
    complete: Callable[..., bool] = backend.is_event_complete
    monkeypatch.setattr(backend, "is_event_complete", lambda event: False)
    with SpanRecorder() as recorder:
        async with open_session(backend, observer=recorder) as session:
            await session.run(wide(1, 3))
    assert complete is not backend.is_event_complete
    check_times(recorder.trace())
