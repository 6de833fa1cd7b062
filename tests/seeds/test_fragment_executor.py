"""The fragment seed's tests of loading, binding, launching and reading, by its names.

Figures are the seed's. What the seed does before (preparing) and beside (tuning) has
files of its own. Only public names are used, as another program would use them.
"""

# ruff: noqa: E501 - the names of the tests are the seed's

from __future__ import annotations

import attrs
import numpy as np
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    BackendKind,
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    KernelCallArtifact,
    KernelCallRegistry,
    KernelSource,
    LaunchReductionKind,
    LaunchTileKind,
    RuntimeCeilDiv,
    ScalarArgument,
    ShapeBounds,
    ShapeDimension,
    ShapeProfile,
    SlotRole,
)
from accy_async.artifact.planned import CompileLaunch
from accy_async.backends import Backend, BufferBinding, RecordingBackend, StreamHandle
from accy_async.backends.catalogue import open_backend
from accy_async.backends.handles import BufferHandle
from accy_async.compiler.kernels.catalogue import library_entries, library_registry
from accy_async.compiler.preparation import prepare
from accy_async.compiler.semantic import (
    Builder,
    FunctionBuilder,
    Module,
    TensorType,
    Value,
)
from accy_async.dtypes import DType
from accy_async.errors import (
    InvalidArtifact,
    LaunchArgumentMismatch,
    ReadBufferDestinationTooSmall,
    RuntimeUnavailable,
)
from accy_async.fragment import (
    CompiledFragment,
    FragmentCompilerOptions,
    FragmentInstrumentation,
    FragmentPhase,
    LoadedFragment,
    compile_fragment,
    load_fragment,
    target_profile,
)

pytestmark = pytest.mark.anyio

LHS = np.array([1.0, 2.0, 3.0, 4.0, -1.5, 8.0, 0.25, 16.0], np.float32)
RHS = np.array([5.0, -2.0, 0.5, 6.0, 2.5, -3.0, 0.75, 4.0], np.float32)
ONES = np.full(8, 1.0, np.float32)
TWOS = np.full(8, 2.0, np.float32)
F32_8 = TensorType(DType.F32, (8,))
SOURCE = ".visible .entry accy_custom_scale() { ret; }"
u32, f32 = ScalarArgument.u32, ScalarArgument.f32


class Remembering(RecordingBackend):
    """Keeps what was written last, and read last."""

    last_write = b""
    last_read: BufferHandle | None = None

    def write_buffer(
        self,
        buffer: BufferHandle,
        data: object,
        *,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: object = None,
    ) -> int:
        self.last_write = bytes(memoryview(data))  # type: ignore[arg-type]
        return super().write_buffer(
            buffer, data, offset_bytes=offset_bytes, stream=stream
        )

    def read_buffer(
        self,
        buffer: BufferHandle,
        out: object,
        *,
        byte_size: int | None = None,
        offset_bytes: int = 0,
        stream: StreamHandle | None = None,
        guard: object = None,
    ) -> int:
        self.last_read = buffer
        return super().read_buffer(
            buffer, out, byte_size=byte_size, offset_bytes=offset_bytes, stream=stream
        )


# Programs, as the seed's fixtures


def begin(name: str, *types: str) -> tuple[Builder, FunctionBuilder]:
    builder = Builder("module")
    return builder, builder.begin_function(name, [TensorType.parse(t) for t in types])


def end(builder: Builder, f: FunctionBuilder, *results: Value) -> Module:
    f.return_(results)
    f.finish()
    return builder.finish()


def add_module(name: str) -> Module:
    builder, f = begin(name, "f32[8]", "f32[8]")
    return end(builder, f, f.add(*f.parameters))


def product_module(
    name: str, lhs: str = "f32[16,16]", rhs: str = "f32[16,16]"
) -> Module:
    builder, f = begin(name, lhs, rhs)
    return end(builder, f, f.matmul(*f.parameters))


def reduction_module(name: str) -> Module:
    builder, f = begin(name, "f32[256]")
    return end(builder, f, f.reduce(f.parameters[0], "sum", [0]))


def constant_add_module(name: str) -> Module:
    builder, f = begin(name, "f32[64]")
    constant = f.constant(np.cos(np.arange(64, dtype=np.float32)))
    return end(builder, f, f.add(f.parameters[0], constant))


def fused_module(name: str) -> Module:
    builder, f = begin(name, "f32[8]", "f32[8]", "f32[8]")
    a, b, c = f.parameters
    return end(builder, f, f.mul(f.add(a, b), c))


