"""One scan on one GPU, against the same split over two.

Each GPU adds up the tiles of its half, and scans the tiles' sums. Then the sum of the
first half goes to the second GPU, by way of the host: four bytes. There it is added to
the sums of the tiles, and in the end to the first tile, which has none before it. The
last stage, which scans each tile onto what came before it, is the same as in one scan.
So a half takes half, but for two small kernels and one round trip.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np

from accy_async import (
    ArtifactFormat,
    DeviceArray,
    DType,
    MultiSession,
    ScalarArgument,
    open_session,
)
from accy_async.compiler.kernels import SCAN_TILE
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.graph.options import LaunchOptions
from benchmarks.gpu.tables import Target, show
from benchmarks.multigpu.parts import FORMAT, NAMES, rows_of, seconds

LENGTH = 1 << 30
ONE = "one GPU"
DTYPE = DType.U32
"""So that sums of a billion are exact."""


async def measure(rounds: int) -> None:
    """Print the table, after a look at the results."""
    async with open_session(devices=NAMES) as session:
        scans = {
            ONE: await open_scan(session, NAMES[:1], FORMAT, LENGTH),
            "two GPUs": await open_scan(session, NAMES, FORMAT, LENGTH),
        }
        works = {name: scan.run for name, scan in scans.items()}
        taken = await seconds(works, rounds)
        for name, scan in scans.items():
            print(f"scan of {LENGTH} ones on {name}: {await check(session, scan)}")
    targets = {"two GPUs": (Target(ONE, 0.6),)}
    rows = rows_of(taken, targets=targets)
    show(f"scan of {LENGTH} {DTYPE}", rows, unit="ms", ratio_to=ONE)


@attrs.frozen(eq=False)
class Scan:
    """A scan of ones that lie in equal parts on one device or on two.

    Attributes:
        session: whose arrays they are.
        before: the plan up to the tiles' sums; of one part all of it.
        after: the rest, with the first part's sum as its runtime scalar; None for one
            part.
        arrays: what the plans are bound to, by the slots' names.
        results: the parts' results, in order.
    """

    session: MultiSession
    before: LaunchGraphPlan
    after: LaunchGraphPlan | None
    arrays: dict[str, DeviceArray]
    results: tuple[DeviceArray, ...]

    async def run(self) -> None:
        """Scan everything, and wait for it."""
        await self._run(self.before, LaunchOptions(lowering="never"))
        if self.after is not None:
            scalars = (ScalarArgument.of(DTYPE, await self._first_sum()),)
            options = LaunchOptions(lowering="never", runtime_scalars=scalars)
            await self._run(self.after, options)

    async def _run(self, plan: LaunchGraphPlan, options: LaunchOptions) -> None:
        given = {slot.name: self.arrays[slot.name] for slot in plan.slots}
        await self.session.run(plan, given, options)

    async def _first_sum(self) -> int:
        """The sum of the first part: four bytes of the device's."""
        backend, sums = self.session.on(0).backend, self.arrays["bases0"]
        last = np.zeros(1, DTYPE.numpy)
        at = sums.byte_size - last.nbytes
        backend.read_buffer(sums.handle, last, offset_bytes=at)
        await backend.wait_default_stream()
        return int(last[0])


async def open_scan(
    session: MultiSession, devices: Sequence[str], format: ArtifactFormat, length: int
) -> Scan:
    """The arrays and the plans of a scan over these devices, in equal parts."""
    part = length // len(devices)
    tiles = -(-part // SCAN_TILE)
    sizes = {"x": part, "out": part, "sums": tiles, "bases": tiles}
    sizes["ones"] = max(tiles, SCAN_TILE)
    one = np.ones(1, DTYPE.numpy).tobytes()
    arrays = {}
    for number, device in enumerate(devices):
        backend = session.on(device).backend
        for name, size in sizes.items():
            array = session.allocate(size, DTYPE, device=device)
            arrays[f"{name}{number}"] = array
            if name in ("x", "ones"):
                backend.fill_buffer(array.handle, one)
        await backend.wait_default_stream()
    before, after = _plans(format, devices, part)
    return Scan(
        session=session,
        before=before,
        after=after,
        arrays=arrays,
        results=tuple(arrays[f"out{number}"] for number in range(len(devices))),
    )


def _plans(
    format: ArtifactFormat, devices: Sequence[str], part: int
) -> tuple[LaunchGraphPlan, LaunchGraphPlan | None]:
    registry = library_registry(format, dtype=DTYPE)
    tile_sums, sums_scan, tile_scan, axpy = (
        registry.get(f"accy.kernel.{name}", 1, format)
        for name in ("scan.tile_sums", "scan.sums_scan", "scan.tile_scan", "axpy")
    )
    tiles = -(-part // SCAN_TILE)
    count, tile_count = ScalarArgument.u32(part), ScalarArgument.u32(tiles)
    first_tile = ScalarArgument.u32(min(SCAN_TILE, part))
    is_split = len(devices) > 1
    before = LaunchGraphBuilder()
    after = LaunchGraphBuilder() if is_split else before
    carry = after.runtime_scalar() if is_split else None
    for number, device in enumerate(devices):
        with before.on(device):
            x = before.buffer(f"x{number}", DTYPE, part)
            sums, bases = (
                before.buffer(f"{n}{number}", DTYPE, tiles) for n in ("sums", "bases")
            )
            before.kernel(tile_sums, [sums.write, x.read], [count])
            before.kernel(sums_scan, [bases.write, sums.read], [tile_count])
        with after.on(device):
            out = after.buffer(f"out{number}", DTYPE, part)
            if is_split:
                x = after.buffer(f"x{number}", DTYPE, part)
                bases = after.buffer(f"bases{number}", DTYPE, tiles)
            scan = [out.write, x.read, bases.read]
            if not number or carry is None:
                after.kernel(tile_scan, scan, [count])
                continue
            ones = after.buffer(f"ones{number}", DTYPE, max(tiles, SCAN_TILE))
            uses = [bases.read_write, ones.read, bases.read_write]
            after.kernel(axpy, uses, [tile_count, carry])
            after.kernel(tile_scan, scan, [count])
            uses = [out.read_write, ones.read, out.read_write]
            after.kernel(axpy, uses, [first_tile, carry])
    return before.build(), after.build() if is_split else None


async def check(session: MultiSession, scan: Scan) -> str:
    """Whether the ends of each part are what they should be."""
    wrong = []
    begin = 0
    for number, result in enumerate(scan.results):
        backend = session.on(session.devices[number]).backend
        size = min(1000, result.shape[0])
        for at in (0, result.shape[0] - size):
            found = np.zeros(size, DTYPE.numpy)
            width = found.itemsize
            backend.read_buffer(result.handle, found, offset_bytes=at * width)
            await backend.wait_default_stream()
            expected = np.arange(
                begin + at + 1, begin + at + 1 + size, dtype=found.dtype
            )
            if not np.array_equal(found, expected):
                wrong.append(f"part {number} from {at}")
        begin += result.shape[0]
    return f"WRONG in {', '.join(wrong)}" if wrong else "right"
