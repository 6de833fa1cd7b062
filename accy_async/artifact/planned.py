"""An artifact plan: what a tensor program became, kernel by kernel, slot by slot.

The compiler makes one, loading and launching read it, and tuning takes its keys
from it. It holds code and no device resource.

A *slot* is one buffer of the program: an input, a constant, an output, or scratch
between two kernels. A *planned kernel* is one launch: its code, the slots that it
takes in the order of its arguments, its scalars, and the geometries that it can be
launched with. Kernels stand in an order in which they can run; which of them
really wait for each other follows from the slots.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from functools import cached_property

import attrs

from accy_async.artifact.entry import ElementCountArgument, element_count_argument
from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.geometry import KernelCallLaunch, launch_validator
from accy_async.artifact.kernel import (
    KernelArtifact,
    dtype_set_validator,
    to_frozenset,
)
from accy_async.artifact.requirements import DeviceFeatures, SubgroupFeatures
from accy_async.artifact.resources import LaunchResourcePlan
from accy_async.artifact.slots import PlannedArgument, PlannedSlot, SlotRole
from accy_async.artifact.tiles import LaunchTile
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidArtifact, InvalidValue
from accy_async.values import (
    U32_MAX,
    enum,
    instances,
    integer,
    integers,
    is_index,
    member_of,
    optional,
    text,
    to_tuple,
    tuple_of,
)

__all__ = [
    "ArtifactPlan",
    "CompileLaunch",
    "KernelSource",
    "PlannedKernel",
]

_U64 = integer(0, 2**64 - 1)
_ID = integer()
_SCALARS = tuple_of(ScalarArgument, expected="ScalarArgument values")
_IDS = integers(0, U32_MAX)


class KernelSource(str, Enum):
    """Where a planned kernel's code comes from."""

    TENSOR = "tensor"
    """Generated for operations of the program."""

    KERNEL_CALL = "kernel_call"
    """An entry of the caller's registry."""

    AUTHORED = "authored"
    """A kernel of the library, or one that the caller wrote in the kernel form."""

    def __str__(self) -> str:
        return self.value


class CompileLaunch(str, Enum):
    """What kind of kernel it is: what its geometry follows from."""

    ELEMENTWISE = "elementwise"
    REDUCTION = "reduction"
    SCAN = "scan"
    ROW_PIPELINE = "row_pipeline"
    DOT_GENERAL = "dot_general"
    GATHER = "gather"
    SCATTER = "scatter"
    CROSS_ENTROPY = "cross_entropy"
    AUTHORED = "authored"
    KERNEL_CALL = "kernel_call"

    def __str__(self) -> str:
        return self.value


def _source(value: KernelSource | str) -> KernelSource:
    return member_of(KernelSource, value)


def _launch_kind(value: CompileLaunch | str) -> CompileLaunch:
    return member_of(CompileLaunch, value)