def call_module(name: str, target: str = "accy.custom.scale") -> Module:
    builder, f = begin(name, "f32[8]", "f32[8]")
    (called,) = f.kernel_call(f.parameters, [F32_8], target=target)
    return end(builder, f, called)


def two_kernel_module(name: str) -> Module:
    """Two sums of other shapes; what the seed keeps apart, ours makes one kernel of."""
    builder, f = begin(name, "f32[8]", "f32[16]")
    a, b = f.parameters
    return end(builder, f, f.add(a, a), f.add(b, b))


def scale_registry(**changes: object) -> KernelCallRegistry:
    entry = KernelCallArtifact(
        target="accy.custom.scale",
        version=1,
        format=ArtifactFormat.CUDA_PTX,
        entry_name="accy_custom_scale",
        argument_count=6,
        required_dtypes=frozenset({DType.F32}),
        payload=SOURCE,
        launch=DerivedLaunch(
            grid=(
                RuntimeCeilDiv(argument_index=0, divisor=8),
                RuntimeCeilDiv(argument_index=1, divisor=4),
                Fixed(1),
            ),
            threadgroup=(8, 4, 1),
            dynamic_shared_memory_bytes=1024,
        ),
        runtime_scalar_argument_count=2,
        static_arguments=(u32(7),),
    )
    return KernelCallRegistry([attrs.evolve(entry, **changes)])  # type: ignore[arg-type]


async def compiled(
    backend: Backend, module: Module, **options: object
) -> CompiledFragment:
    chosen = attrs.evolve(FragmentCompilerOptions(), **options)  # type: ignore[arg-type]
    return await compile_fragment(backend, module, options=chosen, cache=False)


async def loaded(backend: Backend, module: Module, **options: object) -> LoadedFragment:
    chosen = attrs.evolve(FragmentCompilerOptions(), **options)  # type: ignore[arg-type]
    return await load_fragment(
        backend,
        await compiled(backend, module, **options),
        instrumentation=chosen.instrumentation,
        launch_tuning_artifact=chosen.launch_tuning_artifact,
    )


def buffer_for(
    backend: RecordingBackend, byte_size: int, access: str = "read_write"
) -> BufferBinding:
    return BufferBinding(handle=backend.allocate_buffer(byte_size), access=access)


# Loading


async def test_loaded_fragment_consumes_compiled_fragment_and_partial_backend_loads_on_failure() -> (
    None
):
    backend = RecordingBackend(fail_load_after_count=1)
    two = await compiled(backend, two_kernel_module("loaded_fragment_failed_load"))
    assert two.kernel_count == 2
    with pytest.raises(RuntimeUnavailable):
        await load_fragment(backend, two)
    assert backend.load_count == 1
    assert backend.destroy_count == 1


async def test_choir_executable_plan_loads_artifacts_and_launches_cuda_device_count_kernels() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(backend, add_module("choir_cuda_executable_add"))
    bindings = await fragment.prepare_invocation_bindings([ONES, TWOS])
    fragment.submit_invocation(bindings)
    assert fragment.loaded_kernel_count == 1
    assert backend.load_count == 1
    assert backend.launch_count == 1
    launch = backend.launches[0]
    assert len(launch.buffer_ids) == 4
    assert launch.scalars == ()
    assert launch.grid[0] == 1
    assert launch.threadgroup[0] == 32
    out, lhs, rhs, count = launch.buffer_ids
    slots = bindings.slot_bindings
    wanted = [*fragment.plan.output_slot_ids, *fragment.plan.input_slot_ids]
    assert [out, lhs, rhs] == [slots[slot].handle.id for slot in wanted]
    assert count == bindings.element_count_bindings[0].handle.id
    accesses = [str(access) for access in launch.buffer_access]
    assert accesses == ["write_only", "read_only", "read_only", "read_only"]
    await bindings.aclose()
    await fragment.aclose()


async def test_choir_executable_plan_destroys_loaded_artifacts_on_deinit() -> None:
    backend = RecordingBackend()
    fragment = await loaded(backend, add_module("choir_executable_destroy_loaded"))
    assert backend.live_objects()["artifacts"] == 1
    await fragment.aclose()
    assert backend.destroy_count == 1
    assert backend.live_objects()["artifacts"] == 0


# On this CPU


