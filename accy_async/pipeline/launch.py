"""Launching a pipeline: with the caller's kernels and scratch, or with its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio.lowlevel
import attrs

from accy_async.artifact.parameters import check_buffer_sizes
from accy_async.backends.cleanup import Cleanup
from accy_async.backends.handles import BufferBinding, Handle, StreamHandle
from accy_async.backends.launch import LaunchRequest
from accy_async.backends.loading import load_entry
from accy_async.backends.loops import uninterrupted
from accy_async.errors import LaunchArgumentMismatch
from accy_async.pipeline.intermediates import (
    allocate_bindings,
    check_intermediates,
    intermediate_byte_size,
)
from accy_async.pipeline.model import Operand, Result
from accy_async.pipeline.pool import PipelineArtifactPool, PoolEntry
from accy_async.pipeline.request import PipelineLaunch, check_request
from accy_async.pipeline.resolved import (
    ResolvedPipeline,
    StageLaunch,
    check_device,
    resolve_pipeline,
)

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.backends.launch import PreparedLaunch

__all__ = ["launch_pipeline", "submit_pipeline"]


@attrs.frozen(eq=False)
class _Prepared:
    """A launch that was checked: what is left is to allocate, load and submit."""

    resolved: ResolvedPipeline
    launches: list[StageLaunch]
    scratch_bytes: list[int]
    is_empty: bool


@uninterrupted
async def launch_pipeline(
    backend: Backend, request: PipelineLaunch, *, grace_s: float | None = None
) -> None:
    """Run a pipeline once.

    Everything is checked before anything is allocated, loaded or launched. The
    stages are submitted in their order to ``request.stream``.

    With both a pool and scratch of the caller's, the call returns without waiting:
    the caller waits for the stream before reading results. (Reusing or freeing the
    buffers needs no wait: the backend orders it behind this launch.) Such a request
    is checked and packed at its first launch: keep it to launch it again.
    Otherwise the call awaits the stream (the whole device without one), and then
    destroys the kernels it loaded and the scratch it allocated.

    A launch whose runtime scalars leave no work at all is a completed no-op.

    Args:
        backend: the device.
        request: what to launch, with what.
        grace_s: how long a cleanup may wait for the device, in seconds; the
            backend's own if left out.

    Raises:
        InvalidType: ``request`` is no `PipelineLaunch`, or ``backend`` no backend.
        InvalidArtifact, UnsupportedOperation: the chain does not fit its
            registry; see `load_pipeline_artifacts`.
        LaunchArgumentMismatch: operands, results, scalars, pool or scratch do
            not fit the chain.
        OutOfMemory, RuntimeUnavailable, CompilationError, CapabilityMismatch:
            scratch or kernels could not be had.
        DeviceError: a stage failed; it names the stage, kernel and stream.
        ExceptionGroup: the cleanup failed as well, or a cancelled launch's
            cleanup failed. In it is a `GraceExpired` where the device did not
            finish in time; the objects that it names were left to the reaper.

    Cancellation: before the first stage nothing has happened. Afterwards no
        further stage is submitted, those submitted are awaited for the grace at
        most, and what the call owns is destroyed. The caller's own pool and
        scratch are left alone.
    """
    # The checkpoint comes first: from the check to the first submission nobody
    # else can close what the launch brings.
    await anyio.lowlevel.checkpoint()
    check_device("launch_pipeline", backend)
    check_request("launch_pipeline", request)
    if request.artifacts is not None and request.intermediates is not None:
        _submit_all(backend, request, request.artifacts)
        return
    request = request.bound_on(backend)
    prepared = _prepare(backend, request)
    if not prepared.is_empty:
        await _launch_owning(backend, request, prepared, grace_s)


def submit_pipeline(backend: Backend, request: PipelineLaunch) -> None:
    """Submit a pipeline with the caller's pool and scratch. Sync; never waits.

    What `launch_pipeline` does for such a request, without its checkpoint.

    Raises:
        LaunchArgumentMismatch: ``artifacts`` or ``intermediates`` is missing,
            or as for `launch_pipeline`.
    """
    check_device("submit_pipeline", backend)
    check_request("submit_pipeline", request)
    if request.artifacts is None or request.intermediates is None:
        raise LaunchArgumentMismatch(
            "submit_pipeline needs the caller's artifacts and intermediates; "
            "await launch_pipeline without them"
        )
    _submit_all(backend, request, request.artifacts)


def _prepare(backend: Backend, request: PipelineLaunch) -> _Prepared:
    """Check a launch as a whole, touching nothing."""
    pipeline = request.pipeline
    pool = request.artifacts
    if pool is not None and pool.resolved.is_for(
        pipeline, request.registry, request.format
    ):
        resolved = pool.resolved
    else:
        resolved = resolve_pipeline(pipeline, request.registry, request.format)
    _check_bindings(backend, request)
    scalars = request.runtime_scalar_arguments
    pipeline.validate_runtime_scalar_arguments(scalars)
    if pool is not None:
        _check_pool(backend, request, pool)
    launches = resolved.launches(scalars)
    if resolved.is_empty(scalars, launches):
        return _Prepared(resolved, launches, [], is_empty=True)
    sizes = [intermediate_byte_size(s, scalars) for s in pipeline.intermediates]
    if request.intermediates is not None:
        check_intermediates(
            pipeline, sizes, request.intermediates, request.operands, request.results
        )
    return _Prepared(resolved, launches, sizes, is_empty=False)


def _check_bindings(backend: Backend, request: PipelineLaunch) -> None:
    pipeline = request.pipeline
    for what, bindings, count in (
        ("operands", request.operands, pipeline.operand_count),
        ("results", request.results, pipeline.result_count),
        ("intermediates", request.intermediates or (), None),
    ):
        if count is not None and len(bindings) != count:
            raise LaunchArgumentMismatch(
                f"pipeline {pipeline.target!r} takes {count} {what}, "
                f"{len(bindings)} were given"
            )
        for number, binding in enumerate(bindings):
            if why := backend.foreign(binding.handle):
                raise LaunchArgumentMismatch(
                    f"pipeline {pipeline.target!r}: {what}[{number}]: buffer "
                    f"{binding.handle.id} {why}"
                )
            if what == "results" and binding.handle.is_read_only:
                raise LaunchArgumentMismatch(
                    f"pipeline {pipeline.target!r}: results[{number}] is read-only"
                )
    if request.stream is not None and (why := backend.foreign(request.stream)):
        raise LaunchArgumentMismatch(
            f"pipeline {pipeline.target!r}: stream {request.stream.id} {why}"
        )


def _check_pool(
    backend: Backend, request: PipelineLaunch, pool: PipelineArtifactPool
) -> None:
    pipeline = request.pipeline
    for what, got, expected in (
        ("stages", len(pool.entries), len(pipeline.stages)),
        ("version", pool.version, pipeline.version),
        ("format", pool.format, request.format),
        ("target", pool.target, pipeline.target),
    ):
        if got != expected:
            raise LaunchArgumentMismatch(
                f"artifact pool: {what} {got!s}, the launch needs {expected!s}"
            )
    if pool.is_closed:
        raise LaunchArgumentMismatch(f"artifact pool of {pool.target!r}: it is closed")
    if pool.backend != backend:
        raise LaunchArgumentMismatch(
            f"artifact pool of {pool.target!r}: it was loaded on another backend, of "
            f"{pool.backend.device}; the launch is on {backend.device}"
        )


async def _launch_owning(
    backend: Backend,
    request: PipelineLaunch,
    prepared: _Prepared,
    grace_s: float | None,
) -> None:
    """Launch with scratch or kernels of the call's own, and clean up after it."""
    scratch: Sequence[BufferBinding]
    if request.intermediates is None:
        scratch = allocate_bindings(backend, prepared.scratch_bytes)
        owned: list[Handle] = [binding.handle for binding in reversed(scratch)]
    else:
        scratch = request.intermediates
        owned = []
    is_in_flight = False
    primary: BaseException | None = None
    try:
        for index in range(len(prepared.launches)):
            if request.artifacts is not None:
                entry = request.artifacts.entries[index]
            else:
                entry = await load_entry(
                    backend,
                    prepared.resolved.stages[index].entry,
                    request.diagnostic_id,
                )
                owned.append(entry.loaded)
            backend.launch(_request(request, prepared, index, entry, scratch))
            is_in_flight = True
        await _wait(backend, request.stream)
        is_in_flight = False
    except BaseException as error:  # noqa: BLE001 - leave() raises it
        primary = error
    await Cleanup(backend, f"pipeline {request.pipeline.target!r}", grace_s).leave(
        primary,
        wait=(lambda: _wait(backend, request.stream)) if is_in_flight else None,
        handles=owned,
    )


