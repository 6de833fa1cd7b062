"""Sessions, graphs and pipelines on a Vulkan device: exact, and leaving nothing."""

from __future__ import annotations

import threading
from typing import Any

import anyio
import attrs
import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends import BufferBinding
from accy_async.backends.catalogue import open_backend
from accy_async.backends.vulkan import VulkanBackend
from accy_async.compiler.emit.text import compile_spirv
from accy_async.compiler.form import KernelBuilder
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import BackendUnavailable, DeviceError, InvalidValue
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.pipeline import add_pipeline
from accy_async.session import open_session
from accy_async.tuning.measuring import (
    Candidate,
    MeasureOptions,
    TimeSource,
    measure,
)
from accy_async.tuning.race import RaceRules
from tests.conformance.devices import VulkanDevice
from tests.graphs.programs import Program
from tests.graphs.starting import start_program
from tests.harness.scanning import scan_in
from tests.vulkan import harness
from tests.vulkan.gates import hold
from tests.vulkan.harness import join_threads
from tests.vulkan.sessions import kernels

pytestmark = pytest.mark.vulkan

SPIRV = ArtifactFormat.VULKAN_SPIRV
LENGTH = 5000


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("seed", range(3))
def test_random_graphs_leave_what_their_models_leave(loop: str, seed: int) -> None:
    programs = [
        Program(100 * seed + length, length, kernels()) for length in (5, 20, 40, 80)
    ]
    expected = [program.expected() for program in programs]
    backend = VulkanBackend(validation=harness.has_validation())

    async def main() -> None:
        async with open_session(backend) as session:
            runs = [start_program(session, program) for program in programs]
            with anyio.fail_after(100):
                for run in runs:
                    await run
        assert not any(backend.live_objects().values())

    anyio.run(main, backend=loop)
    for program, values in zip(programs, expected, strict=True):
        program.check(values)
    backend.close()
    join_threads()
    assert backend.validation_messages == ()


@pytest.mark.anyio
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32], ids=str)
async def test_pipeline_scans_to_the_bit(dtype: DType) -> None:
    values = np.random.default_rng(1).normal(scale=1000, size=LENGTH)
    data = values.astype(dtype.numpy)
    async with open_session("vulkan") as session:
        scanned = await scan_in(session, data, times=5)
    assert not any(session.live_objects().values())
    np.testing.assert_array_equal(scanned, reference_scan(data))


def chain() -> LaunchGraphBuilder:
    """A scan between copies of the host's."""
    g = LaunchGraphBuilder()
    values, sums = (g.buffer(name, DType.F32, LENGTH) for name in ("values", "sums"))
    g.copy_in(g.host("given", DType.F32, LENGTH), values)
    n = ScalarArgument.u32(LENGTH)
    registry = library_registry(SPIRV)
    add_pipeline(g, scan_pipeline(), registry, SPIRV, [values], [sums], [n])
    g.copy_out(sums, g.host("answer", DType.F32, LENGTH))
    return g


@pytest.mark.anyio
async def test_cancelled_run_leaves_nothing_and_the_next_is_exact() -> None:
    """Behind a gate that opens only later, so that it is in flight for certain."""
    plan = chain().build()
    given = np.random.default_rng(3).normal(size=LENGTH).astype(np.float32)
    backend = VulkanBackend(validation=harness.has_validation())
    answer = np.zeros(LENGTH, np.float32)
    async with open_session(backend) as session:
        values, sums = (session.allocate((LENGTH,), DType.F32) for _ in range(2))
        bindings = {"values": values, "sums": sums, "given": given, "answer": answer}
        for _ in range(3):
            stream = backend.create_stream()
            opening = threading.Timer(0.3, hold(backend, stream))
            opening.start()
            with anyio.move_on_after(0.05) as scope:
                options = LaunchOptions(stream=stream)
                await session.run(plan, bindings, options)
            opening.join()
            assert scope.cancelled_caught
            backend.destroy(stream)
        await backend.wait_device()
        await session.run(plan, bindings)
        np.testing.assert_array_equal(answer, reference_scan(given))
        assert len(backend.reaper) == 0
    assert not any(backend.live_objects().values())
    backend.close()
    join_threads()
    assert backend._device.made() == {}
    assert backend.validation_messages == ()