async def check_prepared_kernels(
    format: ArtifactFormat,
) -> None:
    backend = open_backend("cpu")
    fragment = await loaded(
        backend, add_module("choir_cpu_executable_add"), artifact_format=format
    )
    summary = fragment.kernel_summary(0)
    assert summary.artifact_format is format
    assert summary.source is KernelSource.TENSOR
    assert fragment.output_count == 1
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        output = await fragment.read_invocation_output(bindings, 0)
        np.testing.assert_array_equal(output, LHS + RHS)
    await fragment.aclose()
    backend.close()


async def test_choir_executable_plan_runs_native_cpu_machine_code_prepared_kernels() -> (
    None
):
    await check_prepared_kernels(ArtifactFormat.CPU_MACHINE_CODE)


async def test_choir_executable_fragment_runs_native_cpu_object_prepared_kernels() -> (
    None
):
    await check_prepared_kernels(ArtifactFormat.CPU_OBJECT)


async def check_dot_general(
    format: ArtifactFormat,
) -> None:
    backend = open_backend("cpu")
    module = product_module("choir_cpu_dot_general", "f32[2,3]", "f32[3,2]")
    fragment = await loaded(backend, module, artifact_format=format)
    summary = fragment.kernel_summary(0)
    assert summary.artifact_format is format
    assert summary.source is KernelSource.TENSOR
    assert summary.compile_launch is CompileLaunch.DOT_GENERAL
    assert fragment.output_count == 1
    lhs = np.arange(1, 7, dtype=np.float32).reshape(2, 3)
    rhs = np.arange(7, 13, dtype=np.float32).reshape(3, 2)
    output = await fragment(lhs, rhs)
    assert output.tolist() == [[58.0, 64.0], [139.0, 154.0]]
    await fragment.aclose()
    backend.close()


async def test_choir_executable_fragment_runs_dot_general_native_cpu_machine_code() -> (
    None
):
    await check_dot_general(ArtifactFormat.CPU_MACHINE_CODE)


async def test_choir_executable_fragment_runs_dot_general_native_cpu_object() -> None:
    await check_dot_general(ArtifactFormat.CPU_OBJECT)


