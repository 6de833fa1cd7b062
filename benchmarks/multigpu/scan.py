"""One scan on one GPU, against the same split over two.

Each GPU adds up the tiles of its half, scans their sums, and scans each tile onto what
came before it. The second's half has a tile of zeros before it, whose sum is replaced
by the sum of the first half: one number, that goes from GPU to GPU as soon as it is
there, while neither waits for the host. So a half takes half, but for two small kernels
and one small copy.
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
from accy_async.graph import GraphBuffer, LaunchGraphBuilder, LaunchGraphPlan
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
        plan: all of it, on all the devices.
        arrays: what the plan is bound to, by the slots' names.
        results: the parts' results, in order; the second's has a tile before it.
    """

    session: MultiSession
    plan: LaunchGraphPlan
    arrays: dict[str, DeviceArray]
    results: tuple[DeviceArray, ...]

    async def run(self) -> None:
        """Scan everything, and wait for it."""
        await self.session.run(self.plan, self.arrays, LaunchOptions(lowering="never"))


async def open_scan(
    session: MultiSession, devices: Sequence[str], format: ArtifactFormat, length: int
) -> Scan:
    """The arrays and the plan of a scan over these devices, in equal parts."""
    plan = _plan(format, devices, length // len(devices))
    arrays = {}
    one = np.ones(1, DTYPE.numpy).tobytes()
    for slot in plan.slots:
        number = int(slot.name[-1])
        size = slot.byte_size // DTYPE.numpy.itemsize
        array = session.allocate(size, DTYPE, device=devices[number])
        arrays[slot.name] = array
        if slot.name.startswith("x"):
            backend = session.on(devices[number]).backend
            backend.fill_buffer(array.handle, one)
            if number:
                lead = SCAN_TILE * DTYPE.numpy.itemsize
                backend.fill_buffer(array.handle, bytes(4), byte_size=lead)
            await backend.wait_default_stream()
    return Scan(
        session=session,
        plan=plan,
        arrays=arrays,
        results=tuple(arrays[f"out{number}"] for number in range(len(devices))),
    )


def _plan(format: ArtifactFormat, devices: Sequence[str], part: int) -> LaunchGraphPlan:
    registry = library_registry(format, dtype=DTYPE)
    tile_sums, sums_scan, tile_scan, add = (
        registry.get(f"accy.kernel.{name}", 1, format)
        for name in ("scan.tile_sums", "scan.sums_scan", "scan.tile_scan", "add")
    )
    builder = LaunchGraphBuilder()
    total: GraphBuffer | None = None
    for number, device in enumerate(devices):
        size = part + SCAN_TILE * bool(number)
        tiles = -(-size // SCAN_TILE)
        with builder.on(device):
            x, out = (builder.buffer(f"{n}{number}", DTYPE, size) for n in ("x", "out"))
            sums, bases = (
                builder.buffer(f"{n}{number}", DTYPE, tiles) for n in ("sums", "bases")
            )
            count = ScalarArgument.u32(size)
            builder.kernel(tile_sums, [sums.write, x.read], [count])
            if total is not None:
                carry = builder.buffer(f"carry{number}", DTYPE, 1)
                builder.copy(total, carry)
                uses = [sums.read_write, sums.read_write, carry.read]
                builder.kernel(add, uses, [ScalarArgument.u32(1)])
            elif len(devices) > 1:
                total, left = sums, tiles
                while left > 1:
                    above = -(-left // SCAN_TILE)
                    added = builder.buffer(f"total{above}_{number}", DTYPE, above)
                    uses = [added.write, total.read]
                    builder.kernel(tile_sums, uses, [ScalarArgument.u32(left)])
                    total, left = added, above
            uses = [bases.write, sums.read]
            builder.kernel(sums_scan, uses, [ScalarArgument.u32(tiles)])
            builder.kernel(tile_scan, [out.write, x.read, bases.read], [count])
    return builder.build()


async def check(session: MultiSession, scan: Scan) -> str:
    """Whether the ends of each part are what they should be."""
    wrong = []
    begin = 0
    for number, result in enumerate(scan.results):
        backend = session.on(session.devices[number]).backend
        lead = SCAN_TILE * bool(number)
        length = result.shape[0] - lead
        size = min(1000, length)
        for at in (0, length - size):
            found = np.zeros(size, DTYPE.numpy)
            offset = (lead + at) * found.itemsize
            backend.read_buffer(result.handle, found, offset_bytes=offset)
            await backend.wait_default_stream()
            expected = np.arange(
                begin + at + 1, begin + at + 1 + size, dtype=found.dtype
            )
            if not np.array_equal(found, expected):
                wrong.append(f"part {number} from {at}")
        begin += length
    return f"WRONG in {', '.join(wrong)}" if wrong else "right"