@attrs.frozen(kw_only=True)
class PlannedKernel:
    """One launch of the program.

    Arguments come buffers first, outputs before inputs, then an element-count
    buffer if it takes one; then scalars: the element count if it takes it as one,
    the runtime scalars, the static arguments.

    Attributes:
        kernel_id: its number in the plan, from 0.
        work_item_id: the number of the work item of dispatch that it carries out.
        source: where its code comes from.
        compile_launch: what kind of kernel it is.
        artifact: its code, with the entry point's name.
        arguments: its buffers in order, without an element-count buffer.
        op_count: operations of the program that it computes.
        element_count: elements that it produces, or takes in where it reduces.
        element_count_argument: how it learns that count.
        static_arguments: scalars that are the same at every launch.
        runtime_scalar_argument_count: scalars that each launch brings.
        runtime_scalar_defaults: values for those that a launch leaves out; none,
            or one for each.
        launch: its geometry, fixed or derived from the runtime scalars.
        launch_resources: the geometries to choose from; the first is the default.
        tile: what a block works on.
        required_dtypes: element types that the device must handle.
        required_features: device features that it needs.
        required_subgroup: subgroup features that it needs.
        output_layout_fingerprint: names the layouts of what it writes; never 0.
        input_layout_fingerprint: names the layouts of what it reads; never 0.
        diagnostic_id: a name of the caller's for error messages.
    """

    kernel_id: int = attrs.field(validator=_ID)
    work_item_id: int = attrs.field(validator=_ID)
    source: KernelSource = attrs.field(converter=_source, validator=enum(KernelSource))
    compile_launch: CompileLaunch = attrs.field(
        converter=_launch_kind, validator=enum(CompileLaunch)
    )
    artifact: KernelArtifact = attrs.field(validator=instances(KernelArtifact))
    arguments: tuple[PlannedArgument, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(PlannedArgument, expected="PlannedArgument values"),
    )
    op_count: int = attrs.field(default=1, validator=integer(1))
    element_count: int = attrs.field(default=0, validator=_U64)
    element_count_argument: ElementCountArgument = attrs.field(
        default=ElementCountArgument.NONE,
        converter=element_count_argument,
        validator=enum(ElementCountArgument),
    )
    static_arguments: tuple[ScalarArgument, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_SCALARS
    )
    runtime_scalar_argument_count: int = attrs.field(
        default=0, validator=integer(0, 4096)
    )
    runtime_scalar_defaults: tuple[ScalarArgument, ...] = attrs.field(
        default=(), converter=to_tuple, validator=_SCALARS
    )
    launch: KernelCallLaunch = attrs.field(validator=launch_validator)
    launch_resources: LaunchResourcePlan = attrs.field(
        validator=instances(LaunchResourcePlan)
    )
    tile: LaunchTile = attrs.field(factory=LaunchTile, validator=instances(LaunchTile))
    required_dtypes: frozenset[DType] = attrs.field(
        default=frozenset(), converter=to_frozenset, validator=dtype_set_validator
    )
    required_features: DeviceFeatures = attrs.field(
        factory=DeviceFeatures, validator=instances(DeviceFeatures)
    )
    required_subgroup: SubgroupFeatures = attrs.field(
        factory=SubgroupFeatures, validator=instances(SubgroupFeatures)
    )
    output_layout_fingerprint: int = attrs.field(
        default=1, validator=integer(1, 2**64 - 1)
    )
    input_layout_fingerprint: int = attrs.field(
        default=1, validator=integer(1, 2**64 - 1)
    )
    diagnostic_id: str | None = attrs.field(default=None, validator=optional(text()))

    def __attrs_post_init__(self) -> None:
        buffers, scalars = self.buffer_argument_count, self.scalar_argument_count
        artifact = self.artifact
        if artifact.argument_count != buffers + scalars:
            raise InvalidValue(
                "PlannedKernel.artifact",
                f"{artifact.kernel_name} of {artifact.argument_count} arguments",
                f"{buffers} buffers and {scalars} scalars",
            )
        count = self.runtime_scalar_argument_count
        if len(self.runtime_scalar_defaults) not in (0, count):
            raise InvalidValue(
                "PlannedKernel.runtime_scalar_defaults",
                self.runtime_scalar_defaults,
                f"none, or one for each of {count} runtime scalars",
            )

    @property
    def entry_name(self) -> str:
        """The entry point's name in the code."""
        return self.artifact.kernel_name

    @property
    def output_slot_ids(self) -> tuple[int, ...]:
        """The slots that it writes."""
        return tuple(a.slot_id for a in self.arguments if a.is_written)

    @property
    def input_slot_ids(self) -> tuple[int, ...]:
        """The slots of its operands: every argument that is read."""
        return tuple(a.slot_id for a in self.arguments if a.access != "write_only")

    @property
    def buffer_argument_count(self) -> int:
        """Buffers that a launch takes, an element-count buffer among them."""
        counted = self.element_count_argument is ElementCountArgument.BUFFER_U32
        return len(self.arguments) + int(counted)

    @property
    def scalar_argument_count(self) -> int:
        """Scalars that a launch takes: element count, runtime and static ones."""
        counted = self.element_count_argument is ElementCountArgument.SCALAR_U32
        return (
            int(counted)
            + self.runtime_scalar_argument_count
            + len(self.static_arguments)
        )


def _numbered(name: str, ids: Iterable[int]) -> None:
    for place, number in enumerate(ids):
        if number != place:
            raise InvalidValue(name, number, f"{place}: ids count up from 0")