async def test_choir_executable_fragment_materializes_i1_outputs_as_single_bytes_on_native_cpu() -> (
    None
):
    backend = open_backend("cpu")
    builder, f = begin("choir_cpu_bool_byte_flags", "f32[8]", "f32[8]")
    module = end(builder, f, f.compare(f.parameters[0], f.parameters[1], "gt"))
    fragment = await loaded(backend, module, artifact_format=ArtifactFormat.CPU_OBJECT)
    lhs = np.array([1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 3.0, 0.0], np.float32)
    rhs = np.array([0.0] * 7 + [1.0], np.float32)
    async with await fragment.prepare_invocation_bindings([lhs, rhs]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        flags = bytearray(b"\xaa" * 8)
        await fragment.read_invocation_output(bindings, 0, flags)
        assert list(flags) == [1, 0, 1, 0, 1, 0, 1, 0]
    await fragment.aclose()
    backend.close()


async def test_choir_executable_fragment_runs_kernel_library_native_cpu_object() -> (
    None
):
    """Ours takes one scalar, the count, and works on 256 elements a block."""
    backend = open_backend("cpu")
    target = "accy.kernel.add"
    registry = KernelCallRegistry(
        library_entries(ArtifactFormat.CPU_OBJECT, targets=[target])
    )
    diagnostic = "accy/executable/kernel-library-native-cpu-object"
    fragment = await loaded(
        backend,
        call_module("kernel_library", target),
        artifact_format=ArtifactFormat.CPU_OBJECT,
        kernel_call_registry=registry,
        authored_kernel_diagnostic_id=diagnostic,
    )
    summary = fragment.kernel_summary(0)
    assert fragment.kernel_count == 1
    assert summary.artifact_format is ArtifactFormat.CPU_OBJECT
    assert summary.compile_argument_count == 4
    assert summary.diagnostic_id == diagnostic
    assert summary.fixed_threadgroup
    assert summary.launch_geometry.grid[0] == 1
    lhs = np.array([1.0, 2.0, -3.0, 4.5, 8.0, -1.0, 0.25, 16.0], np.float32)
    rhs = np.array([4.0, -2.0, 6.0, 0.5, -3.0, 5.0, 0.75, -8.0], np.float32)
    handles = [backend.allocate_buffer(32) for _ in range(3)]
    backend.write_buffer(handles[1], lhs)
    backend.write_buffer(handles[2], rhs)
    buffers = [
        BufferBinding(handle=handle, access=access)
        for handle, access in zip(
            handles, ("write_only", "read_only", "read_only"), strict=True
        )
    ]
    fragment.launch_kernel_with_arguments(0, buffers, [u32(8)])
    out = np.zeros(8, np.float32)
    backend.read_buffer(handles[0], out)
    await backend.wait_default_stream()
    assert out.tolist() == [5.0, 0.0, 3.0, 5.0, 5.0, 4.0, 1.0, 8.0]
    await fragment.aclose()
    backend.close()


async def check_kernel_call(
    format: ArtifactFormat,
) -> None:
    """Ours takes two runtime scalars, the count too, and none that are static."""
    backend = open_backend("cpu")
    target = "accy.kernel.axpy"
    fragment = await loaded(
        backend,
        call_module("choir_cpu_kernel_call_runtime_scalar_axpy", target),
        artifact_format=format,
        kernel_call_registry=library_registry(format, targets=[target]),
    )
    summary = fragment.kernel_summary(0)
    assert summary.artifact_format is format
    assert summary.source is KernelSource.KERNEL_CALL
    assert summary.compile_argument_count == 5
    assert summary.runtime_scalar_argument_count == 2
    assert fragment.output_count == 1
    x = np.array([1.0, 2.0, -3.0, 4.0, 0.5, -1.5, 8.0, 16.0], np.float32)
    y = np.array([10.0, -4.0, 1.0, 2.0, 3.0, 6.0, -8.0, 0.0], np.float32)
    async with await fragment.prepare_invocation_bindings([x, y]) as bindings:
        graph = fragment.create_launch_graph_plan(
            runtime_scalars={0: (u32(8), f32(2.0))}
        )
        fragment.submit_invocation_with_graph(bindings, graph)
        await fragment.complete_invocation_graph(graph)
        output = await fragment.read_invocation_output(bindings, 0)
        assert output.tolist() == [12.0, 0.0, -5.0, 10.0, 4.0, 3.0, 8.0, 32.0]
    await fragment.aclose()
    backend.close()


async def test_choir_executable_fragment_runs_kernel_call_native_cpu_machine_code_with_runtime_scalar() -> (
    None
):
    await check_kernel_call(ArtifactFormat.CPU_MACHINE_CODE)


async def test_choir_executable_fragment_runs_kernel_call_native_cpu_object_with_runtime_scalar() -> (
    None
):
    await check_kernel_call(ArtifactFormat.CPU_OBJECT)


# Kernel calls


async def test_choir_executable_fragment_launches_registered_kernel_call_with_full_launch_geometry() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend,
        call_module("choir_cuda_executable_kernel_call_geometry"),
        kernel_call_registry=scale_registry(
            argument_count=5,
            launch=FixedLaunch(
                grid=(2, 3, 1),
                threadgroup=(8, 2, 1),
                dynamic_shared_memory_bytes=2048,
            ),
            runtime_scalar_argument_count=0,
            element_count_argument="scalar_u32",
        ),
    )
    assert fragment.kernel_count == 1
    assert fragment.planned_kernel(0).source is KernelSource.KERNEL_CALL
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings)
    assert backend.launch_count == 1
    launch = backend.launches[0]
    assert launch.grid[:2] == (2, 3)
    assert launch.threadgroup[:2] == (8, 2)
    assert launch.dynamic_shared_memory_bytes == 2048
    assert launch.scalars == (u32(8), u32(7))
    await fragment.aclose()


async def test_choir_executable_fragment_launches_registered_kernel_call_with_runtime_derived_geometry() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend,
        call_module("choir_cuda_executable_kernel_call_derived_geometry"),
        kernel_call_registry=scale_registry(),
    )
    assert fragment.planned_kernel(0).runtime_scalar_argument_count == 2
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings, runtime_scalars=(u32(17), u32(9)))
    check_derived(backend)
    await fragment.aclose()


def check_derived(backend: RecordingBackend) -> None:
    assert backend.launch_count == 1
    launch = backend.launches[0]
    assert launch.grid == (3, 3, 1)
    assert launch.threadgroup == (8, 4, 1)
    assert launch.dynamic_shared_memory_bytes == 1024
    assert launch.scalars == (u32(17), u32(9), u32(7))


