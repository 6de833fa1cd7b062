"""Preparing a program: all phases one after the other, and what comes of them."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from accy_async.artifact.entry import ElementCountArgument, KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.kernelization import TargetProfile
from accy_async.compiler.preparation.contract import check_contract
from accy_async.compiler.preparation.dispatch import DispatchPlan, dispatch
from accy_async.compiler.preparation.instrumentation import FragmentPhase
from accy_async.compiler.preparation.kernel import plan_kernels
from accy_async.compiler.preparation.memory import plan_memory
from accy_async.compiler.preparation.options import FragmentCompilerOptions
from accy_async.compiler.preparation.passes import (
    PassContext,
    Pipeline,
    PreparationRun,
)
from accy_async.compiler.preparation.schedules import Schedules
from accy_async.compiler.preparation.target import TargetPlan, plan_target
from accy_async.compiler.preparation.tensor import lower_tensor
from accy_async.compiler.semantic import Function, Module
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact, InvalidType, UnsupportedOperation

__all__ = ["GeneratedKernelSummary", "PreparedJob", "prepare"]

PHASES = (
    FragmentPhase.RUN_CONTRACT_PIPELINE,
    FragmentPhase.RUN_TENSOR_PIPELINE,
    FragmentPhase.RUN_DISPATCH_PIPELINE,
    FragmentPhase.RUN_MEMORY_PIPELINE,
    FragmentPhase.RUN_KERNEL_PIPELINE,
    FragmentPhase.RUN_TARGET_PIPELINE,
)


@attrs.frozen(kw_only=True)
class GeneratedKernelSummary:
    """A generated kernel, before its code is made.

    Attributes:
        entry_name: the entry point's name.
        work_item_id: the work item that it carries out, or a part of it.
        kind: what kind of kernel it is.
        op_count: operations of the program that it computes.
        element_count: elements that it produces, or takes in where it reduces.
        element_count_argument: how it learns that count.
        argument_count: buffers that it takes, an element count among them.
        grid: blocks of the geometry used untuned.
        threadgroup: threads of a block.
        candidate_count: geometries to choose from.
        required_dtypes: element types that the device must handle.
    """

    entry_name: str
    work_item_id: int
    kind: CompileLaunch
    op_count: int
    element_count: int
    element_count_argument: ElementCountArgument
    argument_count: int
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    candidate_count: int
    required_dtypes: frozenset[DType]


@attrs.frozen(kw_only=True, eq=False)
class PreparedJob:
    """A program prepared for a target: everything but code.

    Attributes:
        name: the entry function's.
        profile: the target.
        options: what it was prepared with.
        function: the program in operations that kernels are made of.
        dispatch: its work items.
        target: its launches and slots, checked for the target.
        run: how long each phase took, with its passes.
    """

    name: str
    profile: TargetProfile
    options: FragmentCompilerOptions = attrs.field(repr=False)
    function: Function
    dispatch: DispatchPlan = attrs.field(repr=False)
    target: TargetPlan = attrs.field(repr=False)
    run: PreparationRun = attrs.field(repr=False)

    @property
    def kernel_count(self) -> int:
        """How many launches there are, calls among them."""
        return len(self.target.kernels)

    @property
    def generated_kernel_count(self) -> int:
        """How many launches are of generated kernels."""
        return sum(kernel.code is not None for kernel in self.target.kernels)

    def generated_kernel_summary(self, index: int) -> GeneratedKernelSummary:
        """The ``index``-th launch of a generated kernel.

        Raises:
            InvalidArtifact: there is none.
        """
        generated = [k for k in self.target.kernels if k.code is not None]
        if not 0 <= index < len(generated):
            raise InvalidArtifact(
                f"{self.name!r}: generated kernel {index}, it has {len(generated)}"
            )
        kernel = generated[index]
        step = kernel.prepared.step
        assert step is not None
        geometry = kernel.launch_resources.geometry
        return GeneratedKernelSummary(
            entry_name=kernel.entry_name,
            work_item_id=kernel.prepared.work_item_id,
            kind=kernel.prepared.kind,
            op_count=kernel.prepared.op_count,
            element_count=step.element_count,
            element_count_argument=step.element_count_argument,
            argument_count=len(step.kernel.buffers),
            grid=geometry.grid,
            threadgroup=geometry.threadgroup,
            candidate_count=kernel.launch_resources.candidate_count,
            required_dtypes=step.required_dtypes,
        )


def prepare(
    module: Module,
    profile: TargetProfile,
    options: FragmentCompilerOptions | None = None,
    *,
    check_cancelled: Callable[[], None] | None = None,
) -> PreparedJob:
    """Prepare a module's entry function for a target.

    Args:
        module: the program; its other functions are not looked at.
        profile: the target. Format and math tier are its own; those of the options
            must be the same, or the format None.
        options: schedules, tuning artifacts, the registry; the defaults if None.
        check_cancelled: called at every operation that a pass looks at; what it
            raises ends the preparation.

    Raises:
        CapabilityMismatch: the device lacks what the program needs, or the format
            has no kernel for an operation.
        KernelEntryMissing: the registry lacks a kernel that is called.
        UnsupportedOperation: there is no kernel for an operation.
        OutOfMemory: the program outgrew the limits.
        InvalidArtifact: a tuning artifact is damaged; with the offset.
        PassFailed: a pass refused the program or an option; it names phase, pass and
            operation.

    Blocks for some milliseconds, and 1 to 5 ms for each kernel: call it in a worker
    thread.
    """
    if not isinstance(module, Module):
        raise InvalidType("prepare.module", module, "a Module")
    options = options or FragmentCompilerOptions()
    _check_options(profile, options)
    schedules = Schedules(profile, options)
    registry = options.kernel_call_registry or KernelCallRegistry()
    context = PassContext(check_cancelled)
    tell = options.instrumentation.record
    done: list[Pipeline] = []

    def begin(name: str) -> Pipeline:
        done.append(Pipeline(name, context))
        return done[-1]

    phases = []

    def end() -> None:
        phases.append(done[-1].statistics())
        tell(PHASES[len(phases) - 1], phases[-1].elapsed_ns)

    checked = check_contract(module, profile, registry, begin("contract"))
    end()
    function = lower_tensor(
        checked,
        schedules,
        registry,
        options.semantic_context_limits,
        begin("tensor"),
    )
    end()
    dispatched = dispatch(function, begin("dispatch"))
    end()
    memory = plan_memory(dispatched, begin("memory"))
    end()
    kernels = plan_kernels(memory, schedules, registry, begin("kernel"))
    end()
    target = plan_target(kernels, profile, begin("target"))
    end()
    return PreparedJob(
        name=module.entry.name,
        profile=profile,
        options=options,
        function=function,
        dispatch=dispatched,
        target=target,
        run=PreparationRun(*phases),
    )


def _check_options(profile: TargetProfile, options: FragmentCompilerOptions) -> None:
    wanted: ArtifactFormat | None = options.artifact_format
    if wanted is not None and wanted is not profile.format:
        raise UnsupportedOperation(
            f"prepare: the options ask for {wanted}, the target is {profile.format}"
        )
    if options.math_tier is not profile.math_tier:
        raise UnsupportedOperation(
            f"prepare: the options ask for {options.math_tier} mathematics, the target "
            f"is {profile.math_tier}"
        )
