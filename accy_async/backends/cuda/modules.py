"""Loading modules, after a look at what can be seen to be wrong beforehand."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, cast

from accy_async.artifact.formats import ArtifactFormat
from accy_async.errors import AccyError, InvalidArtifact

if TYPE_CHECKING:
    from collections.abc import Callable

    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.cuda.context import CudaContext
    from accy_async.backends.resources import Resource

__all__ = ["CudaKernel", "LateUnloads", "load_kernel"]

_VERSION = re.compile(rb"^\s*\.version\s+(\d+)\.(\d+)", re.MULTILINE)
_TARGET = re.compile(rb"^\s*\.target\s+(sm_\d+[a-z]?)", re.MULTILINE)
_ENTRY = re.compile(rb"\.entry\s+([A-Za-z_$%][\w$]*)")
_LOG_BYTES = 8192

_PTX_OF_DRIVER = {
    12000: (8, 0), 12010: (8, 1), 12020: (8, 2), 12030: (8, 3), 12040: (8, 4),
    12050: (8, 5), 12060: (8, 5), 12080: (8, 7), 12090: (8, 8),
}  # fmt: skip
"""The newest PTX of each driver: PTX ISA, Release History."""

_COUNTED_ALIKE = 13
"""From this major version on CUDA's minor one is PTX's as well."""


class CudaKernel:
    """A loaded kernel.

    Attributes:
        module, function: the driver's handles.
        shared_bytes: the block-shared memory that its code declares.
        shared_limit: the dynamic one that it may have as things stand.
        has_large_clusters: whether it may have clusters of sizes that not every
            device takes.
    """

    __slots__ = (
        "function",
        "has_large_clusters",
        "module",
        "shared_bytes",
        "shared_limit",
    )

    def __init__(
        self,
        module: Any,  # noqa: ANN401
        function: Any,  # noqa: ANN401
        shared_bytes: int,
        shared_limit: int,
    ) -> None:
        self.module = module
        self.function = function
        self.shared_bytes = shared_bytes
        self.shared_limit = shared_limit
        self.has_large_clusters = False


class LateUnloads:
    """Modules to unload once the device stands still.

    ``cuModuleUnload`` waits for all work of the context, of whatever stream and
    kernel: behind one that does not end it would not return. Seen on an H200 with
    driver 580; the documentation does not say so.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._kernels: list[Resource] = []

    def __len__(self) -> int:
        return len(self._kernels)

    def add(self, kernel: Resource) -> None:
        """Have a kernel's module unloaded later."""
        self._kernels.append(kernel)

    def unload(self, refused: Callable[[Resource, Exception], object]) -> None:
        """Unload them all; nothing may be at work on the device.

        Args:
            refused: told of each kernel whose module the driver refuses to unload.
        """
        self._context.make_current()
        kernels, self._kernels = self._kernels, []
        for kernel in kernels:
            try:
                self._unload(cast("CudaKernel", kernel.payload).module)
            except AccyError as error:
                refused(kernel, error)

    def _unload(self, module: Any) -> None:  # noqa: ANN401
        with self._context.relaxed():
            answer = self._context.driver.cuModuleUnload(module)
        self._context.check(answer, "cuModuleUnload")


def load_kernel(context: CudaContext, artifact: KernelArtifact) -> CudaKernel:
    """Load a kernel from PTX or a cubin.

    Raises:
        InvalidArtifact: the payload is something else, for a newer driver or
            another device, or lacks the kernel.
        DriverError: the driver refused it; its log is in the message.
    """
    payload = artifact.payload
    image = payload.encode() if isinstance(payload, str) else payload
    if artifact.format is ArtifactFormat.CUDA_PTX:
        check_ptx(context, artifact.kernel_name, image)
        image += b"\0"
    elif not image.startswith(b"\x7fELF"):
        raise InvalidArtifact(
            f"kernel {artifact.kernel_name!r}: a cubin is an ELF file, this is not one"
        )
    driver = context.driver
    log = bytes(_LOG_BYTES)  # the bindings have the driver write into it
    options = [
        driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER,
        driver.CUjit_option.CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES,
    ]
    values = [log, len(log)]
    with context.relaxed():
        answer = driver.cuModuleLoadDataEx(image, len(options), options, values)
    if answer[0] != 0:
        error = context.error(answer[0], "cuModuleLoadDataEx")
        text = log.split(b"\0")[0].decode(errors="replace").strip()
        if text:
            error.add_note(text)
        raise error
    module = answer[1]
    answer = driver.cuModuleGetFunction(module, artifact.kernel_name.encode())
    if answer[0] != 0:
        raise _unloaded(context, module, answer[0], "cuModuleGetFunction")
    function = answer[1]
    kinds = driver.CUfunction_attribute
    shared = []
    for attribute in (
        kinds.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES,
        kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
    ):
        answer = driver.cuFuncGetAttribute(attribute, function)
        if answer[0] != 0:
            raise _unloaded(context, module, answer[0], "cuFuncGetAttribute")
        shared.append(int(answer[1]))
    return CudaKernel(module, function, *shared)


def _unloaded(context: CudaContext, module: Any, result: Any, call: str) -> AccyError:  # noqa: ANN401
    """The error of a call on a module, which is of no use then and unloaded."""
    error = context.error(result, call)
    (unloaded,) = context.driver.cuModuleUnload(module)
    if unloaded != 0:
        error.add_note(str(context.error(unloaded, "cuModuleUnload")))
    return error


def _newest_ptx(driver: int) -> tuple[int, int] | None:
    """The newest PTX that a driver takes; None where only the driver knows."""
    if driver // 1000 == _COUNTED_ALIKE:
        return 9, driver % 1000 // 10
    if driver // 1000 > _COUNTED_ALIKE:
        return None
    return max((v for d, v in _PTX_OF_DRIVER.items() if d <= driver), default=None)


def check_ptx(context: CudaContext, kernel: str, text: bytes) -> None:
    """Refuse PTX that the driver or the device cannot take, saying why.

    Raises:
        InvalidArtifact: it is no PTX, too new, for another device, or lacks the
            kernel.
    """
    where = f"kernel {kernel!r}"
    version, target = _VERSION.search(text), _TARGET.search(text)
    if version is None or target is None:
        raise InvalidArtifact(f"{where}: no PTX: it has no .version and .target")
    needs = int(version[1]), int(version[2])
    newest = _newest_ptx(context.driver_version)
    if newest is not None and needs > newest:
        raise InvalidArtifact(
            f"{where}: PTX {needs[0]}.{needs[1]}, the driver supports up to "
            f"{newest[0]}.{newest[1]}; use an older toolkit, a newer driver, or a cubin"
        )
    major, minor = context.compute_capability
    wants = int(re.sub(rb"\D", b"", target[1]))
    if wants > major * 10 + minor:
        raise InvalidArtifact(
            f"{where}: PTX for {target[1].decode()}, the device is sm_{major}{minor}"
        )
    entries = [name.decode() for name in _ENTRY.findall(text)]
    if kernel not in entries:
        listed = ", ".join(entries[:8]) or "none"
        raise InvalidArtifact(f"{where}: the PTX has no such entry; it has {listed}")
