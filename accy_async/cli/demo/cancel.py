"""Cancelling a launch that is really in flight, and looking at what is left."""

from __future__ import annotations

import time
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import numpy as np

from accy_async.backends.array import DeviceArray
from accy_async.backends.recording import RecordingBackend
from accy_async.cli.demo.bench import Bench
from accy_async.cli.demo.outcome import CancelOutcome
from accy_async.dtypes import DType
from accy_async.pipeline import allocate_pipeline_intermediates

__all__ = ["cancel_one"]

_LEAST_S = 0.01
_COPY_BYTES = 64 << 20
_ATTEMPTS = 4
_HELD_S = 0.01


async def cancel_one(
    bench: Bench, result: DeviceArray, per_launch_s: float
) -> CancelOutcome:
    """Begin a launch with scratch of its own, and cancel it halfway.

    Two other launches are queued on its stream before it; and before those, where
    they are too short to cancel within, large copies. On the recording backend,
    where nothing takes time, the stream is held back instead.

    Args:
        bench: where, and what.
        result: where the launches write; not looked at.
        per_launch_s: what a launch takes.
    """
    if not len(bench.source.values):
        return CancelOutcome(skipped="a launch of no values is done before it begins")
    queued, copies = 2, 0
    if bench.executes and (queued + 1) * per_launch_s < _LEAST_S:
        copies = 3
    outcome = CancelOutcome()
    for _ in range(_ATTEMPTS):
        halfway_s = min((queued + 1) * per_launch_s / 2, 60.0)
        outcome = await _attempt(bench, result, queued, copies, halfway_s)
        if outcome.was_in_flight and outcome.was_cancelled:
            break
        copies = 2 * copies + 2  # it was done before: give it more to wait for
    return outcome


async def _attempt(
    bench: Bench, result: DeviceArray, queued: int, copies: int, halfway_s: float
) -> CancelOutcome:
    session, backend = bench.session, bench.session.backend
    scope = anyio.CancelScope()
    ended_at: list[float] = []

    async with AsyncExitStack() as stack:
        stream = await stack.enter_async_context(session.stream())
        scratch = await stack.enter_async_context(
            await allocate_pipeline_intermediates(
                backend, bench.pipeline, bench.scalars
            )
        )
        if isinstance(backend, RecordingBackend):
            backend.hold(stream)
        if copies:
            junk = np.zeros(_COPY_BYTES, np.uint8)
            target = stack.enter_context(session.allocate(_COPY_BYTES, DType.U8))
            for _ in range(copies):
                backend.write_buffer(target.handle, junk, stream=stream)
        live_before = session.live_objects()
        for _ in range(queued):
            await session.launch_pipeline(bench.request(result, scratch, stream))

        async def launch() -> None:
            try:
                with scope:
                    await session.launch_pipeline(bench.request(result, None, stream))
            finally:
                ended_at.append(time.perf_counter())

        begun = time.perf_counter()
        async with anyio.create_task_group() as group:
            group.start_soon(launch)
            while session.live_objects() == live_before and not ended_at:
                await anyio.lowlevel.checkpoint()  # until it has scratch: it submits
            await anyio.sleep(max(0.0, halfway_s - (time.perf_counter() - begun)))
            was_in_flight = not backend.is_stream_idle(stream) and not ended_at
            live_during = session.live_objects()
            cancelled_at = time.perf_counter()
            scope.cancel()
            if isinstance(backend, RecordingBackend):
                await anyio.sleep(_HELD_S)
                backend.release(stream)
        live_after = session.live_objects()
    return CancelOutcome(
        was_in_flight=was_in_flight,
        was_cancelled=scope.cancelled_caught,
        queued_before=queued,
        copied_before_bytes=copies * _COPY_BYTES,
        after_s=cancelled_at - begun,
        took_s=max(0.0, ended_at[0] - cancelled_at),
        live_before=live_before,
        live_during=live_during,
        live_after=live_after,
    )
