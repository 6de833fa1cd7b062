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
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from benchmarks.gpu.tables import Target, show
from benchmarks.multigpu.parts import FORMAT, NAMES, Work, rows_of, seconds

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
        run: scans everything, and waits for it.
        arrays: what the plan is bound to, by the slots' names.
        results: the parts' results, in order; the second's has a tile before it.
    """

    run: Work
    arrays: dict[str, DeviceArray]
    results: tuple[DeviceArray, ...]


async def open_scan(
    session: MultiSession, devices: Sequence[str], format: ArtifactFormat, length: int
) -> Scan:
    """The arrays and the plan of a scan over these devices, in equal parts.

    The plan is prepared: a device graph on each device, where there are such.
    """
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
        run=(await session.prepare(plan, arrays)).run,
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
    lengths = [part + SCAN_TILE * bool(number) for number in range(len(devices))]
    tiles = [-(-length // SCAN_TILE) for length in lengths]
    slots = []
    for number, device in enumerate(devices):  # first what waits for nothing
        with builder.on(device):
            x, out = (
                builder.buffer(f"{name}{number}", DTYPE, lengths[number])
                for name in ("x", "out")
            )
            sums, bases = (
                builder.buffer(f"{name}{number}", DTYPE, tiles[number])
                for name in ("sums", "bases")
            )
            count = ScalarArgument.u32(lengths[number])
            builder.kernel(tile_sums, [sums.write, x.read], [count])
            slots.append((x, out, sums, bases, count))
    if len(devices) > 1:
        total, left = slots[0][2], tiles[0]
        with builder.on(devices[0]):
            while left > 1:
                above = -(-left // SCAN_TILE)
                added = builder.buffer(f"total{above}_0", DTYPE, above)
                uses = [added.write, total.read]
                builder.kernel(tile_sums, uses, [ScalarArgument.u32(left)])
                total, left = added, above
        sums = slots[1][2]
        with builder.on(devices[1]):
            carry = builder.buffer("carry1", DTYPE, 1)
            builder.copy(total, carry)
            uses = [sums.read_write, sums.read_write, carry.read]
            builder.kernel(add, uses, [ScalarArgument.u32(1)])
    for number, device in enumerate(devices):
        x, out, sums, bases, count = slots[number]
        with builder.on(device):
            uses = [bases.write, sums.read]
            builder.kernel(sums_scan, uses, [ScalarArgument.u32(tiles[number])])
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