async def test_choir_executable_fragment_lets_launch_scalars_override_the_kernel_call_count_default() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend,
        call_module("choir_cuda_executable_kernel_call_count_override"),
        kernel_call_registry=scale_registry(
            argument_count=4,
            launch=DerivedLaunch(
                grid=(RuntimeCeilDiv(argument_index=0, divisor=4), Fixed(1), Fixed(1)),
                threadgroup=(4, 1, 1),
            ),
            runtime_scalar_argument_count=1,
            static_arguments=(),
            shape_family_fingerprint=0xFEED,
            shape_profile=ShapeProfile(
                name="rows",
                fingerprint=0xFEED,
                dimensions=(
                    ShapeDimension(
                        name="n",
                        runtime_scalar_argument_index=0,
                        bounds=ShapeBounds(max=4096),
                    ),
                ),
            ),
        ),
    )
    kernel = fragment.planned_kernel(0)
    assert kernel.runtime_scalar_defaults == (u32(8),)
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings, runtime_scalars=(u32(13),))
        assert backend.launches[-1].scalars == (u32(13),)
        assert backend.launches[-1].grid[0] == 4
        fragment.submit_invocation(bindings)
        assert backend.launches[-1].scalars == (u32(8),)
        assert backend.launches[-1].grid[0] == 2
    await fragment.aclose()


async def test_choir_executable_fragment_launches_aliased_kernel_call_outputs_read_write() -> (
    None
):
    backend = RecordingBackend()
    builder, f = begin("choir_cuda_executable_kernel_call_alias_access", "f32[8]")
    (called,) = f.kernel_call(
        f.parameters,
        [F32_8],
        target="accy.custom.scale",
        operand_effects=["read_write"],
        result_aliases=[0],
    )
    fragment = await loaded(
        backend,
        end(builder, f, called),
        kernel_call_registry=scale_registry(
            argument_count=2,
            launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(8, 1, 1)),
            runtime_scalar_argument_count=0,
            static_arguments=(),
        ),
    )
    summary = fragment.kernel_summary(0)
    assert summary.input_slot_ids[0] == summary.output_slot_ids[0]
    async with await fragment.prepare_invocation_bindings([ONES]) as bindings:
        fragment.submit_invocation(bindings)
    launch = backend.launches[0]
    assert len(launch.buffer_ids) == 2
    assert launch.buffer_ids[0] == launch.buffer_ids[1]
    assert [str(a) for a in launch.buffer_access] == ["read_write", "read_only"]
    await fragment.aclose()


async def test_choir_executable_fragment_launches_prepared_graph_with_runtime_scalars() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend,
        call_module("choir_cuda_executable_kernel_call_prepared_graph_runtime"),
        kernel_call_registry=scale_registry(),
    )
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        graph = fragment.create_launch_graph_plan()
        scalars = (u32(17), u32(9))
        graph = attrs.evolve(
            graph,
            nodes=(attrs.evolve(graph.nodes[0], runtime_scalars=scalars),),
            runtime_scalar_count=0,
        )
        fragment.submit_invocation_with_graph(bindings, graph)
    check_derived(backend)
    await fragment.aclose()


# Kinds of kernels


async def test_choir_executable_plan_launches_cuda_choir_dot_general_without_static_shape_scalars() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend, product_module("choir_cuda_executable_dot_general")
    )
    summary = fragment.kernel_summary(0)
    tile = summary.tile
    assert tile.kind is LaunchTileKind.DOT_GENERAL
    assert (tile.m, tile.n, tile.k, tile.batch) == (16, 16, 16, 1)
    assert (tile.input_dtype, tile.output_dtype) == (DType.F32, DType.F32)
    assert (tile.input_tile_bytes, tile.output_tile_bytes) == (2048, 1024)
    assert tile.scratch_memory_bytes == 0
    assert summary.candidate_count == 4
    assert summary.launch_resource_fingerprint != 0
    assert summary.output_layout_fingerprint != 0
    assert summary.input_layout_fingerprint != 0
    square = np.ones((16, 16), np.float32)
    async with await fragment.prepare_invocation_bindings([square] * 2) as bindings:
        fragment.submit_invocation(bindings)
    assert fragment.loaded_kernel_count == 1
    assert backend.load_count == backend.launch_count == 1
    launch = backend.launches[0]
    assert len(launch.buffer_ids) == 3
    assert launch.scalars == ()
    assert launch.grid == (1, 1, 1)
    assert launch.threadgroup == (16, 16, 1)
    assert len(summary.input_slot_ids) == 2
    await fragment.aclose()