@pytest.mark.anyio
async def test_failed_assertion_of_a_kernel_in_the_form_is_the_runs_error() -> None:
    builder = KernelBuilder("positive", threadgroup=(64, 1, 1))
    words = builder.buffer("words", DType.I32, "read_only")
    with builder.region():
        index = builder.thread.cast(DType.U64)
        builder.require(words[index] > 0, 23)
    kernel = builder.build()
    device = VulkanDevice()
    artifact = KernelArtifact(
        kernel_name="positive",
        format=SPIRV,
        argument_count=1,
        scalar_argument_count=0,
        payload=compile_spirv(kernel),
    )
    backend = device.backend
    good, bad = (backend.allocate_buffer(256) for _ in range(2))
    backend.fill_buffer(good, b"\1\0\0\0")
    backend.fill_buffer(bad, b"\0")
    for buffer in (good, bad):
        request = device.request(artifact, [buffer], node="check")
        geometry = type(request.geometry)(grid=(1, 1, 1), threadgroup=(64, 1, 1))
        backend.launch(attrs.evolve(request, geometry=geometry))
        if buffer is good:
            await backend.wait_default_stream()
    with pytest.raises(DeviceError) as caught:
        await backend.wait_default_stream()
    assert (caught.value.code, caught.value.kernel) == (23, "positive")
    device.close()


def test_devices_are_opened_by_number_and_name() -> None:
    best = open_backend("vulkan")
    for name in (best.device, f"vulkan:{best.capabilities.identity.name}"):
        backend = open_backend(name)
        assert backend.device == best.device
        backend.close()
    best.close()
    with pytest.raises(InvalidValue, match="a number or name of 0: "):
        open_backend("vulkan:abacus")


def test_lavapipe_goes_by_its_name_and_is_never_taken_by_auto() -> None:
    try:
        backend = open_backend("vulkan:lavapipe")
    except InvalidValue:
        pytest.skip("lavapipe is not installed")
    assert backend.capabilities.identity.is_software
    backend.close()
    best = open_backend("vulkan")
    is_software = best.capabilities.identity.is_software
    best.close()
    if is_software:
        with pytest.raises(BackendUnavailable, match="no hardware device"):
            VulkanBackend(hardware_only=True)
    else:
        VulkanBackend(hardware_only=True).close()


@pytest.mark.parametrize("blocks", [65535, 65536, 2**20])
@pytest.mark.anyio
async def test_block_counts_up_to_the_limit_run_and_beyond_are_refused(
    blocks: int,
) -> None:
    """C81: never a wrong id without an error."""
    device = VulkanDevice()
    limit = device.backend.capabilities.max_grid[0]
    buffer = device.backend.allocate_buffer(4 * blocks)
    device.backend.fill_buffer(buffer, b"\0")
    request = device.request("count", [buffer], grid=(blocks, 1, 1))
    if blocks > limit:
        with pytest.raises(Exception, match=f"grid x is {blocks}, .* {limit}"):
            device.backend.launch(request)
    else:
        device.backend.launch(request)
        assert await device.read(buffer) == [1] * blocks
    device.close()


@pytest.mark.anyio
async def test_batches_of_launches_are_measured_as_recorded_commands(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, made = VulkanDevice(), []
    opened = VulkanBackend._open_graph

    def counting(self: VulkanBackend, *arguments: Any) -> Any:
        made.append(arguments)
        return opened(self, *arguments)

    monkeypatch.setattr(VulkanBackend, "_open_graph", counting)
    buffers = [device.backend.allocate_buffer(4 * 64) for _ in range(2)]
    device.backend.fill_buffer(buffers[1], b"\1")
    request = device.request("copy", buffers, grid=(64, 1, 1))
    accesses = ("write_only", "read_only")
    bindings = tuple(
        BufferBinding(handle=buffer, access=access)
        for buffer, access in zip(buffers, accesses, strict=True)
    )
    candidates = [
        Candidate(name=name, request=attrs.evolve(request, buffers=bindings))
        for name in "ab"
    ]
    options = MeasureOptions(
        rules=RaceRules(min_rounds=4, max_rounds=5, repeats=0), least_sample_ns=1e6
    )
    outcome = await measure(device.backend, candidates, options)
    assert outcome.source is TimeSource.DEVICE
    assert made
    assert outcome.launches > 1
    assert device.new_objects() == {"buffers": 2}
    device.close()
