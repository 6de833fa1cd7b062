"""Results are checked and operands restored: with kernels that really run."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from itertools import permutations
from typing import Any

import anyio
import anyio.lowlevel
import numpy as np
import pytest

from accy_async.artifact import KernelArtifact
from accy_async.backends import Backend, BufferHandle
from accy_async.backends.cpu import CpuBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.tuning import (
    CandidateStatus,
    MeasureOptions,
    RaceRules,
    ResultCheck,
    measure,
)
from accy_async.tuning.measuring import Candidate
from accy_async.tuning.measuring.workspace import first_wrong
from tests.cpu import native
from tests.hardware.kinds import CUDA, VULKAN, Hardware, on
from tests.tuning.devices import launch_of, upload

pytestmark = pytest.mark.anyio

N = 1000
QUICK = MeasureOptions(
    rules=RaceRules(min_rounds=4, max_rounds=5, repeats=0),
    warmup=2,
    least_sample_ns=1.0,
)


class OpenBackend(CpuBackend):
    """A CPU backend that remembers the memory of all its small buffers."""

    def __init__(self) -> None:
        self.memories: list[Any] = []
        super().__init__()

    def _allocate(self, byte_size: int, alignment: int) -> object:
        memory = super()._allocate(byte_size, alignment)
        if byte_size == 8:
            self.memories.append(memory)
        return memory


class Device:
    """A device, and the kernels that its tests have."""

    def __init__(
        self, backend: Backend, artifact: Callable[[str], KernelArtifact]
    ) -> None:
        self.backend = backend
        self._artifact = artifact
        self._loaded: dict[str, Any] = {}

    def candidate(
        self,
        name: str,
        kernel: str,
        buffers: list[tuple[BufferHandle, str]],
        grid: int,
        scalars: tuple[ScalarArgument, ...] = (),
    ) -> Candidate:
        artifact = self._artifact(kernel)
        if kernel not in self._loaded:
            self._loaded[kernel] = self.backend.load_artifact(artifact)
        return launch_of(name, artifact, self._loaded[kernel], buffers, grid, scalars)

    async def upload(self, values: np.ndarray) -> BufferHandle:
        """A buffer that holds them by now: candidates run on another stream."""
        buffer = upload(self.backend, values)
        await self.backend.wait_default_stream()
        return buffer

    async def read(self, buffer: BufferHandle) -> np.ndarray:
        out = np.empty(buffer.byte_size // 4, np.uint32)
        self.backend.read_buffer(buffer, out)
        await self.backend.wait_default_stream()
        return out


CPU = pytest.param(None, id="cpu")
KINDS = [CPU, *on(CUDA, VULKAN)]


@pytest.fixture(params=KINDS)
def device(request: pytest.FixtureRequest) -> Iterator[Device]:
    hardware: Hardware | None = request.param
    if hardware is None:
        backend: Backend = CpuBackend()
        yield Device(backend, native.artifact)
        backend.close()
        return
    if reason := hardware.missing():
        pytest.skip(reason)
    backend = hardware.open()
    yield Device(backend, hardware.artifact)
    backend.close()
    hardware.join_threads(backend)
    hardware.check_closed(backend)


async def test_operands_that_are_updated_have_seen_the_kernel_exactly_once(
    device: Device,
) -> None:
    """C09: ``x += 1`` for x = 0..999, by four candidates; then the tuned call."""
    x = await device.upload(np.arange(N, dtype=np.uint32))
    given = [
        device.candidate(f"c{number}", "count", [(x, "read_write")], N)
        for number in range(4)
    ]
    live = device.backend.live_objects()
    outcome = await measure(device.backend, given, QUICK)
    assert {one.status for one in outcome.candidates} == {CandidateStatus.MEASURED}
    np.testing.assert_array_equal(await device.read(x), np.arange(N))
    winner = next(one for one in given if one.name == outcome.winner)
    device.backend.launch(winner.request)
    np.testing.assert_array_equal(await device.read(x), np.arange(1, N + 1))
    assert device.backend.live_objects() == live


async def test_cancelled_half_way_they_are_as_they_were(device: Device) -> None:
    """C09: nothing of the caller's is written but by the caller."""
    x = await device.upload(np.arange(N, dtype=np.uint32))
    given = [
        device.candidate(f"c{number}", "count", [(x, "read_write")], N)
        for number in range(4)
    ]
    live = device.backend.live_objects()
    calls = 0
    with anyio.CancelScope() as scope:

        async def pace(_: float) -> None:
            nonlocal calls
            calls += 1
            if calls == 9:
                scope.cancel()
            await anyio.lowlevel.checkpoint()

        outcome = await measure(device.backend, given, QUICK, pace=pace)
        pytest.fail(f"not cancelled, after {calls} paces: {outcome.candidates}")
    assert scope.cancelled_caught
    np.testing.assert_array_equal(await device.read(x), np.arange(N))
    await device.backend.wait_device()
    assert device.backend.live_objects() == live


async def test_an_argument_that_is_passed_twice_stays_one(device: Device) -> None:
    """``w[b] = r[b]`` with both the same: not two private buffers, but one."""
    x = await device.upload(np.arange(N, dtype=np.uint32))
    both = [(x, "write_only"), (x, "read_only")]
    given = [device.candidate(f"c{number}", "copy", both, N) for number in range(2)]
    check = ResultCheck(reference={0: np.arange(N, dtype=np.uint32).tobytes()})
    options = MeasureOptions(
        rules=QUICK.rules, warmup=0, least_sample_ns=1.0, check=check
    )
    outcome = await measure(device.backend, given, options)
    assert {one.status for one in outcome.candidates} == {CandidateStatus.MEASURED}


