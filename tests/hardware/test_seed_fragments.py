"""The fragment seed's tests again, on devices that run what is launched.

Kernels give what numpy does, launches have the seed's buffers and the geometry that the
device was compiled for, and nothing is left on it.
"""

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.artifact import KernelSource, ScalarArgument
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.planned import CompileLaunch
from accy_async.backends import Backend, BufferBinding
from accy_async.backends.launch import LaunchRequest
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    LaunchArgumentMismatch,
    ReadBufferDestinationTooSmall,
)
from accy_async.fragment import LoadedFragment, load_fragment
from accy_async.session import open_session
from accy_async.tuning.launches.candidates import LaunchCandidateBenchmarkOptions
from tests.hardware.kinds import Hardware
from tests.seeds import test_fragment_executor as seed
from tests.seeds.test_fragment_executor import LHS, ONES, RHS, TWOS

pytestmark = pytest.mark.anyio

u32, f32 = ScalarArgument.u32, ScalarArgument.f32


async def launched(
    fragment: LoadedFragment, inputs: list[np.ndarray], out: np.ndarray
) -> int | None:
    """Launch and read back; returns the count buffer's handle, where there is one."""
    async with await fragment.prepare_invocation_bindings(inputs) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        await fragment.read_invocation_output(bindings, 0, out)
        counts = bindings.element_count_bindings
        return counts[0].handle.id if counts else None


