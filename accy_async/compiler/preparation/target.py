"""The sixth phase: what a format and a device ask of each kernel."""

from __future__ import annotations

from collections.abc import Iterable

import attrs

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.planned import CompileLaunch
from accy_async.artifact.resources import LaunchResourcePlan
from accy_async.compiler.form import Kernel
from accy_async.compiler.kernelization import KernelStep, TargetProfile
from accy_async.compiler.preparation.kernel import KernelPlan, PreparedKernel
from accy_async.compiler.preparation.passes import PassContext, Pipeline
from accy_async.dtypes import DType
from accy_async.errors import CapabilityMismatch

__all__ = ["TARGET_PASSES", "TargetKernel", "TargetPlan", "plan_target"]

TARGET_PASSES = ("capabilities",)
"""The passes of the phase."""

_REFUSED = {
    (ArtifactFormat.CUDA_PTX, CompileLaunch.DOT_GENERAL): frozenset({DType.F16}),
}
"""Operand dtypes that a format has no kernels for, by kind."""


@attrs.frozen(kw_only=True, eq=False)
class TargetKernel:
    """A launch whose code can be made.

    Attributes:
        prepared: the launch.
        launch_resources: its geometries that the device takes.
    """

    prepared: PreparedKernel
    launch_resources: LaunchResourcePlan

    @property
    def code(self) -> Kernel | None:
        """The generated kernel whose code it runs, None for a ready-made one.

        Launches that compute the same run one kernel.
        """
        return None if self.prepared.step is None else self.prepared.step.kernel

    @property
    def entry_name(self) -> str:
        """The entry point's name in the code."""
        if self.code is not None:
            return self.code.name
        assert self.prepared.entry is not None
        return self.prepared.entry.entry_name


@attrs.frozen(kw_only=True, eq=False)
class TargetPlan:
    """All launches, checked for the target.

    Attributes:
        plan: with slots and launches.
        kernels: the launches, in the plan's order.
    """

    plan: KernelPlan
    kernels: tuple[TargetKernel, ...]


def plan_target(
    plan: KernelPlan, profile: TargetProfile, pipeline: Pipeline
) -> TargetPlan:
    """The launches as the target takes them.

    Raises:
        CapabilityMismatch: the device lacks what a kernel needs, or the format has no
            such kernel.
    """
    kernels = pipeline.run("capabilities", _check, plan, profile, pipeline.context)
    return TargetPlan(plan=plan, kernels=kernels)


def _check(
    plan: KernelPlan, profile: TargetProfile, context: PassContext
) -> tuple[TargetKernel, ...]:
    kernels = []
    for kernel in plan.kernels:
        context.place(kernel.opcode, kernel.location)
        if kernel.step is not None:
            _check_step(kernel, kernel.step, profile)
        elif kernel.entry is not None:
            request = kernel.entry.artifact_request()
            profile.capabilities.check_request(request)
        possible = _possible(kernel, profile)
        kernels.append(TargetKernel(prepared=kernel, launch_resources=possible))
    return tuple(kernels)


def _check_step(
    kernel: PreparedKernel, step: KernelStep, profile: TargetProfile
) -> None:
    capabilities = profile.capabilities
    where = f"{kernel.opcode} in {profile.format} on {capabilities.identity.name}"
    arguments = zip(kernel.arguments, kernel.layouts, strict=True)
    read = {type.dtype for argument, type in arguments if not argument.is_written}
    refused = read & _REFUSED.get((profile.format, kernel.kind), frozenset())
    if refused:
        raise CapabilityMismatch(
            f"{where}: there is no kernel for operands of {_listed(refused)}; convert "
            f"them to {DType.F32}"
        )
    lacking = step.required_dtypes - capabilities.dtypes
    if lacking:
        raise CapabilityMismatch(f"{where}: the device lacks {_listed(lacking)}")
    shared = step.kernel.shared_bytes + step.launch.dynamic_shared_memory_bytes
    if shared > capabilities.max_shared_memory_bytes:
        raise CapabilityMismatch(
            f"{where}: {shared} bytes of shared memory, the device has "
            f"{capabilities.max_shared_memory_bytes}"
        )


def _listed(dtypes: Iterable[DType]) -> str:
    return ", ".join(sorted(str(dtype) for dtype in dtypes))


def _possible(kernel: PreparedKernel, profile: TargetProfile) -> LaunchResourcePlan:
    """The geometries that the device takes; the one used untuned must be among them."""
    resources = kernel.launch_resources
    capabilities = profile.capabilities
    name = kernel.opcode
    capabilities.check_geometry(resources.geometry, name)
    kept = []
    for candidate in resources.candidates:
        try:
            capabilities.check_geometry(candidate.geometry, name)
        except CapabilityMismatch:
            continue
        kept.append(candidate)
    return attrs.evolve(resources, candidates=tuple(kept))