async def test_choir_executable_plan_launches_vulkan_dot_general_without_element_count_bindings() -> (
    None
):
    backend = RecordingBackend(BackendKind.VULKAN)
    fragment = await loaded(
        backend, product_module("choir_vulkan_executable_dot_general")
    )
    artifact = fragment.copy_kernel_artifact(0)
    assert artifact.payload
    assert artifact.argument_count == 3
    square = np.ones((16, 16), np.float32)
    async with await fragment.prepare_invocation_bindings([square] * 2) as bindings:
        assert not bindings.element_count_bindings
        fragment.submit_invocation(bindings)
    launch = backend.launches[0]
    assert len(launch.buffer_ids) == 3
    assert launch.scalars == ()
    assert launch.grid == (2, 2, 1)
    assert launch.threadgroup == (8, 8, 1)
    await fragment.aclose()


async def check_reduction(kind: BackendKind, threads: int) -> None:
    backend = RecordingBackend(kind)
    fragment = await loaded(backend, reduction_module("choir_executable_reduce"))
    summary = fragment.kernel_summary(0)
    tile = summary.tile
    assert tile.kind is LaunchTileKind.REDUCTION
    assert (tile.m, tile.n, tile.k, tile.batch) == (threads, 256, 0, 1)
    assert (tile.input_dtype, tile.output_dtype) == (DType.F32, DType.F32)
    assert tile.input_tile_bytes == threads * 256 * 4
    assert tile.output_tile_bytes == threads * 4
    assert tile.scratch_memory_bytes == 0
    assert tile.reduction is not None
    assert tile.reduction.kind is LaunchReductionKind.SUM
    assert tile.reduction.rank == 1
    assert tile.reduction.axis == 0
    assert tile.reduction.extent == 256
    assert summary.launch_resource_fingerprint != 0
    assert fragment.copy_kernel_artifact(0).argument_count == 3
    values = np.ones(256, np.float32)
    async with await fragment.prepare_invocation_bindings([values]) as bindings:
        fragment.submit_invocation(bindings)
        count = bindings.element_count_bindings[0].handle.id
    assert backend.load_count == backend.launch_count == 1
    launch = backend.launches[0]
    assert launch.scalars == ()
    assert launch.grid == (1, 1, 1)
    assert launch.threadgroup == (threads, 1, 1)
    assert len(summary.input_slot_ids) == 1
    assert len(launch.buffer_ids) == 3
    assert launch.buffer_ids[2] == count
    assert str(launch.buffer_access[2]) == "read_only"
    await fragment.aclose()


async def test_choir_executable_plan_launches_cuda_reduction_with_static_input_count() -> (
    None
):
    await check_reduction(BackendKind.CUDA, threads=32)


async def test_choir_executable_plan_launches_vulkan_reduction_with_device_count_binding() -> (
    None
):
    await check_reduction(BackendKind.VULKAN, threads=64)


async def test_choir_executable_fragment_launches_fused_cuda_kernels() -> None:
    backend = RecordingBackend()
    fragment = await loaded(
        backend, fused_module("choir_loaded_fragment_fused_add_mul")
    )
    inputs = [ONES, TWOS, ONES]
    async with await fragment.prepare_invocation_bindings(inputs) as bindings:
        fragment.submit_invocation(bindings)
    assert fragment.kernel_count == 1
    assert fragment.planned_kernel(0).op_count == 2
    launch = backend.launches[0]
    assert launch.scalars == ()
    accesses = [str(access) for access in launch.buffer_access]
    assert accesses == ["write_only", *["read_only"] * 4]
    await fragment.aclose()


async def test_choir_executable_plan_launches_vulkan_device_count_kernels_with_count_buffer() -> (
    None
):
    backend = RecordingBackend(BackendKind.VULKAN)
    fragment = await loaded(backend, add_module("choir_vulkan_executable_add"))
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings)
        count = bindings.element_count_bindings[0].handle.id
    assert backend.load_count == backend.launch_count == 1
    launch = backend.launches[0]
    assert len(launch.buffer_ids) == 4
    assert launch.scalars == ()
    assert launch.threadgroup[0] == 8
    assert launch.buffer_ids[3] == count
    assert str(launch.buffer_access[3]) == "read_only"
    await fragment.aclose()


async def test_choir_executable_plan_requires_a_device_count_buffer_for_vulkan_launches() -> (
    None
):
    backend = RecordingBackend(BackendKind.VULKAN)
    fragment = await loaded(
        backend, add_module("choir_vulkan_executable_missing_count")
    )
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        without_count = bindings.buffers_for_kernel(0)[:-1]
        with pytest.raises(LaunchArgumentMismatch):
            fragment.launch_kernel_with_arguments(0, without_count)
    assert backend.launch_count == 0
    await fragment.aclose()


# Phases


