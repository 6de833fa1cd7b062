"""Measuring the candidates of a kernel, with what they work on."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import anyio
import attrs
import numpy as np

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.backends.cleanup import destroy_all
from accy_async.backends.completion import run_abandonable
from accy_async.backends.loading import LoadedKernel, load_entry, load_kernel
from accy_async.bench.declare import KernelBenchmark, KernelCandidate, Output, ReadWrite
from accy_async.dtypes import DType
from accy_async.errors import (
    DeviceLost,
    InvalidType,
    OutOfMemory,
    SessionClosed,
)
from accy_async.tuning.measuring import Candidate, ResultCheck
from accy_async.tuning.search import Variant

if TYPE_CHECKING:
    from accy_async.backends.array import DeviceArray
    from accy_async.backends.handles import BufferBinding
    from accy_async.session import Session

__all__ = ["Arguments", "bytes_of_arguments", "check_of", "made", "open_candidates"]

_ACCESS = {Output: "write_only", ReadWrite: "read_write"}


@attrs.frozen
class Arguments:
    """A kernel's buffers on the device; freed with their last reference."""

    arrays: tuple[DeviceArray, ...]
    bindings: tuple[BufferBinding, ...]

    @classmethod
    async def upload(cls, session: Session, given: Sequence[Any]) -> Arguments:
        """Allocate and upload a benchmark's arguments.

        Raises:
            InvalidBuffer, InvalidValue: one is no array that a device can have.
            OutOfMemory: no room.
        """
        arrays = []
        bindings = []
        for one in given:
            if isinstance(one, Output):
                array = session.allocate(one.shape, one.dtype)
            else:
                host = one.array if isinstance(one, ReadWrite) else np.asarray(one)
                array = await session.upload(host, copy=True)
            arrays.append(array)
            bindings.append(array.binding(_ACCESS.get(type(one), "read_only")))
        return cls(tuple(arrays), tuple(bindings))

    def free(self) -> None:
        """Give the memory back."""
        for array in self.arrays:
            array.free()


def bytes_of_arguments(given: Sequence[Any]) -> int:
    """Each argument once, twice where it is read and written."""
    total = 0
    for one in given:
        if isinstance(one, Output):
            total += one.byte_size
        elif isinstance(one, ReadWrite):
            total += 2 * one.array.nbytes
        else:
            total += np.asarray(one).nbytes
    return total


def check_of(benchmark: KernelBenchmark, given: Sequence[Any]) -> ResultCheck:
    """How results are compared: as numbers of each argument's dtype."""
    dtypes = []
    for one in given:
        if isinstance(one, Output):
            dtypes.append(one.dtype)
        else:
            host = one.array if isinstance(one, ReadWrite) else np.asarray(one)
            dtypes.append(DType.from_numpy(host.dtype))
    return ResultCheck(
        dtypes=tuple(dtypes), relative=benchmark.relative, absolute=benchmark.absolute
    )


async def made(function: Any, what: str) -> Any:  # noqa: ANN401 - whatever it makes
    """What a function of the file makes, called on a thread."""
    return await run_abandonable(function, lambda _: None, name=what)


@asynccontextmanager
async def open_candidates(
    session: Session,
    candidates: Mapping[str, KernelCandidate],
    bindings: Sequence[BufferBinding],
    *,
    limit_s: float,
) -> AsyncIterator[tuple[list[Candidate], dict[str, str]]]:
    """Make and load a kernel's candidates, and unload them on the way out.

    Each is given up after ``limit_s``.

    Yields:
        Those that could be loaded, and of the others why not, by name.
    """
    backend = session.backend
    loaded: list[LoadedKernel] = []
    fit: list[Candidate] = []
    failed: dict[str, str] = {}
    async with AsyncExitStack() as stack:

        def unload() -> None:
            errors: list[Exception] = []
            destroy_all(backend, [one.loaded for one in reversed(loaded)], errors)
            if errors:
                raise ExceptionGroup("a benchmark's kernels: not unloaded", errors)

        stack.callback(unload)
        for name, candidate in candidates.items():
            scope = anyio.move_on_after(limit_s)
            try:
                with scope:
                    variant, kernel = await _load(session, candidate, name)
            except (DeviceLost, OutOfMemory, SessionClosed):
                raise
            except Exception as error:  # noqa: BLE001 - code of the file's
                failed[name] = f"{type(error).__name__}: {error}"
                continue
            if scope.cancelled_caught:  # its thread is left to itself
                failed[name] = f"not made and loaded after {limit_s:g} s"
                continue
            loaded.append(kernel)
            fit.append(variant.candidate(name, kernel, bindings))
        yield fit, failed


async def _load(
    session: Session, candidate: KernelCandidate, name: str
) -> tuple[Variant, LoadedKernel]:
    backend = session.backend
    variant: object = candidate
    if not isinstance(candidate, Variant):
        variant = await made(
            lambda: candidate(session.capabilities), f"make candidate {name}"
        )
    if not isinstance(variant, Variant):
        raise InvalidType(f"candidate {name!r}", variant, "a Variant")
    artifact = variant.artifact
    if isinstance(artifact, KernelCallArtifact):
        return variant, await load_entry(backend, artifact, name)
    return variant, await load_kernel(backend, artifact)
