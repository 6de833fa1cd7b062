"""Work items, and the kernels that they become.

A *work item* is what dispatch found to belong into one launch: a function whose
parameters are the buffers read and whose results are the buffers written. What it
becomes is one kernel, or a few in sequence (*steps*) that hand partial results on
in *scratch*, such as the two passes of a long sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum

import attrs

from accy_async.artifact.entry import ElementCountArgument, element_count_argument
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import LaunchResourcePlan
from accy_async.artifact.tiles import LaunchTile
from accy_async.compiler.form import Kernel
from accy_async.compiler.semantic import Function, TensorType
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import (
    enum,
    frozenset_of,
    instances,
    integer,
    member_of,
    to_tuple,
    tuple_of,
)

__all__ = [
    "BufferOrigin",
    "KernelStep",
    "KernelizedWork",
    "StepBuffer",
    "WorkItem",
]


def _launch_kind(value: CompileLaunch | str) -> CompileLaunch:
    return member_of(CompileLaunch, value)


@attrs.frozen(kw_only=True)
class WorkItem:
    """One launch's part of a program.

    Attributes:
        work_item_id: its number in the program, from 0.
        kind: what kind of kernel it becomes.
        function: what it computes: the parameters are the operands read, in the
            order of the kernel's arguments, the results what is written.
        op_count: operations of the program that it computes.
    """

    work_item_id: int = attrs.field(validator=integer())
    kind: CompileLaunch = attrs.field(
        converter=_launch_kind, validator=enum(CompileLaunch)
    )
    function: Function = attrs.field(validator=instances(Function))
    op_count: int = attrs.field(default=1, validator=integer(1))


class BufferOrigin(str, Enum):
    """Where a step's buffer comes from."""

    RESULT = "result"
    """A result of the work item's function."""

    OPERAND = "operand"
    """A parameter of it."""

    SCRATCH = "scratch"
    """Memory between the steps of one work item."""

    def __str__(self) -> str:
        return self.value


def _origin(value: BufferOrigin | str) -> BufferOrigin:
    return member_of(BufferOrigin, value)


@attrs.frozen(kw_only=True)
class StepBuffer:
    """A buffer argument of a step: the ``index``-th of its origin."""

    origin: BufferOrigin = attrs.field(converter=_origin, validator=enum(BufferOrigin))
    index: int = attrs.field(validator=integer())


@attrs.frozen(kw_only=True)
class KernelStep:
    """One kernel with the geometries that it can be launched with.

    Attributes:
        kernel: its code in the kernel form. Its buffers are ``arguments``, then the
            element count if that is a buffer; it has no scalar parameters.
        arguments: what its buffers are, those written first. How each is used is
            said by the kernel's buffer in the same place.
        element_count: elements that it produces, or takes in where it reduces.
        element_count_argument: how it learns that count.
        launch_resources: the geometries to choose from; the first is the default.
            The results do not depend on the choice.
        tile: what a block works on.
        in_place: operands that each thread reads only where it then writes, so that
            a result of their dtype may take their memory.
    """

    kernel: Kernel = attrs.field(validator=instances(Kernel))
    arguments: tuple[StepBuffer, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(StepBuffer, expected="StepBuffer values")
    )
    element_count: int = attrs.field(validator=integer(0, 2**64 - 1))
    element_count_argument: ElementCountArgument = attrs.field(
        default=ElementCountArgument.NONE,
        converter=element_count_argument,
        validator=enum(ElementCountArgument),
    )
    launch_resources: LaunchResourcePlan = attrs.field(
        validator=instances(LaunchResourcePlan)
    )
    tile: LaunchTile = attrs.field(factory=LaunchTile, validator=instances(LaunchTile))
    in_place: frozenset[int] = attrs.field(
        default=frozenset(), validator=frozenset_of(int)
    )

    def __attrs_post_init__(self) -> None:
        counted = self.element_count_argument is ElementCountArgument.BUFFER_U32
        expected = len(self.arguments) + int(counted)
        if len(self.kernel.buffers) != expected or self.kernel.scalars:
            raise InvalidValue(
                "KernelStep.kernel",
                f"{self.kernel.name} of {len(self.kernel.buffers)} buffers and "
                f"{len(self.kernel.scalars)} scalars",
                f"{expected} buffers and no scalar",
            )
        if self.launch.threadgroup != self.kernel.threadgroup:
            raise InvalidValue(
                "KernelStep.launch_resources",
                self.launch.threadgroup,
                f"the kernel's threadgroup {self.kernel.threadgroup}",
            )

    @property
    def launch(self) -> FixedLaunch:
        """The geometry used untuned."""
        return self.launch_resources.geometry

    @property
    def required_dtypes(self) -> frozenset[DType]:
        """The element types that it keeps or moves."""
        kernel = self.kernel
        groups = (kernel.buffers, kernel.shared, kernel.thread_variables)
        return frozenset(kept.dtype for group in groups for kept in group)


@attrs.frozen(kw_only=True)
class KernelizedWork:
    """What a work item became.

    Attributes:
        work_item_id: the work item's number.
        compile_launch: what kind of kernel it is.
        op_count: operations of the program that it computes.
        steps: its kernels, in the order in which they run, each after the one before.
        scratch: the types of the buffers that pass between the steps.
    """

    work_item_id: int = attrs.field(validator=integer())
    compile_launch: CompileLaunch = attrs.field(validator=instances(CompileLaunch))
    op_count: int = attrs.field(validator=integer(1))
    steps: tuple[KernelStep, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(KernelStep, expected="KernelStep values")
    )
    scratch: tuple[TensorType, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(TensorType, expected="TensorType values"),
    )

    @classmethod
    def of(
        cls,
        item: WorkItem,
        steps: Iterable[KernelStep],
        scratch: Iterable[TensorType] = (),
    ) -> KernelizedWork:
        """What a work item became, by its steps and what passes between them."""
        return cls(
            work_item_id=item.work_item_id,
            compile_launch=item.kind,
            op_count=item.op_count,
            steps=steps,
            scratch=scratch,
        )

    def __attrs_post_init__(self) -> None:
        if not self.steps:
            raise InvalidValue("KernelizedWork.steps", self.steps, "at least one step")
        for step in self.steps:
            for buffer in step.arguments:
                if buffer.origin is BufferOrigin.SCRATCH and buffer.index >= len(
                    self.scratch
                ):
                    raise InvalidValue(
                        "KernelizedWork.steps",
                        buffer,
                        f"scratch below {len(self.scratch)}",
                    )

    @property
    def step(self) -> KernelStep:
        """The only step; of several the last, which writes the results."""
        return self.steps[-1]
