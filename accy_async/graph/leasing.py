"""Which streams a run has: its own, one graph's, or as many as its layout uses."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.graph.lowering.parted import LoweredParts
from accy_async.graph.lowering.replay import side_streams
from accy_async.graph.parting import streams_of
from accy_async.graph.slices import laid_out

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.streampool import StreamPool
    from accy_async.graph.job import Job

__all__ = ["lease_streams"]

_LONG = 1000
"""Nodes from which on a run leaves a stream of the pool to those after it."""


async def lease_streams(job: Job, streams: StreamPool, backend: Backend) -> None:
    """Have a run's streams; waits for none, see `StreamPool.lease_or_share`.

    What was leased is in ``job.leased``, however this ends.
    """
    own = job.options.stream
    if isinstance(job.lowered, LoweredParts):
        wanted = [0] * streams_of(job.lowered)
    elif job.lowered is not None:
        wanted = [0] * (1 + side_streams(job.lowered))
    elif own is not None:
        wanted = []
        job.max_streams = 1
    else:
        wanted = await _wanted_streams(job, streams.limit)
    for priority in wanted[:1]:
        job.leased.append(streams.lease_or_share(priority))
    for priority in wanted[1:]:
        stream = streams.lease_nowait(priority)
        if stream is None:  # others have them: fewer will do
            job.max_streams = len(job.leased)
            break
        job.leased.append(stream)
    job.streams = job.leased if own is None else [own]
    job.progress.use_streams([backend.mark(one).timeline for one in job.streams])


async def _wanted_streams(job: Job, limit: int) -> list[int]:
    """The priorities of the streams that a run makes use of."""
    # A long run leaves a stream to those that start while it goes on.
    leaves_one = limit > 1 and len(job.plan.nodes) >= _LONG
    job.max_streams = limit - 1 if leaves_one else limit
    layout = await laid_out(job.plan, job.max_streams)
    count = max(1, layout.most_streams)
    events = job.options.wait_events, job.options.signal_event
    if not job.plan.uses_device and events == ((), None):
        count = 0  # host calls alone take none
    return [*layout.stream_priorities, *[0] * count][:count]