@attrs.frozen(kw_only=True)
class ArtifactPlan:
    """Everything a program became: immutable, and free of any device.

    Attributes:
        name: the program's entry function.
        format: the format of every kernel's code.
        slots: its buffers, by id.
        kernels: its launches, in an order in which they can run.
        input_slot_ids: the slots of the parameters, in their order.
        output_slot_ids: the slots of the results, in their order. A result that is
            a parameter, or that stands twice, names one slot twice.

    Raises:
        InvalidValue: ids do not count up from 0, a slot is named that is not
            there, or a kernel reads scratch that none before it writes.
    """

    name: str = attrs.field(validator=text())
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    slots: tuple[PlannedSlot, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(PlannedSlot, expected="PlannedSlot values"),
    )
    kernels: tuple[PlannedKernel, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(PlannedKernel, expected="PlannedKernel values"),
    )
    input_slot_ids: tuple[int, ...] = attrs.field(converter=to_tuple, validator=_IDS)
    output_slot_ids: tuple[int, ...] = attrs.field(converter=to_tuple, validator=_IDS)

    def __attrs_post_init__(self) -> None:
        _numbered("ArtifactPlan.slots", (slot.slot_id for slot in self.slots))
        _numbered("ArtifactPlan.kernels", (k.kernel_id for k in self.kernels))
        for name in ("input_slot_ids", "output_slot_ids"):
            for number in getattr(self, name):
                self._check_slot(f"ArtifactPlan.{name}", number)
        self._check_kernels()

    def _check_slot(self, name: str, slot_id: int) -> None:
        if not 0 <= slot_id < len(self.slots):
            raise InvalidValue(name, slot_id, f"a slot id below {len(self.slots)}")

    def _check_kernels(self) -> None:
        written = {s.slot_id for s in self.slots if s.role is SlotRole.INPUT}
        written |= {s.slot_id for s in self.slots if s.role is SlotRole.CONSTANT}
        for kernel in self.kernels:
            where = f"ArtifactPlan.kernels[{kernel.kernel_id}]"
            if kernel.artifact.format is not self.format:
                raise InvalidValue(
                    f"{where}.artifact", kernel.artifact.format, str(self.format)
                )
            for argument in kernel.arguments:
                self._check_slot(f"{where}.arguments", argument.slot_id)
                if argument.access == "read_only" and argument.slot_id not in written:
                    raise InvalidValue(
                        f"{where}.arguments",
                        argument,
                        "a slot that is bound or that a kernel before it writes",
                    )
            written.update(kernel.output_slot_ids)

    @property
    def kernel_count(self) -> int:
        """How many launches there are."""
        return len(self.kernels)

    def slot(self, slot_id: int) -> PlannedSlot:
        """The slot of that id.

        Raises:
            InvalidArtifact: there is none.
        """
        if not is_index(slot_id, len(self.slots)):
            raise InvalidArtifact(
                f"plan {self.name!r}: slot {slot_id!r}, it has {len(self.slots)}"
            )
        return self.slots[slot_id]

    def kernel(self, index: int) -> PlannedKernel:
        """The kernel at ``index``.

        Raises:
            InvalidArtifact: there is none.
        """
        if not is_index(index, len(self.kernels)):
            raise InvalidArtifact(
                f"plan {self.name!r}: kernel {index!r}, it has {len(self.kernels)}"
            )
        return self.kernels[index]

    def kernel_for_work(self, work_item_id: int) -> PlannedKernel:
        """The kernel that carries out a work item.

        Raises:
            InvalidArtifact: there is none.
        """
        for kernel in self.kernels:
            if kernel.work_item_id == work_item_id:
                return kernel
        raise InvalidArtifact(f"plan {self.name!r}: no kernel of work {work_item_id}")

    @cached_property
    def fingerprint(self) -> int:
        """A 64-bit fingerprint of slots, kernels and code, not of names; never 0."""
        return (
            fingerprint(
                (
                    self.format,
                    self.slots,
                    self.kernels,
                    self.input_slot_ids,
                    self.output_slot_ids,
                )
            )
            or 1
        )
