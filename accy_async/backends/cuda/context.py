"""One device's primary context, current on every thread that calls."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.requirements import DeviceFeatures, SubgroupFeatures
from accy_async.backends.capabilities import Capabilities, DeviceIdentity
from accy_async.backends.cuda.conditions import LEAST_DRIVER
from accy_async.backends.cuda.driver import (
    STICKY_CODES,
    DriverError,
    driver_error,
    load_driver,
    outputs,
    unavailable,
)
from accy_async.errors import AccyError, InvalidValue

__all__ = ["CudaContext"]

_MAX_CLUSTER = 16
"""Blocks of a cluster that a kernel may ask for: CUDA C++ Programming Guide, "Thread
Block Clusters", for compute capability 9.0. What fits is seen when it is prepared."""
_NO_DEVICE = 100
_CANNOT_BE_HAD = frozenset({3, 46, 101, 802, 805, 807, 999})
"""Codes of a device that is there, and not for us: CUDA Driver API, enum CUresult."""


_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"
_MOST_QUEUES = 32
"""CUDA C++ Programming Guide, "CUDA Environment Variables"."""


@contextmanager
def _with_all_queues() -> Iterator[None]:
    """Have a context that is made within get as many hardware queues as there may be.

    Streams share the queues, 8 of them as CUDA comes, and in one queue a kernel waits
    for an event that was recorded before it, of whatever stream. On an H200 sixteen
    kernels of 1 ms between a fork and a join took 2 ms so, and 1 ms with 32 queues.
    """
    if _QUEUES in os.environ:  # the program has its reasons
        yield
        return
    os.environ[_QUEUES] = str(_MOST_QUEUES)
    try:
        yield
    finally:
        os.environ.pop(_QUEUES, None)


_THREAD = threading.local()
"""Its ``current`` is the context that we made current on the thread last: there is
one for all devices."""


