"""Loaded kernels of the CPU backend, and the checks of their launches."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.native.loader import (
    NativeKernel,
    load_machine_code,
    load_object,
)
from accy_async.backends.cpu.identity import MAX_BLOCKS
from accy_async.backends.cpu.pool import Pace
from accy_async.backends.handles import BufferAccess
from accy_async.errors import (
    CapabilityMismatch,
    InvalidArtifact,
    LaunchArgumentMismatch,
    UnsupportedOperation,
)

if TYPE_CHECKING:
    from accy_async.artifact.native.signature import KernelSignature
    from accy_async.backends.cpu.memory import CpuMemory
    from accy_async.backends.launch import LaunchRequest

__all__ = ["CpuKernel", "CpuLaunch", "load_kernel"]

_LOADERS = {
    ArtifactFormat.CPU_MACHINE_CODE: load_machine_code,
    ArtifactFormat.CPU_OBJECT: load_object,
}


def load_kernel(artifact: KernelArtifact) -> CpuKernel:
    """Load an artifact's kernel and make ready what every launch needs.

    Raises:
        UnsupportedOperation: it is of a format that CPUs do not load.
        InvalidArtifact: it is no native code, lacks the kernel, or the kernel
            takes other arguments than the artifact says.
        RuntimeUnavailable: this system cannot run native kernels.
        OutOfMemory: there is no memory for it.
    """
    loader = _LOADERS.get(artifact.format)
    if loader is None:
        raise UnsupportedOperation(
            f"kernel {artifact.kernel_name!r}: the CPU does not load {artifact.format}"
        )
    payload = artifact.payload
    if isinstance(payload, str):
        raise InvalidArtifact(
            f"kernel {artifact.kernel_name!r}: a payload of {artifact.format} is "
            "bytes, got text"
        )
    native = loader(payload, artifact.kernel_name)
    signature = native.signature
    takes = len(signature.buffers), len(signature.scalars)
    says = artifact.buffer_argument_count, artifact.scalar_argument_count
    if takes != says:
        native.close()
        raise InvalidArtifact(
            f"kernel {artifact.kernel_name!r} takes {takes[0]} buffers and {takes[1]} "
            f"scalars, its artifact says {says[0]} and {says[1]}"
        )
    return CpuKernel(native)


class CpuLaunch:
    """What a launch request comes to in the kernel's own terms.

    Attributes:
        kernel: the kernel.
        request: the request.
        arguments: the argument slots.
        shape: the grid, then the threadgroup.
        blocks: how many blocks the grid has.
        pace: what they cost.
        shared_bytes: dynamic shared memory.
    """

    __slots__ = (
        "arguments",
        "blocks",
        "kernel",
        "pace",
        "request",
        "shape",
        "shared_bytes",
    )

    def __init__(
        self, kernel: CpuKernel, request: LaunchRequest, arguments: bytes
    ) -> None:
        geometry = request.geometry
        self.kernel = kernel
        self.request = request
        self.arguments = arguments
        self.shape = (*geometry.grid, *geometry.threadgroup)
        self.blocks = geometry.block_count
        self.pace = kernel.pace_of(self.blocks)
        self.shared_bytes = geometry.dynamic_shared_memory_bytes


class CpuKernel:
    """One loaded kernel.

    Attributes:
        name: its entry name.
        signature: what it takes.
        function: the native function.
    """

    __slots__ = (
        "_buffers",
        "_native",
        "_paces",
        "_pack",
        "_scalars",
        "function",
        "name",
        "signature",
    )

    def __init__(self, native: NativeKernel) -> None:
        signature = native.signature
        self._native = native
        self._scalars = signature.scalars
        self._buffers = tuple(
            (parameter.access != "read_only", parameter.dtype.size_bytes)
            for parameter in signature.buffers
        )
        self.name = signature.entry_name
        self.signature: KernelSignature = signature
        self.function = native.function
        self._paces: dict[int, Pace] = {}
        slots = len(signature.buffers) + len(signature.scalars)
        self._pack = struct.Struct(f"={slots}Q").pack

    def close(self) -> None:
        """Unmap the code; nothing may be running it."""
        self._native.close()

    def pace_of(self, blocks: int) -> Pace:
        """What blocks cost, in launches of about so many.

        Where a grid's blocks share out a given amount of work, as those of launch
        candidates do, a block costs the less the more of them there are.
        """
        size = blocks.bit_length()
        pace = self._paces.get(size)
        if pace is None:
            pace = self._paces.setdefault(size, Pace())
        return pace

    def prepare(self, request: LaunchRequest, memories: list[CpuMemory]) -> CpuLaunch:
        """The launch in the kernel's terms, its arguments packed."""
        arguments = self._pack(
            *[memory.address for memory in memories],
            *[scalar.slot for scalar in request.scalars],
        )
        return CpuLaunch(self, request, arguments)

    def check(self, request: LaunchRequest) -> None:
        """Refuse a launch that the kernel cannot take.

        Raises:
            LaunchArgumentMismatch: an argument or the threadgroup is not the
                kernel's.
            CapabilityMismatch: the grid has more blocks than can be counted.
        """
        geometry = request.geometry
        if geometry.threadgroup != self.signature.threadgroup:
            raise self._mismatch(
                "threadgroup", geometry.threadgroup, self.signature.threadgroup
            )
        scalars = request.scalars
        if len(scalars) != len(self._scalars):
            raise self._mismatch("scalar count", len(scalars), len(self._scalars))
        for index, (scalar, dtype) in enumerate(
            zip(scalars, self._scalars, strict=True)
        ):
            if scalar.dtype is not dtype:
                raise self._mismatch(f"scalar {index}", repr(scalar), dtype)
        buffers = request.buffers
        if len(buffers) != len(self._buffers):
            raise self._mismatch("buffer count", len(buffers), len(self._buffers))
        for index, (binding, (is_written, size)) in enumerate(
            zip(buffers, self._buffers, strict=True)
        ):
            if is_written and binding.access is BufferAccess.READ_ONLY:
                wanted = self.signature.buffers[index].access
                raise self._mismatch(
                    f"access of buffer {index}", binding.access, wanted
                )
            if binding.byte_size % size:
                dtype = self.signature.buffers[index].dtype
                raise self._mismatch(
                    f"buffer {index}",
                    f"{binding.byte_size} bytes",
                    f"whole elements of {dtype}",
                )
        if geometry.block_count > MAX_BLOCKS:
            raise CapabilityMismatch(
                f"kernel {self.name!r}: grid {geometry.grid} has "
                f"{geometry.block_count} blocks, the device takes {MAX_BLOCKS}"
            )

    def _mismatch(
        self, what: str, given: object, wanted: object
    ) -> LaunchArgumentMismatch:
        return LaunchArgumentMismatch(
            f"kernel {self.name!r}: {what} is {given}, expected {wanted}"
        )