@pytest.mark.parametrize("order", list(permutations("PQR")))
async def test_fast_but_wrong_candidates_do_not_win(
    device: Device, order: tuple[str, ...]
) -> None:
    """C11: P writes the first half, Q next to nothing, R all of it; R is right."""
    source = await device.upload(np.arange(N, dtype=np.uint32))
    target = await device.upload(np.arange(N, dtype=np.uint32))
    blocks = {"P": N // 2, "Q": 1, "R": N}
    buffers = [(target, "write_only"), (source, "read_only")]
    given = [device.candidate(name, "copy", buffers, blocks[name]) for name in order]
    check = ResultCheck(
        dtypes=(DType.U32, DType.U32),
        reference={0: np.arange(N, dtype=np.uint32).tobytes()},
    )
    options = MeasureOptions(
        rules=QUICK.rules, warmup=0, least_sample_ns=1.0, check=check
    )
    outcome = await measure(device.backend, given, options)
    assert outcome.winner == "R"
    for name, first in (("P", N // 2), ("Q", 1)):
        wrong = outcome.candidate(name)
        assert wrong.status is CandidateStatus.WRONG_RESULT
        assert f"first in element {first}" in wrong.reason
        assert wrong.median_ns is None


async def test_without_a_reference_the_baseline_is_right(device: Device) -> None:
    source = await device.upload(np.arange(N, dtype=np.uint32))
    target = device.backend.allocate_buffer(4 * N)
    buffers = [(target, "write_only"), (source, "read_only")]
    given = [
        device.candidate("all", "copy", buffers, N),
        device.candidate("half", "copy", buffers, N // 2),
    ]
    outcome = await measure(device.backend, given, QUICK)
    assert outcome.winner == "all"
    assert "differs from the baseline's" in outcome.candidate("half").reason
    unchecked = MeasureOptions(
        rules=QUICK.rules, warmup=0, least_sample_ns=1.0, check=None
    )
    outcome = await measure(device.backend, given, unchecked)
    assert outcome.candidate("half").status is CandidateStatus.MEASURED


@pytest.mark.parametrize("device", [CPU, *on(VULKAN)], indirect=True)
async def test_a_kernel_that_fails_on_the_device_is_rejected(device: Device) -> None:
    target = device.backend.allocate_buffer(4 * N)
    good = device.candidate("good", "fail", [(target, "write_only")], 4, _fail_at(999))
    bad = device.candidate("bad", "fail", [(target, "write_only")], 4, _fail_at(2))
    outcome = await measure(device.backend, [good, bad], QUICK)
    assert outcome.winner == "good"
    assert outcome.candidate("bad").status is CandidateStatus.FAILED


def _fail_at(block: int) -> tuple[ScalarArgument, ...]:
    return ScalarArgument.u64(block), ScalarArgument.i32(7)


async def test_a_kernel_that_waits_for_ever_is_given_up() -> None:
    """It waits at a gate, which the test opens once it was given up."""
    backend = OpenBackend()
    device = Device(backend, native.artifact)
    words = await device.upload(np.array([0, 0], np.uint32))
    fine, hung = (
        device.candidate(
            name, "gate", [(words, "read_write")], 1, (ScalarArgument.u64(block),)
        )
        for name, block in (("fine", 9), ("hung", 0))
    )
    options = MeasureOptions(
        rules=QUICK.rules, warmup=0, least_sample_ns=1.0, time_limit_s=0.1
    )
    live = device.backend.live_objects()
    outcome = await measure(device.backend, [fine, hung], options)
    assert outcome.winner == "fine"
    assert outcome.candidate("hung").status is CandidateStatus.TIMED_OUT
    assert not outcome.is_storable
    assert device.backend.reaper.held()
    for memory in backend.memories:
        ctypes.c_uint32.from_address(memory.address + 4).value = 1
    with anyio.fail_after(60):
        while device.backend.live_objects() != live:
            await anyio.sleep(0.01)
            await device.backend.wait_device()
    device.backend.close()


def test_tolerances_are_the_floats_own() -> None:
    check = ResultCheck(relative=1e-3)

    def raw(values: list[float], dtype: Any = np.float32) -> np.ndarray:
        return np.array(values, dtype).view(np.uint8)

    right = raw([1.0, 2.0, 3.0])
    assert first_wrong(right, right, DType.F32, check) is None
    assert first_wrong(raw([1.0, 2.001, 3.0]), right, DType.F32, check) is None
    assert first_wrong(raw([1.0, 2.01, 3.0]), right, DType.F32, check) == 1
    assert first_wrong(raw([1.0, 2.0, float("nan")]), right, DType.F32, check) == 2
    assert first_wrong(raw([-0.0]), raw([0.0]), DType.F32, check) is None
    poison = np.full(4, 0xFF, np.uint8)
    assert first_wrong(poison, poison, DType.F32, check) is None
    assert first_wrong(poison, raw([1.0]), DType.F32, check) == 0
    infinite = raw([float("inf")])
    assert first_wrong(infinite, infinite, DType.F32, check) is None
    assert first_wrong(infinite, raw([1e30]), DType.F32, check) == 0
    assert first_wrong(raw([1], np.int32), raw([2], np.int32), DType.I32, check) == 0
    assert first_wrong(right, right[:8], None, check) == 8
    bf16 = np.array([0x3F80, 0x4000], np.uint16).view(np.uint8)
    near = np.array([0x3F80, 0x4001], np.uint16).view(np.uint8)
    assert first_wrong(near, bf16, DType.BF16, ResultCheck(relative=1e-2)) is None
    assert first_wrong(near, bf16, DType.BF16, ResultCheck(relative=1e-4)) == 1