class PhaseRecorder:
    """Notes the name of each phase."""

    def __init__(self) -> None:
        self.phases: list[FragmentPhase] = []
        self.instrumentation = FragmentInstrumentation(observe=self.observe)

    def observe(self, phase: FragmentPhase, elapsed_ns: int) -> None:
        assert elapsed_ns >= 0
        self.phases.append(phase)


async def test_choir_executable_fragment_creates_artifacts_loads_handles_and_launches() -> (
    None
):
    backend = RecordingBackend()
    recorder = PhaseRecorder()
    job = prepare(add_module("choir_loaded_fragment_add"), target_profile(backend))
    options = FragmentCompilerOptions(instrumentation=recorder.instrumentation)
    made = await compile_fragment(backend, job, options=options, cache=False)
    fragment = await load_fragment(
        backend, made, instrumentation=recorder.instrumentation
    )
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings)
    assert fragment.kernel_count == fragment.loaded_kernel_count == 1
    assert backend.create_count == backend.load_count == backend.launch_count == 1
    assert backend.launches[0].scalars == ()
    assert recorder.phases == [
        FragmentPhase.PLAN_CREATE_BACKEND_ARTIFACTS,
        FragmentPhase.COMPILE_FRAGMENT,
        FragmentPhase.LOAD_BACKEND_ARTIFACTS,
    ]
    await fragment.aclose()


async def test_choir_executable_fragment_from_semantic_module_uses_target_product() -> (
    None
):
    backend = RecordingBackend()
    recorder = PhaseRecorder()
    fragment = await loaded(
        backend,
        add_module("choir_executable_from_semantic_add"),
        instrumentation=recorder.instrumentation,
    )
    assert fragment.kernel_count == fragment.loaded_kernel_count == 1
    assert backend.load_count == 1
    assert [str(phase) for phase in recorder.phases] == [
        "run_contract_pipeline",
        "run_tensor_pipeline",
        "run_dispatch_pipeline",
        "run_memory_pipeline",
        "run_kernel_pipeline",
        "run_target_pipeline",
        "plan_create_backend_artifacts",
        "compile_fragment",
        "load_backend_artifacts",
    ]
    await fragment.aclose()


async def test_choir_executable_fragment_compiles_a_prepared_job_without_rerunning_preparation() -> (
    None
):
    """The entry's name differs: it is of our own scheme of kind, op, number, version."""
    backend = RecordingBackend()
    module = add_module("choir_executable_from_prepared_add")
    job = prepare(module, target_profile(backend))
    recorder = PhaseRecorder()
    options = FragmentCompilerOptions(instrumentation=recorder.instrumentation)
    made = await compile_fragment(backend, job, options=options, cache=False)
    fragment = await load_fragment(
        backend, made, instrumentation=recorder.instrumentation
    )
    assert fragment.kernel_count == fragment.loaded_kernel_count == 1
    assert backend.load_count == 1
    assert job.generated_kernel_count == 1
    assert job.generated_kernel_summary(0).entry_name == "accy_elementwise_add_0_v1"
    assert fragment.kernel_summary(0).entry_name == "accy_elementwise_add_0_v1"
    assert len(recorder.phases) == 3
    await fragment.aclose()


# Bindings


async def test_choir_executable_fragment_prepareinvocationbindings_allocates_buffers_and_count_bindings() -> (
    None
):
    backend = Remembering()
    fragment = await loaded(
        backend, add_module("choir_loaded_fragment_prepared_bindings")
    )
    bindings = await fragment.prepare_invocation_bindings([ONES, TWOS])
    assert bindings.live_buffer_count == 4
    assert len(bindings.slot_bindings) == 3
    assert len(bindings.element_count_bindings) == 1
    assert bindings.element_count_bindings[0].byte_size == 4
    assert backend.buffer_allocate_count == 4
    assert backend.write_count == 3
    assert backend.last_write == (8).to_bytes(4, "little")
    fragment.submit_invocation(bindings)
    assert backend.launch_count == 1
    assert len(backend.launches[0].buffer_ids) == 4
    assert backend.destroy_count == 0
    await bindings.aclose()
    assert backend.destroy_count == 4
    await fragment.aclose()