class CudaContext:
    """The primary context of one device, shared with every library in the process.

    Args:
        device: the device's index, or its UUID as ``GPU-...``.

    Raises:
        BackendUnavailable: no driver, or no device.
        InvalidValue: no such device.

    Attributes:
        driver: the bindings.
        index: the device's index.
        capabilities: what it is and can do.
        driver_version: as the driver counts it, e.g. 13000 for 13.0.
        on_loss: told of an error after which the context is gone; gives the error to
            raise in its place.
    """

    def __init__(self, device: int | str = 0) -> None:
        self.on_loss: Callable[[DriverError], AccyError] | None = None
        self._lock = threading.Lock()
        with _with_all_queues():
            self.driver: Any = load_driver()
            self._retain(device)
        try:
            self.driver_version = int(
                self.check(self.driver.cuDriverGetVersion(), "cuDriverGetVersion")
            )
            self.make_current()
            self.capabilities = self._capabilities()
        except BaseException:
            self.driver.cuDevicePrimaryCtxRelease(self._device)
            raise

    def _retain(self, device: int | str) -> None:
        count = self.check(self.driver.cuDeviceGetCount(), "cuDeviceGetCount")
        if count == 0:
            raise unavailable(self.driver, _NO_DEVICE)
        self.index = self._find(device, count)
        self._device = self.check(self.driver.cuDeviceGet(self.index), "cuDeviceGet")
        answer = self.driver.cuDevicePrimaryCtxRetain(self._device)
        if answer[0] in _CANNOT_BE_HAD:
            raise unavailable(self.driver, answer[0])
        self._context = self.check(answer, "cuDevicePrimaryCtxRetain")

    @property
    def device(self) -> Any:  # noqa: ANN401 - the driver's own handle
        """The driver's handle of the device."""
        return self._device

    @property
    def native(self) -> Any:  # noqa: ANN401 - the driver's own handle
        """The driver's handle of the context."""
        return self._context

    @property
    def compute_capability(self) -> tuple[int, int]:
        """Major and minor."""
        return self._attribute("COMPUTE_CAPABILITY_MAJOR"), self._attribute(
            "COMPUTE_CAPABILITY_MINOR"
        )

    def check(self, answer: Any, call: str) -> Any:  # noqa: ANN401
        """What a driver call gave besides its result code.

        Args:
            answer: what the call returned: its CUresult, then its outputs.
            call: its name.

        Raises:
            OutOfMemory, InvalidArtifact, CapabilityMismatch, DriverError: by the code.
            DeviceLost: the context is gone; by another call's fault, probably.
        """
        if answer[0] != 0:
            raise self.error(answer[0], call)
        return outputs(answer)

    def error(self, result: Any, call: str) -> AccyError:  # noqa: ANN401
        """The error of a result code that is not success."""
        error = driver_error(self.driver, result, call)
        if (
            isinstance(error, DriverError)
            and error.code in STICKY_CODES
            and self.on_loss is not None
        ):
            return self.on_loss(error)
        return error

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """A block of calls that may not stop what others of the process capture.

        Allocating and the like is refused while any stream of the process is being
        captured in its usual mode, and ends the capture. None of ours is captured.

        Where the driver refuses to change the mode, the block runs without, so that
        nothing is left unfreed, and nothing that it made is lost.

        Source: CUDA Driver API, cuThreadExchangeStreamCaptureMode.

        Raises:
            DeviceLost: the context is gone, as that call found.
        """
        mode = self.driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self._exchange_mode(mode)
        try:
            yield
        finally:
            if before is not None:
                self._exchange_mode(before)

    def _exchange_mode(self, mode: Any) -> Any:  # noqa: ANN401
        """Change how this thread takes captures; the mode before, None if refused."""
        result, *before = self.driver.cuThreadExchangeStreamCaptureMode(mode)
        if int(result) in STICKY_CODES:
            raise self.error(result, "cuThreadExchangeStreamCaptureMode")
        return before[0] if before else None

    def make_current(self) -> None:
        """Make the context current on this thread, unless we did so before."""
        if getattr(_THREAD, "current", None) is not self:
            self.make_current_again()

    def make_current_again(self) -> None:
        """The same, though another library may have changed it since.

        Any call may return what broke the context that is current, another device's
        perhaps: then the thread leaves that one first, and only what the call says
        after that is this device's.
        """
        answer = self.driver.cuCtxSetCurrent(self._context)
        if int(answer[0]) in STICKY_CODES:
            _THREAD.current = None
            self.driver.cuCtxSetCurrent(0)
            answer = self.driver.cuCtxSetCurrent(self._context)
        self.check(answer, "cuCtxSetCurrent")
        _THREAD.current = self

    def release(self) -> None:
        """Give the context back; nothing of it may be in use any more."""
        self.check(
            self.driver.cuDevicePrimaryCtxRelease(self._device),
            "cuDevicePrimaryCtxRelease",
        )

    def _find(self, device: int | str, count: int) -> int:
        if isinstance(device, int) and not isinstance(device, bool):
            if 0 <= device < count:
                return device
        elif isinstance(device, str):
            # The driver gives a part of a GPU (MIG) the UUID that begins with MIG-.
            wanted = device.lower().removeprefix("gpu-").removeprefix("mig-")
            uuids = [self._uuid(index) for index in range(count)]
            if wanted in uuids:
                return uuids.index(wanted)
            here = ", ".join(f"GPU-{one}" for one in uuids)
            raise InvalidValue("CudaBackend.device", device, f"an index, or of {here}")
        raise InvalidValue(
            "CudaBackend.device", device, f"an index below {count}, or a device's UUID"
        )

    @property
    def uuid(self) -> str:
        """Which device it is, in any process and in any order of the devices."""
        return f"GPU-{self._uuid(self.index)}"

    def _uuid(self, index: int) -> str:
        handle = self.check(self.driver.cuDeviceGet(index), "cuDeviceGet")
        raw = self.check(self.driver.cuDeviceGetUuid(handle), "cuDeviceGetUuid").bytes
        return str(UUID(bytes=bytes(raw)))

    def _attribute(self, name: str) -> int:
        attribute = getattr(
            self.driver.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}"
        )
        answer = self.driver.cuDeviceGetAttribute(attribute, self._device)
        return int(self.check(answer, f"cuDeviceGetAttribute({name})"))

    def _capabilities(self) -> Capabilities:
        get = self._attribute
        major, minor = self.compute_capability
        name = self.check(
            self.driver.cuDeviceGetName(96, self._device), "cuDeviceGetName"
        )
        memory = self.check(
            self.driver.cuDeviceTotalMem(self._device), "cuDeviceTotalMem"
        )
        least, greatest = self.check(
            self.driver.cuCtxGetStreamPriorityRange(), "cuCtxGetStreamPriorityRange"
        )
        version = f"{self.driver_version // 1000}.{self.driver_version % 1000 // 10}"
        return Capabilities(
            identity=DeviceIdentity(
                backend=BackendKind.CUDA,
                name=name.split(b"\0")[0].decode(),
                vendor="NVIDIA",
                architecture=f"sm_{major}{minor}",
                compute_units=get("MULTIPROCESSOR_COUNT"),
                memory_bytes=int(memory),
                driver=version,
                index=self.index,
            ),
            formats=frozenset({ArtifactFormat.CUDA_PTX, ArtifactFormat.CUDA_CUBIN}),
            features=DeviceFeatures(
                tensor_cores=major >= 7,
                async_copy=major >= 8,
                clusters=bool(get("CLUSTER_LAUNCH")),
                cooperative_launch=bool(get("COOPERATIVE_LAUNCH")),
                float_atomics=True,
                int64_atomics=True,
            ),
            subgroup=SubgroupFeatures(
                supported=True,
                shuffle=True,
                vote=True,
                arithmetic=major >= 8,
                size=get("WARP_SIZE"),
            ),
            max_threads_per_block=get("MAX_THREADS_PER_BLOCK"),
            max_threadgroup=(
                get("MAX_BLOCK_DIM_X"),
                get("MAX_BLOCK_DIM_Y"),
                get("MAX_BLOCK_DIM_Z"),
            ),
            max_grid=(
                get("MAX_GRID_DIM_X"),
                get("MAX_GRID_DIM_Y"),
                get("MAX_GRID_DIM_Z"),
            ),
            max_shared_memory_bytes=get("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
            max_cluster_blocks=_MAX_CLUSTER,
            priorities=(int(least), int(greatest)),
            max_streams=32,
            device_graphs=True,
            device_loops=self.driver_version >= LEAST_DRIVER,
            timing_resolution_ns=500.0,
        )
