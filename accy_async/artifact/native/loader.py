"""Loading native kernels: every check first, then a mapping of their own.

A payload is read, compared with this machine and its signatures, and linked
while it is still plain bytes; memory is made for it only when nothing is left
that could be refused. A loaded kernel owns its mapping: close it when no call is
running and none will come.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Collection
from typing import cast

import attrs

from accy_async.artifact.native.abi import KernelFunction
from accy_async.artifact.native.elf import parse_object
from accy_async.artifact.native.host import (
    host_architecture,
    host_level,
    level_supports,
)
from accy_async.artifact.native.image import MachineImage, decode_image
from accy_async.artifact.native.link import find_exports, find_signatures, link_image
from accy_async.artifact.native.memory import (
    map_image,
    require_native_code,
    unmap_image,
)
from accy_async.artifact.native.signature import KernelSignature, decode_signatures
from accy_async.errors import (
    CapabilityMismatch,
    InvalidArtifact,
    InvalidType,
    RuntimeUnavailable,
)

__all__ = ["ForeignMachineCode", "NativeKernel", "load_machine_code", "load_object"]

Payload = bytes | bytearray | memoryview


class ForeignMachineCode(InvalidArtifact, CapabilityMismatch):
    """Native code for another architecture or a higher instruction-set level.

    It is both: the payload is not one for here (`InvalidArtifact`), and the
    machine lacks what the payload requires (`CapabilityMismatch`).
    """


@attrs.define(eq=False, repr=False)
class NativeKernel:
    """One kernel, mapped and ready to be called.

    Whoever loaded it closes it. Closing waits for nothing: the caller knows that
    no call is running. A kernel that is dropped open stays mapped, since another
    thread may be in it, and a ResourceWarning says so.

    Attributes:
        signature: what it takes.
        image_bytes: what its image occupies in memory.
    """

    signature: KernelSignature
    image_bytes: int
    _base: int
    _offset: int
    _function: Callable[[object, object], int] = attrs.field(init=False)
    _is_open: bool = attrs.field(default=True, init=False)
    _lock: threading.Lock = attrs.field(factory=threading.Lock, init=False)

    def __attrs_post_init__(self) -> None:
        self._function = cast(
            "Callable[[object, object], int]",
            KernelFunction(self._base + self._offset),
        )

    @property
    def entry_name(self) -> str:
        """The kernel's name in its payload."""
        return self.signature.entry_name

    @property
    def function(self) -> Callable[[object, object], int]:
        """The C function, an `abi.KernelFunction`, without the interpreter lock.

        It must not be called after the kernel was closed, nor closed during a
        call.

        Raises:
            InvalidArtifact: the kernel was closed.
        """
        self._require_open()
        return self._function

    @property
    def address(self) -> int:
        """Where the function begins in memory.

        Raises:
            InvalidArtifact: the kernel was closed.
        """
        self._require_open()
        return self._base + self._offset

    @property
    def is_closed(self) -> bool:
        """Whether `close` was called."""
        return not self._is_open

    def close(self) -> None:
        """Unmap the kernel's image; closing again does nothing."""
        with self._lock:
            if not self._is_open:
                return
            self._is_open = False
        unmap_image(self._base, self.image_bytes)

    def _require_open(self) -> None:
        if not self._is_open:
            raise InvalidArtifact(f"native kernel {self.entry_name!r} was closed")

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<NativeKernel {self.entry_name!r} {state}>"

    def __del__(self) -> None:
        # Absent where construction failed.
        if getattr(self, "_is_open", False):
            warnings.warn(
                f"native kernel {self.entry_name!r} was dropped without close(); its "
                f"{self.image_bytes} bytes stay mapped",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )


def load_object(payload: Payload, entry_name: str) -> NativeKernel:
    """Load one kernel of a ``cpu_object`` payload: an ELF relocatable object.

    Raises:
        InvalidType: the payload is not bytes.
        InvalidArtifact: it is malformed or not supported, or has no such kernel.
        ForeignMachineCode: it is for another architecture or a higher level.
        RuntimeUnavailable: this system cannot run native kernels.
        OutOfMemory: there is no memory for it.
    """
    parsed = parse_object(_to_bytes(payload))
    _check_architecture(parsed.architecture)
    signature = _check_entry(
        find_signatures(parsed), parsed.architecture, find_exports(parsed), entry_name
    )
    return _map_kernel(link_image(parsed), signature)


def load_machine_code(payload: Payload, entry_name: str) -> NativeKernel:
    """Load one kernel of a ``cpu_machine_code`` payload, as `link_object` makes it.

    Raises:
        InvalidType: the payload is not bytes.
        InvalidArtifact: it is malformed, changed, or has no such kernel.
        ForeignMachineCode: it is for another architecture or a higher level.
        RuntimeUnavailable: this system cannot run native kernels.
        OutOfMemory: there is no memory for it.
    """
    image = decode_image(_to_bytes(payload))
    _check_architecture(image.architecture)
    names = [name for name, _ in image.exports]
    signature = _check_entry(image.signatures, image.architecture, names, entry_name)
    return _map_kernel(image, signature)


def _to_bytes(payload: object) -> bytes:
    if isinstance(payload, bytes):
        return payload
    if isinstance(payload, (bytearray, memoryview)):
        return bytes(payload)
    raise InvalidType("payload", payload, "bytes")


def _check_architecture(architecture: str) -> None:
    host = host_architecture()
    if host not in ("x86_64", "aarch64"):
        raise RuntimeUnavailable(
            f"native kernels run on x86_64 and aarch64, this machine is {host}"
        )
    require_native_code()
    if architecture != host:
        raise ForeignMachineCode(
            f"native code for {architecture}, this machine is {host}"
        )


def _check_entry(
    signatures: bytes, architecture: str, exports: Collection[str], entry_name: str
) -> KernelSignature:
    table = decode_signatures(signatures)
    if table.architecture != architecture:
        raise InvalidArtifact(
            f"native code for {architecture}, whose signatures say {table.architecture}"
        )
    level = host_level()
    if not level_supports(level, table.level):
        raise ForeignMachineCode(
            f"native code for {table.level}, this machine supports {level}"
        )
    signature = table.find(entry_name)
    if signature is not None and entry_name in exports:
        return signature
    usable = [k.entry_name for k in table.kernels if k.entry_name in exports]
    listed = ", ".join(sorted(usable)[:32]) or "none"
    reason = "no signature" if signature is None else "a signature, but no code"
    raise InvalidArtifact(
        f"native code has {reason} for an entry {entry_name!r}; its entries are: "
        f"{listed}"
    )


def _map_kernel(image: MachineImage, signature: KernelSignature) -> NativeKernel:
    offset = dict(image.exports).get(signature.entry_name)
    if offset is None:
        raise InvalidArtifact(
            f"the code of entry {signature.entry_name!r} is in a section that is not "
            "loaded"
        )
    base = map_image(image)
    return NativeKernel(signature, image.memory_bytes, base, offset)
