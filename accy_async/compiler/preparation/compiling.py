"""From a prepared job to an artifact plan: code for every kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.artifact.planned import ArtifactPlan, PlannedKernel
from accy_async.artifact.store import ArtifactStore, default_store
from accy_async.artifact.tiles import LaunchTile
from accy_async.compiler.preparation.code import CodeMaker
from accy_async.compiler.preparation.instrumentation import (
    FragmentInstrumentation,
    FragmentPhase,
)
from accy_async.compiler.preparation.job import PreparedJob
from accy_async.compiler.preparation.target import TargetKernel
from accy_async.compiler.semantic import TensorType

__all__ = ["compile_plan"]

CreateArtifact = Callable[[ArtifactRequest], KernelArtifact]


def compile_plan(
    job: PreparedJob,
    *,
    create_artifact: CreateArtifact | None = None,
    cache: bool | ArtifactStore = True,
    check_cancelled: Callable[[], None] | None = None,
    instrumentation: FragmentInstrumentation | None = None,
) -> ArtifactPlan:
    """Make the code of a prepared job's kernels and put the plan together.

    A job can be compiled any number of times; nothing is prepared again, and the same
    job gives the same plan.

    Args:
        job: what `prepare` gave.
        create_artifact: a backend's, which checks each kernel against the device;
            `KernelArtifact.from_request` if left out.
        cache: True for `accy_async.artifact.default_store`, False for none, or a
            store. Code is kept under a fingerprint of the kernel, the format, the
            target, the compiler and the emitters.
        check_cancelled: called before each kernel; what it raises ends the work.
            What was made until then is in the cache.
        instrumentation: who is told of the two phases; the job's options' if None.

    Raises:
        CapabilityMismatch: the device cannot run a kernel.
        RuntimeUnavailable: a compiler is not installed; the message says which, and
            how to get it.
        UnsupportedOperation: no code is made in the format.
        CompilationError: a compiler refused what was emitted; a bug of ours.

    Blocks for 10 to 100 ms for each kernel that is not in the cache, about 0.2 ms for
    one that is: call it in a worker thread.
    """
    told = job.options.instrumentation if instrumentation is None else instrumentation
    store = default_store() if cache is True else cache or None
    create = create_artifact or KernelArtifact.from_request
    with told.timed(FragmentPhase.PLAN_CREATE_BACKEND_ARTIFACTS):
        maker = CodeMaker(job.profile, store)
        artifacts: dict[int, KernelArtifact] = {}
        kernels = []
        for number, kernel in enumerate(job.target.kernels):
            if check_cancelled is not None:
                check_cancelled()
            made_of = id(kernel.code or kernel.prepared.entry)
            if made_of not in artifacts:
                artifacts[made_of] = create(_request(job, kernel, maker))
            kernels.append(_planned(job, number, kernel, artifacts[made_of]))
    with told.timed(FragmentPhase.COMPILE_FRAGMENT):
        memory = job.target.plan.memory
        return ArtifactPlan(
            name=job.name,
            format=job.profile.format,
            slots=job.target.plan.slots,
            kernels=tuple(kernels),
            input_slot_ids=memory.input_slot_ids,
            output_slot_ids=memory.output_slot_ids,
        )


def _request(
    job: PreparedJob, kernel: TargetKernel, maker: CodeMaker
) -> ArtifactRequest:
    if kernel.code is None:
        entry = kernel.prepared.entry
        assert entry is not None
        return entry.artifact_request(job.options.authored_kernel_diagnostic_id)
    assert kernel.prepared.step is not None
    return ArtifactRequest(
        kernel_name=kernel.entry_name,
        requested_format=job.profile.format,
        argument_count=len(kernel.code.buffers),
        payload=maker.code(kernel.code),
        required_dtypes=kernel.prepared.step.required_dtypes,
    )


def _planned(
    job: PreparedJob, number: int, kernel: TargetKernel, artifact: KernelArtifact
) -> PlannedKernel:
    prepared, step, entry = (
        kernel.prepared,
        kernel.prepared.step,
        kernel.prepared.entry,
    )
    arguments = list(zip(prepared.arguments, prepared.layouts, strict=True))
    planned = PlannedKernel(
        kernel_id=number,
        work_item_id=prepared.work_item_id,
        source=prepared.source,
        compile_launch=prepared.kind,
        artifact=artifact,
        arguments=prepared.arguments,
        op_count=prepared.op_count,
        element_count=prepared.element_count,
        element_count_argument=prepared.element_count_argument,
        static_arguments=() if entry is None else entry.static_arguments,
        runtime_scalar_argument_count=(
            0 if entry is None else entry.runtime_scalar_argument_count
        ),
        runtime_scalar_defaults=prepared.runtime_scalar_defaults,
        launch=kernel.launch_resources.geometry if entry is None else entry.launch,
        launch_resources=kernel.launch_resources,
        tile=LaunchTile() if step is None else step.tile,
        output_layout_fingerprint=_layouts(t for a, t in arguments if a.is_written),
        input_layout_fingerprint=_layouts(
            t for a, t in arguments if a.access != "write_only"
        ),
    )
    if step is not None:
        return attrs.evolve(planned, required_dtypes=step.required_dtypes)
    assert entry is not None
    return attrs.evolve(
        planned,
        required_dtypes=entry.required_dtypes,
        required_features=entry.required_features,
        required_subgroup=entry.required_subgroup,
        diagnostic_id=job.options.authored_kernel_diagnostic_id,
    )


def _layouts(types: Iterable[TensorType]) -> int:
    """Names the layouts of some values, in their order; never 0."""
    return fingerprint(tuple((type.dtype, type.shape) for type in types)) or 1
