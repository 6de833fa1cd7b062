"""The ways to submit a run: as one graph of the device, as several, node by node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from accy_async.graph.lowering.parted import LoweredParts
from accy_async.graph.lowering.replay import operations_of, replay
from accy_async.graph.parting import PartsRunner
from accy_async.graph.runner import Runner
from accy_async.graph.slices import laid_out

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import EventHandle, StreamHandle
    from accy_async.graph.bindings import Memory
    from accy_async.graph.governor import Governor
    from accy_async.graph.job import Job
    from accy_async.graph.prepared import PreparedGraph

__all__ = ["submit_job"]


async def submit_job(
    backend: Backend,
    governor: Governor,
    job: Job,
    prepared: PreparedGraph,
    new_event: Callable[[StreamHandle], EventHandle],
) -> Sequence[Memory]:
    """Submit all of a run, in the way that was chosen for it.

    Args:
        backend: the device.
        governor: bounds what is in flight.
        job: has its streams.
        prepared: the job's graph.
        new_event: gives an event to record on a stream.

    Returns:
        Where the slots' values are.

    Cancellation: nothing further is submitted.
    """
    lowered, progress, streams = job.lowered, job.progress, job.streams
    if isinstance(lowered, LoweredParts):
        parts = PartsRunner(
            backend,
            prepared,
            lowered,
            progress,
            streams,
            await laid_out(job.plan, len(streams)),
            job.take_event(new_event),
            governor,
        )
        await parts.run_parts()
        return parts.memories
    if lowered is not None:
        count = operations_of(lowered)
        if not governor.may_submit(progress, count):
            progress.waits_for_room += 1
            await governor.wait_for_room(progress, count)
        layout = None
        if len(streams) > 1:
            layout = await laid_out(job.plan, len(streams))
        replay(backend, prepared, lowered, progress, streams, layout)
        return lowered.memories
    runner = Runner(
        backend,
        prepared,
        progress,
        streams,
        job.take_event(new_event),
        governor,
        job.telling,
    )
    await runner.run(await laid_out(job.plan, job.max_streams, job.places))
    return runner.memories