async def _wait(backend: Backend, stream: StreamHandle | None) -> None:
    if stream is None:
        await backend.wait_device()
    else:
        await backend.wait_stream(stream)


def _submit_all(
    backend: Backend, request: PipelineLaunch, pool: PipelineArtifactPool
) -> None:
    """Submit every stage, checked and packed once for each request and pool."""
    if pool.is_closed or pool.backend is not backend:  # then they are looked at
        _check_pool(backend, request, pool)
    launches = pool.launches.get(request)
    if launches is None:
        bound = request.bound_on(backend)
        launches = _prepare_all(backend, bound, pool)
        if bound is request:  # else what it has is to be adopted anew each time
            pool.launches[request] = launches
    backend.submit_launches(launches, request.stream)


def _prepare_all(
    backend: Backend, request: PipelineLaunch, pool: PipelineArtifactPool
) -> tuple[PreparedLaunch, ...]:
    prepared = _prepare(backend, request)
    if prepared.is_empty:
        return ()
    scratch = request.intermediates or ()
    return tuple(
        backend.prepare_launch(_request(request, prepared, index, entry, scratch))
        for index, entry in enumerate(pool.entries)
    )


def _request(
    request: PipelineLaunch,
    prepared: _Prepared,
    index: int,
    entry: PoolEntry,
    scratch: Sequence[BufferBinding],
) -> LaunchRequest:
    resolved = prepared.resolved.stages[index]
    launch = prepared.launches[index]
    buffers = []
    for ref in resolved.stage.buffers:
        if isinstance(ref, Operand):
            buffers.append(request.operands[ref.index])
        elif isinstance(ref, Result):
            buffers.append(request.results[ref.index])
        else:
            buffers.append(scratch[ref.index])
    runtime = launch.scalars[: resolved.entry.runtime_scalar_argument_count]
    check_buffer_sizes(
        resolved.node,
        resolved.entry.buffers,
        runtime,
        [binding.byte_size for binding in buffers],
    )
    return LaunchRequest(
        artifact=entry.artifact,
        loaded=entry.loaded,
        buffers=tuple(buffers),
        scalars=launch.scalars,
        geometry=launch.geometry,
        stream=request.stream,
        diagnostic_id=request.diagnostic_id or resolved.node,
    )
