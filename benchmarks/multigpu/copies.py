"""Copies from GPU to GPU: ours, straight and staged, against the driver's own call.

A sample is so many of them in a row that 8 GiB are moved, or 256 of small ones, and a
wait for the last, on both sides: what is compared is bandwidth, not a wait. The target
is for sizes that take longer than their submission.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from accy_async import MultiSession, open_session
from accy_async.backends import Backend, BufferHandle
from accy_async.backends.cuda import CudaBackend
from benchmarks.gpu.tables import Row, Target, show
from benchmarks.multigpu.parts import NAMES, Work, rows_of, seconds

COPY_BYTES = (4 << 20, 64 << 20, 1 << 30)
BARE = "cuMemcpyPeerAsync"
TARGET = Target(BARE, 0.95)
MOVED_BYTES = 8 << 30
MOST_COPIES = 256
LEAST_BYTES = 64 << 20
"""Of copies that the target is for."""


async def measure(rounds: int) -> None:
    """Print a table for each size."""
    for size in COPY_BYTES:
        async with open_session(devices=NAMES) as session:
            one, two = (session.on(name).backend for name in NAMES)
            source, target = one.allocate_buffer(size), two.allocate_buffer(size)
            addresses = one.buffer_address(source), two.buffer_address(target)
            ours = f"ours, {one.route_to(two).way}"
            async with bare_copy(session, *addresses, size) as bare:
                works: dict[str, Work] = {
                    BARE: bare,
                    ours: our_copy(one, source, two, target),
                }
                taken = await seconds(works, rounds)
        has_target = "peer" in ours and size >= LEAST_BYTES
        targets = {ours: (TARGET,)} if has_target else {}
        amount = copies_of(size) * size / 1e9
        rows = rows_of(taken, amount=amount, targets=targets)
        rows += await staged(size, min(rounds, 5))
        title = f"{copies_of(size)} copies of {size >> 20} MiB from GPU to GPU"
        show(title, rows, unit="GB/s", ratio_to=BARE, more_is_better=True)


def copies_of(size: int) -> int:
    """How many copies of a size are made in a row."""
    return min(MOVED_BYTES // size, MOST_COPIES)


@asynccontextmanager
async def bare_copy(
    session: MultiSession, source: int, target: int, size: int
) -> AsyncIterator[Work]:
    """A copy by the driver's own calls, and a wait for it that blocks."""
    one, two = (session.on(name).backend.base for name in NAMES)
    assert isinstance(one, CudaBackend)
    assert isinstance(two, CudaBackend)
    contexts: list[Any] = [one._context, two._context]  # noqa: SLF001 - no API of ours
    here, there = contexts
    driver = here.driver
    here.make_current()
    stream = here.check(driver.cuStreamCreate(1), "cuStreamCreate")

    async def copy() -> None:
        here.make_current()
        for _ in range(copies_of(size)):
            answer = driver.cuMemcpyPeerAsync(
                target, there.native, source, here.native, size, stream
            )
            here.check(answer, "cuMemcpyPeerAsync")
        here.check(driver.cuStreamSynchronize(stream), "cuStreamSynchronize")

    try:
        yield copy
    finally:
        here.make_current()
        here.check(driver.cuStreamDestroy(stream), "cuStreamDestroy")


def our_copy(
    one: Backend, source: BufferHandle, two: Backend, target: BufferHandle
) -> Work:
    """The same by ours, on the default stream of whichever carries it out."""
    route = one.route_to(two)

    async def copy() -> None:
        for _ in range(copies_of(source.byte_size)):
            one.copy_to_peer(source, target, two)
        await (two if route.is_pulled else one).wait_default_stream()

    return copy


class Staging(CudaBackend):
    """A GPU that looks for no peer access."""

    def _way_to(self, peer: Backend) -> tuple[None, str]:
        del peer
        return None, "told not to"


async def staged(size: int, rounds: int) -> list[Row]:
    """By way of page-locked memory; a row without samples where that fails."""
    devices = [Staging(index) for index in range(2)]
    try:
        async with open_session(devices=devices) as session:
            one, two = (session.on(name).backend for name in NAMES)
            source, target = one.allocate_buffer(size), two.allocate_buffer(size)
            copy = our_copy(one, source, two, target)
            taken = await seconds({"ours, staged": copy}, rounds)
            return rows_of(taken, amount=copies_of(size) * size / 1e9)
    finally:
        for device in devices:
            device.close()
