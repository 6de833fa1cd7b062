"""Kernels on vectors of eight elements, with offsets and strides as arguments.

Small authored kernels with everything that one can have: buffers, a scalar that each
launch brings, and static arguments: how many elements there are, where each buffer's
first element lies, and how far apart its elements are.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.planned import (
    ArtifactPlan,
    CompileLaunch,
    KernelSource,
    PlannedKernel,
)
from accy_async.artifact.resources import LaunchResourceCandidate, LaunchResourcePlan
from accy_async.artifact.slots import PlannedArgument, PlannedSlot, SlotRole
from accy_async.compiler.form import ArrayHandle, Expression, Kernel, KernelBuilder
from accy_async.compiler.kernels.payloads import (
    code_level,
    kernel_payload,
    kernel_push_constants,
)
from accy_async.dtypes import DType, ScalarArgument
from accy_async.values import integer, text

__all__ = ["Axpy8F32", "VectorAdd8F32", "VectorKernel"]

_THREADS = 4
_NAMES = ("out", "x", "y")
_LAYOUT = ("offset", "stride")

Combine = Callable[[tuple[Expression, ...], Expression, Expression], Expression]


@attrs.frozen(kw_only=True)
class VectorKernel:
    """An elementwise kernel of two f32 operands, of a fixed number of elements.

    Its arguments are the result and two operands; the runtime scalars; then static
    ones, all u32: the number of elements, and for each buffer an offset and a stride,
    in elements. The kernels of the library are dense: offset 0, stride 1.

    Attributes:
        target: the name it is registered under.
        entry_name: the entry point's name.
        elements: how many elements it computes.
        runtime_scalar_argument_count: f32 scalars that each launch brings.
        version: of what it takes and gives.
    """

    target: str = attrs.field(validator=text())
    entry_name: str = attrs.field(validator=text())
    elements: int = attrs.field(validator=integer(1))
    combine: Combine = attrs.field(eq=False, repr=False)
    runtime_scalar_argument_count: int = attrs.field(default=0, validator=integer())
    version: int = attrs.field(default=1, validator=integer())

    @property
    def static_arguments(self) -> tuple[ScalarArgument, ...]:
        """The number of elements, then offset and stride of each buffer."""
        dense = (0, 1) * len(_NAMES)
        return tuple(map(ScalarArgument.u32, (self.elements, *dense)))

    @property
    def launch(self) -> FixedLaunch:
        """Blocks of four threads, an element each."""
        blocks = -(-self.elements // _THREADS)
        return FixedLaunch(grid=(blocks, 1, 1), threadgroup=(_THREADS, 1, 1))

    @property
    def argument_count(self) -> int:
        """Buffers, runtime scalars and static arguments."""
        return (
            len(_NAMES)
            + self.runtime_scalar_argument_count
            + len(self.static_arguments)
        )

    def kernel(self) -> Kernel:
        """Its code in the kernel form."""
        k = KernelBuilder(self.entry_name, (_THREADS, 1, 1))
        buffers = [
            k.buffer(name, DType.F32, "write_only" if name == "out" else "read_only")
            for name in _NAMES
        ]
        given = tuple(
            k.scalar(f"scalar{i}", DType.F32)
            for i in range(self.runtime_scalar_argument_count)
        )
        n = k.scalar("n", DType.U32)
        layouts = [
            (
                k.scalar(f"{name}_offset", DType.U32),
                k.scalar(f"{name}_stride", DType.U32),
            )
            for name in _NAMES
        ]
        base = k.let("base", k.block_x * _THREADS)
        with k.region(limit=n.cast(DType.I64) - base.cast(DType.I64)):
            i = (base + k.thread).cast(DType.U64)

            def at(index: int) -> Expression:
                offset, stride = (part.cast(DType.U64) for part in layouts[index])
                return offset + i * stride

            x, y = (_load(buffers[index], at(index)) for index in (1, 2))
            buffers[0][at(0)] = self.combine(given, x, y)
        return k.build()

    def create_kernel_call_artifact(
        self, format: ArtifactFormat | str, *, level: str | None = None
    ) -> KernelCallArtifact:
        """Its registry entry, with code. Blocks for some tens of ms.

        Raises:
            CapabilityMismatch, RuntimeUnavailable, CompilationError: there is no code
                of it for the format.
        """
        wanted = artifact_format(format)
        kernel = self.kernel()
        return KernelCallArtifact(
            target=self.target,
            version=self.version,
            format=wanted,
            entry_name=self.entry_name,
            argument_count=self.argument_count,
            payload=kernel_payload(kernel, wanted, code_level(wanted, level)),
            launch=self.launch,
            runtime_scalar_argument_count=self.runtime_scalar_argument_count,
            required_dtypes=frozenset({DType.F32}),
            static_arguments=self.static_arguments,
            push_constants=kernel_push_constants(kernel, wanted),
        )

    def artifact_plan(
        self,
        format: ArtifactFormat | str,
        *,
        diagnostic_id: str | None = None,
        level: str | None = None,
    ) -> ArtifactPlan:
        """A program of this kernel alone: two inputs, one output.

        Raises:
            CapabilityMismatch, RuntimeUnavailable, CompilationError: as above.
        """
        entry = self.create_kernel_call_artifact(format, level=level)
        request = entry.artifact_request(diagnostic_id)
        shape = (self.elements,)
        slots = tuple(
            PlannedSlot(slot_id=i, role=role, dtype=DType.F32, shape=shape)
            for i, role in enumerate((SlotRole.OUTPUT, SlotRole.INPUT, SlotRole.INPUT))
        )
        layout = fingerprint(("layout", DType.F32, shape)) or 1
        kernel = PlannedKernel(
            kernel_id=0,
            work_item_id=0,
            source=KernelSource.AUTHORED,
            compile_launch=CompileLaunch.AUTHORED,
            artifact=KernelArtifact.from_request(request),
            arguments=(
                PlannedArgument(slot_id=0, access="write_only"),
                PlannedArgument(slot_id=1, access="read_only"),
                PlannedArgument(slot_id=2, access="read_only"),
            ),
            element_count=self.elements,
            static_arguments=self.static_arguments,
            runtime_scalar_argument_count=self.runtime_scalar_argument_count,
            launch=self.launch,
            launch_resources=LaunchResourcePlan(
                candidates=(LaunchResourceCandidate(geometry=self.launch),)
            ),
            required_dtypes=entry.required_dtypes,
            output_layout_fingerprint=layout,
            input_layout_fingerprint=layout,
            diagnostic_id=diagnostic_id,
        )
        return ArtifactPlan(
            name=self.entry_name,
            format=entry.format,
            slots=slots,
            kernels=(kernel,),
            input_slot_ids=(1, 2),
            output_slot_ids=(0,),
        )


def _load(buffer: ArrayHandle, at: Expression) -> Expression:
    return buffer[at]


VectorAdd8F32 = VectorKernel(
    target="accy.kernel.vector_add.f32.8",
    entry_name="accy_vector_add_8_f32",
    elements=8,
    combine=lambda _, x, y: x + y,
)
"""``out[i] = x[i] + y[i]``."""

Axpy8F32 = VectorKernel(
    target="accy.kernel.axpy.f32.8",
    entry_name="accy_axpy_8_f32",
    elements=8,
    combine=lambda scalars, x, y: scalars[0] * x + y,
    runtime_scalar_argument_count=1,
)
"""``out[i] = a * x[i] + y[i]``, with ``a`` as its runtime scalar; each product is
rounded before it is added."""