async def test_dot_general_without_element_count_bindings(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    """Of three buffers and no scalar, in blocks as the device was compiled for."""
    fragment = await seed.loaded(backend, seed.product_module("product"))
    lhs, rhs = np.random.default_rng(1).integers(-9, 9, (2, 16, 16)).astype(np.float32)
    out = np.empty((16, 16), np.float32)
    assert await launched(fragment, [lhs, rhs], out) is None
    np.testing.assert_array_equal(out, lhs @ rhs)
    (launch,) = launches
    assert len(launch.buffers) == 3
    assert launch.scalars == ()
    assert launch.geometry == fragment.launch_resource_candidate(0, 0).geometry
    (columns, rows, _), (x, y, _) = launch.geometry.grid, launch.geometry.threadgroup
    assert columns * x == rows * y == 16
    await fragment.aclose()


async def test_dot_general_of_other_extents(
    hardware: Hardware, backend: Backend
) -> None:
    module = seed.product_module("product", "f32[2,3]", "f32[3,2]")
    fragment = await seed.loaded(backend, module)
    summary = fragment.kernel_summary(0)
    assert summary.artifact_format is hardware.format
    assert summary.compile_launch is CompileLaunch.DOT_GENERAL
    lhs = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    rhs = np.arange(7, 13, dtype=np.float32).reshape(3, 2)
    assert (await fragment(lhs, rhs)).tolist() == [[58.0, 64.0], [139.0, 154.0]]
    await fragment.aclose()


async def test_reduction_with_device_count_binding(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    fragment = await seed.loaded(backend, seed.reduction_module("reduction"))
    values = np.arange(256, dtype=np.float32)
    out = np.empty((), np.float32)
    count = await launched(fragment, [values], out)
    assert out == values.sum()
    (launch,) = launches
    assert launch.scalars == ()
    assert launch.geometry == fragment.launch_resource_candidate(0, 0).geometry
    assert launch.geometry.grid == (1, 1, 1)
    assert len(launch.buffers) == 3
    assert launch.buffers[2].handle.id == count
    assert str(launch.buffers[2].access) == "read_only"
    await fragment.aclose()


async def test_device_count_kernels_with_count_buffer(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    fragment = await seed.loaded(backend, seed.add_module("add"))
    out = np.empty(8, np.float32)
    count = await launched(fragment, [LHS, RHS], out)
    np.testing.assert_array_equal(out, LHS + RHS)
    (launch,) = launches
    assert len(launch.buffers) == 4
    assert launch.scalars == ()
    assert launch.geometry == fragment.launch_resource_candidate(0, 0).geometry
    assert launch.buffers[3].handle.id == count
    assert str(launch.buffers[3].access) == "read_only"
    await fragment.aclose()


async def test_a_missing_device_count_buffer_is_refused(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    fragment = await seed.loaded(backend, seed.add_module("add"))
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        without_count = bindings.buffers_for_kernel(0)[:-1]
        with pytest.raises(LaunchArgumentMismatch):
            fragment.launch_kernel_with_arguments(0, without_count)
    assert launches == []
    await fragment.aclose()


async def test_fused_kernels_and_constants(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    fragment = await seed.loaded(backend, seed.fused_module("fused"))
    out = np.empty(8, np.float32)
    await launched(fragment, [LHS, RHS, TWOS], out)
    np.testing.assert_array_equal(out, (LHS + RHS) * TWOS)
    assert len(launches) == 1
    accesses = [str(one.access) for one in launches[0].buffers]
    assert accesses == ["write_only", *["read_only"] * 4]
    await fragment.aclose()
    fragment = await seed.loaded(backend, seed.constant_add_module("constant"))
    ones = np.ones(64, np.float32)
    given = np.cos(np.arange(64, dtype=np.float32)) + ones
    np.testing.assert_array_equal(await fragment(ones), given)
    await fragment.aclose()


async def test_i1_outputs_are_single_bytes(backend: Backend) -> None:
    builder, f = seed.begin("flags", "f32[8]", "f32[8]")
    module = seed.end(builder, f, f.compare(f.parameters[0], f.parameters[1], "gt"))
    fragment = await seed.loaded(backend, module)
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        flags = bytearray(b"\xaa" * 8)
        await fragment.read_invocation_output(bindings, 0, flags)
        assert list(flags) == (LHS > RHS).astype(int).tolist()
    await fragment.aclose()


async def test_a_kernel_of_the_library_with_scalars_of_the_run(
    hardware: Hardware, backend: Backend
) -> None:
    target = "accy.kernel.axpy"
    fragment = await seed.loaded(
        backend,
        seed.call_module("axpy", target),
        kernel_call_registry=library_registry(hardware.format, targets=[target]),
    )
    summary = fragment.kernel_summary(0)
    assert summary.source is KernelSource.KERNEL_CALL
    assert summary.runtime_scalar_argument_count == 2
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        graph = fragment.create_launch_graph_plan(
            runtime_scalars={0: (u32(8), f32(2.0))}
        )
        for _ in range(3):  # submitted by its nodes, then recorded
            fragment.submit_invocation_with_graph(bindings, graph)
            await fragment.complete_invocation_graph(graph)
        output = await fragment.read_invocation_output(bindings, 0)
        np.testing.assert_array_equal(output, 2 * LHS + RHS)
    await fragment.aclose()


async def test_a_kernel_launched_with_arguments_of_the_callers(
    hardware: Hardware, backend: Backend
) -> None:
    target = "accy.kernel.add"
    fragment = await seed.loaded(
        backend,
        seed.call_module("add", target),
        kernel_call_registry=library_registry(hardware.format, targets=[target]),
    )
    handles = [backend.allocate_buffer(32) for _ in range(3)]
    for handle, values in zip(handles[1:], (LHS, RHS), strict=True):
        backend.write_buffer(handle, values)
    accesses = ("write_only", "read_only", "read_only")
    buffers = [
        BufferBinding(handle=handle, access=access)
        for handle, access in zip(handles, accesses, strict=True)
    ]
    fragment.launch_kernel_with_arguments(0, buffers, [u32(8)])
    out = np.zeros(8, np.float32)
    backend.read_buffer(handles[0], out)
    await backend.wait_default_stream()
    np.testing.assert_array_equal(out, LHS + RHS)
    for handle in handles:
        backend.destroy(handle)
    await fragment.aclose()


async def test_outputs_are_read_into_what_has_room_for_them(backend: Backend) -> None:
    fragment = await seed.loaded(backend, seed.add_module("add"))
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        out = np.zeros(8, np.float32)
        await fragment.read_invocation_output(bindings, 0, out)
        assert out.tolist() == [3.0] * 8
        with pytest.raises(InvalidArtifact):
            await fragment.read_invocation_output(bindings, 1, out)
        with pytest.raises(ReadBufferDestinationTooSmall):
            await fragment.read_invocation_output(bindings, 0, bytearray(4))
    await fragment.aclose()


async def test_a_kernel_that_does_not_load_takes_the_others_with_it(
    hardware: Hardware, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    two = await seed.compiled(backend, seed.two_kernel_module("two"))
    load, loads = backend._load, 0

    def loads_one(artifact: KernelArtifact) -> object:
        nonlocal loads
        loads += 1
        if loads > 1:
            artifact = attrs.evolve(artifact, payload=hardware.no_kernel)
        return load(artifact)

    monkeypatch.setattr(backend, "_load", loads_one)
    with pytest.raises(AccyError, match=hardware.refusal):
        await load_fragment(backend, two)
    assert loads == 2


async def test_a_call_in_a_session_again_and_again(backend: Backend) -> None:
    """From the second on by its recorded commands, on numpy's arrays and our own."""
    async with (
        open_session(backend) as session,
        await session.load_fragment(lambda x, y: x * y + x) as fragment,
    ):
        for _ in range(3):
            np.testing.assert_array_equal(await fragment(LHS, RHS), LHS * RHS + LHS)
        x, y = await session.upload(LHS), await session.upload(RHS)
        once = await session.download(await fragment(x, y))
        np.testing.assert_array_equal(once, LHS * RHS + LHS)


async def test_candidates_are_measured_by_the_devices_clock(backend: Backend) -> None:
    fragment = await seed.loaded(backend, seed.add_module("add"))
    options = LaunchCandidateBenchmarkOptions(warmup=0, samples=2)
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        records = await fragment.measure_invocation_launch_candidates(
            0, bindings, options
        )
    assert records
    assert all(record.median_ns > 0 for record in records)
    assert len({record.geometry for record in records}) == len(records)
    await fragment.aclose()
