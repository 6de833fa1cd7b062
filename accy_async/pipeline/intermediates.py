"""Scratch buffers between the stages of a pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, overload

import anyio.lowlevel

from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.handles import BufferAccess, BufferBinding
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidArtifact, InvalidType, LaunchArgumentMismatch
from accy_async.pipeline.model import KernelCallPipeline, PipelineIntermediate
from accy_async.pipeline.resolved import check_device
from accy_async.values import MAX_BYTES, listed

if TYPE_CHECKING:
    from accy_async.backends.base import Backend

__all__ = [
    "INTERMEDIATE_ALIGNMENT",
    "PipelineIntermediates",
    "allocate_bindings",
    "allocate_pipeline_intermediates",
    "check_intermediates",
    "intermediate_byte_size",
]

INTERMEDIATE_ALIGNMENT = 256
"""Alignment of scratch buffers, in bytes: what CUDA's allocator guarantees."""


def intermediate_byte_size(
    spec: PipelineIntermediate, runtime_scalar_arguments: Sequence[ScalarArgument]
) -> int:
    """The size of an intermediate for these runtime scalars, in bytes.

    Raises:
        InvalidArtifact: it has no elements, or more bytes than can be counted.
        LaunchArgumentMismatch: a scalar that it needs is missing or no u32.
    """
    count = spec.element_count(runtime_scalar_arguments)
    if count == 0:
        raise InvalidArtifact(f"{spec!r}: no elements, expected at least 1")
    byte_size = count * spec.dtype.size_bytes
    if byte_size > MAX_BYTES:
        raise InvalidArtifact(f"{spec!r}: {byte_size} bytes, expected below 2**63")
    return byte_size


class PipelineIntermediates(Sequence[BufferBinding], ClosedOnExit):
    """A pipeline's scratch buffers, allocated once for many launches.

    A sequence of their bindings, readable and writable, and an async context
    manager. One launch at a time may use a set: two that overlap would write
    over each other's values.
    """

    def __init__(self, backend: Backend, bindings: tuple[BufferBinding, ...]) -> None:
        self.backend = backend
        self._bindings = bindings
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._bindings)} buffers"
        return f"<PipelineIntermediates: {state}>"

    @overload
    def __getitem__(self, index: int) -> BufferBinding: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[BufferBinding, ...]: ...

    def __getitem__(
        self, index: int | slice
    ) -> BufferBinding | tuple[BufferBinding, ...]:
        return self._bindings[index]

    def __len__(self) -> int:
        return len(self._bindings)

    @property
    def is_closed(self) -> bool:
        """True once `aclose` has been called."""
        return self._is_closed

    async def aclose(self) -> None:
        """Destroy the buffers, newest first. Idempotent; waits for no launch.

        A buffer that queued work still uses is freed when that work is done:
        until then the backend's reaper holds it.

        Raises:
            AccyError: the device refused to destroy one; the others were
                destroyed all the same. Several errors come as an ExceptionGroup.

        Cancellation: shielded from it; all buffers are destroyed.
        """
        self.close()
        await anyio.lowlevel.cancel_shielded_checkpoint()

    def close(self) -> None:
        """`aclose` for sync code: destroying never waits."""
        if self._is_closed:
            return
        self._is_closed = True
        errors: list[Exception] = []
        handles = (binding.handle for binding in reversed(self._bindings))
        destroy_all(self.backend, handles, errors)
        raise_together(f"closing {self!r}", None, errors)


async def allocate_pipeline_intermediates(
    backend: Backend,
    pipeline: KernelCallPipeline,
    runtime_scalar_arguments: Sequence[ScalarArgument] = (),
) -> PipelineIntermediates:
    """Allocate a pipeline's scratch buffers once, for many launches.

    Checks each runtime scalar, then allocates one readable and writable buffer
    for each intermediate, of the size those scalars give, aligned to 256 bytes.

    Raises:
        InvalidType: the backend, the pipeline or the scalars are none.
        LaunchArgumentMismatch: the scalars are not what the pipeline takes.
        InvalidArtifact: an intermediate has no elements.
        OutOfMemory: no room; the buffers allocated already are destroyed.

    Cancellation: before the first allocation, or not at all.
    """
    call = "allocate_pipeline_intermediates"
    check_device(call, backend)
    if not isinstance(pipeline, KernelCallPipeline):
        raise InvalidType(f"{call}.pipeline", pipeline, "a KernelCallPipeline")
    scalars = listed(
        f"{call}.runtime_scalar_arguments", runtime_scalar_arguments, "scalars"
    )
    pipeline.validate_runtime_scalar_arguments(scalars)
    sizes = [intermediate_byte_size(spec, scalars) for spec in pipeline.intermediates]
    await anyio.lowlevel.checkpoint()
    return PipelineIntermediates(backend, tuple(allocate_bindings(backend, sizes)))


def allocate_bindings(backend: Backend, sizes: Sequence[int]) -> list[BufferBinding]:
    """One read-write binding of a new buffer for each size, or none at all.

    Raises:
        OutOfMemory: no room; the buffers allocated already are destroyed.
    """
    bindings: list[BufferBinding] = []
    try:
        for size in sizes:
            handle = backend.allocate_buffer(size, alignment=INTERMEDIATE_ALIGNMENT)
            bindings.append(
                BufferBinding(handle=handle, access=BufferAccess.READ_WRITE)
            )
    except BaseException as error:
        failures: list[Exception] = []
        destroy_all(backend, (b.handle for b in reversed(bindings)), failures)
        raise_together("allocating intermediates", error, failures)
        raise
    return bindings


def check_intermediates(
    pipeline: KernelCallPipeline,
    sizes: Sequence[int],
    provided: Sequence[BufferBinding],
    operands: Sequence[BufferBinding],
    results: Sequence[BufferBinding],
) -> None:
    """Check scratch that the caller brings.

    Raises:
        LaunchArgumentMismatch: they are closed, there are more or fewer buffers
            than intermediates, one is too small, or one is also another scratch,
            operand or result buffer.
    """
    where = f"pipeline {pipeline.target!r}"
    if isinstance(provided, PipelineIntermediates) and provided.is_closed:
        raise LaunchArgumentMismatch(f"{where}: intermediates: closed already")
    if len(provided) != len(sizes):
        raise LaunchArgumentMismatch(
            f"{where} has {len(sizes)} intermediates, {len(provided)} were given"
        )
    for number, (size, binding) in enumerate(zip(sizes, provided, strict=True)):
        if binding.byte_size < size:
            raise LaunchArgumentMismatch(
                f"{where}: intermediate {number} has {binding.byte_size} bytes, "
                f"expected at least {size}"
            )
        for what, others in (
            ("intermediate", provided[:number]),
            ("operand", operands),
            ("result", results),
        ):
            for index, other in enumerate(others):
                if binding.is_same_buffer(other):
                    raise LaunchArgumentMismatch(
                        f"{where}: intermediate {number} and {what} {index} are the "
                        f"same buffer {binding.handle.id}, expected disjoint ones"
                    )