async def test_choir_executable_fragment_prepareinvocationbindings_skips_reduction_init_constants() -> (
    None
):
    """The last write holds the input's count, 256: ours reads on to there."""
    backend = Remembering()
    fragment = await loaded(
        backend, reduction_module("choir_loaded_fragment_prepared_reduction_bindings")
    )
    values = np.ones(256, np.float32)
    async with await fragment.prepare_invocation_bindings([values]) as bindings:
        slots = fragment.plan.slots
        assert sum(slot.role is SlotRole.CONSTANT for slot in slots) == 1
        assert bindings.live_buffer_count == 3
        assert len(bindings.slot_bindings) == 2
        assert len(bindings.element_count_bindings) == 1
        for slot_id in bindings.slot_bindings:
            assert slots[slot_id].role is not SlotRole.CONSTANT
        assert backend.buffer_allocate_count == 3
        assert backend.write_count == 2
        count = fragment.planned_kernel(0).element_count
        assert backend.last_write == count.to_bytes(4, "little")
        fragment.submit_invocation(bindings)
        assert backend.launch_count == 1
        assert len(backend.launches[0].buffer_ids) == 3
    await fragment.aclose()


async def test_choir_executable_fragment_prepareinvocationbindings_writes_kernel_constant_buffers() -> (
    None
):
    """With 64 elements: the seed's 8 go into the code here."""
    backend = RecordingBackend()
    fragment = await loaded(
        backend, constant_add_module("choir_loaded_fragment_constant_bindings")
    )
    (constant,) = [s for s in fragment.plan.slots if s.role is SlotRole.CONSTANT]
    async with await fragment.prepare_invocation_bindings(
        [np.ones(64, np.float32)]
    ) as bindings:
        assert bindings.live_buffer_count == 4
        assert len(bindings.slot_bindings) == 3
        assert len(bindings.element_count_bindings) == 1
        assert backend.write_count == 3
        binding = bindings.slot_bindings[constant.slot_id]
        assert str(binding.access) == "read_only"
        assert binding.byte_size == 256
        fragment.submit_invocation(bindings)
        assert backend.launch_count == 1
        assert len(backend.launches[0].buffer_ids) == 4
    await fragment.aclose()


# Reading


async def test_choir_executable_fragment_reads_program_outputs_back_to_host() -> None:
    backend = Remembering()
    fragment = await loaded(backend, add_module("choir_loaded_fragment_read_outputs"))
    assert fragment.output_count == 1
    slot = fragment.output_slot(0)
    assert slot is not None
    assert slot.byte_size == 32
    assert fragment.output_slot(1) is None
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        expected = bindings.binding(fragment.plan.output_slot_ids[0])
        out = np.full(8, 7.0, np.float32)
        await fragment.read_invocation_output(bindings, 0, out)
        assert backend.read_count == 1
        assert backend.last_read is expected.handle
        assert backend.sync_count >= 1
        assert str(backend.last_sync_scope) == "default_stream"
        assert out.tolist() == [0.0] * 8
        with pytest.raises(InvalidArtifact):
            await fragment.read_invocation_output(bindings, 1, out)
        with pytest.raises(ReadBufferDestinationTooSmall):
            await fragment.read_invocation_output(bindings, 0, bytearray(4))
    await fragment.aclose()


async def test_choir_executable_fragment_launches_inputs_and_reads_outputs() -> None:
    """In one call; ours gives the results, so that none can be left out."""
    backend = RecordingBackend()
    fragment = await loaded(backend, add_module("choir_loaded_fragment_launch_read"))
    (output,) = await fragment.invoke([ONES, TWOS])
    assert backend.launch_count == 1
    assert backend.read_count == 1
    assert backend.sync_count >= 1
    assert isinstance(output, np.ndarray)
    assert output.tolist() == [0.0] * 8
    await fragment.aclose()


async def test_choir_executable_fragment_exposes_kernel_summaries_by_index_and_work_item() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend, add_module("choir_loaded_fragment_kernel_summary_lookup")
    )
    assert fragment.kernel_count == 1
    indexed = fragment.kernel_summary(0)
    assert indexed == fragment.kernel_summary_for_work(indexed.work_item_id)
    with pytest.raises(InvalidArtifact):
        fragment.kernel_summary(1)
    with pytest.raises(InvalidArtifact):
        fragment.kernel_summary_for_work(2**64 - 1)
    summaries = fragment.copy_kernel_summaries()
    await fragment.aclose()
    assert len(summaries) == 1
    assert summaries.summary(0) == indexed
    assert summaries.summary_for_work(indexed.work_item_id) == indexed
    assert summaries.summary(0).entry_name == indexed.entry_name
    with pytest.raises(InvalidArtifact):
        summaries.summary(1)
    with pytest.raises(InvalidArtifact):
        summaries.summary_for_work(2**64 - 1)
