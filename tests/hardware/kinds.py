"""Devices that run what is launched, each behind the same few words.

What is tested here is written once for CUDA and for Vulkan. A `Hardware` says how to
open a device of its kind, what its kernels are made of, how its driver is made to
refuse a call, and what must not be left when it is closed.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any, ClassVar, Protocol
from weakref import WeakKeyDictionary

import anyio
import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat, KernelArtifact
from accy_async.backends import Backend
from tests.graphs.programs import Kernels, library_kernels
from tests.threads import join_threads
from tests.vulkan import harness

__all__ = ["CUDA", "FAKE_CUDA", "VULKAN", "Faults", "Hardware", "on"]


class Faults(Protocol):
    """A driver that refuses calls on request."""

    calls: list[str]
    """The calls so far that can fail, in order."""
    fault: Callable[[int, str], int | None]
    """Told the number and name of each; its answer is the result in its place."""

    def settle(self) -> None:
        """Destroy what it was made to refuse to destroy."""

    def made(self) -> dict[str, int]:
        """What it holds by kind, as far as it counts that."""


class Hardware(ABC):
    """A kind of device."""

    name: ClassVar[str]
    format: ClassVar[ArtifactFormat]
    """What kernels for it are."""
    mark: ClassVar[pytest.MarkDecorator | None] = None
    """What tests on it are marked with."""
    no_kernel: ClassVar[bytes]
    """A payload that is none of its format,"""
    refusal: ClassVar[str]
    """and what an error says of it."""
    fault_code: ClassVar[int]
    """A result of the driver's that leaves the device as it was,"""
    fault_name: ClassVar[str]
    """and its name."""
    unfailing: ClassVar[frozenset[str]]
    """Calls made as often as it takes, which are not counted."""

    absorbed: ClassVar[frozenset[str]]
    """Calls that what was asked for goes on without."""

    def missing(self) -> str:
        """Why there is none here; empty where there is one."""
        return ""

    def __init__(self) -> None:
        self._threads: WeakKeyDictionary[Backend, list[threading.Thread]]
        self._threads = WeakKeyDictionary()

    def open(self, memory_limit_bytes: int | None = None) -> Backend:
        """A device; others may be open meanwhile."""
        threads = threading.enumerate()
        backend = self._open(memory_limit_bytes)
        self._threads[backend] = threads
        return backend

    @abstractmethod
    def _open(self, memory_limit_bytes: int | None) -> Backend:
        """A device."""

    def close(self, backend: Backend) -> None:
        """Close a device on which nothing is left; nor is there behind it."""
        anyio.run(backend.wait_device)  # what is busy is destroyed when it is not
        left = backend.live_objects()
        backend.close()
        self.join_threads(backend)
        assert not any(left.values()), left
        self.check_closed(backend)

    def join_threads(self, backend: Backend) -> None:
        """Wait for the threads of a device that was closed."""
        join_threads(self._threads[backend])

    @abstractmethod
    def artifact(self, name: str) -> KernelArtifact:
        """A small kernel, by the name that the kinds share: see their ``native.py``."""

    @abstractmethod
    def check_quiet(self, backend: Backend) -> None:
        """Assert that a device with no live objects holds nothing for any."""

    @abstractmethod
    def check_closed(self, backend: Backend) -> None:
        """Assert that a closed device gave everything back."""

    @abstractmethod
    def faults(self, monkeypatch: pytest.MonkeyPatch) -> Faults:
        """Have the devices opened from now on call a driver that can refuse."""

    def check(self, found: np.ndarray, expected: np.ndarray) -> None:
        """Assert that kernels computed this, to the last bit, where they run."""
        np.testing.assert_array_equal(found, expected)

    @property
    def kernels(self) -> Kernels:
        """The library's kernels for u32."""
        return library_kernels(self.format)


class Cuda(Hardware):
    """The first NVIDIA GPU."""

    name = "cuda"
    format = ArtifactFormat.CUDA_PTX
    mark: ClassVar[pytest.MarkDecorator | None] = pytest.mark.gpu
    no_kernel = b"\3\2\x23\7" * 9
    refusal = "no PTX"
    fault_code = 304
    fault_name = "CUDA_ERROR_OPERATING_SYSTEM"
    unfailing = frozenset({"cuEventQuery", "cuStreamQuery"})
    absorbed = frozenset({"cuCtxRecordEvent", "cuThreadExchangeStreamCaptureMode"})

    def _open(self, memory_limit_bytes: int | None) -> Backend:
        # Only where it is used: the bindings are not installed everywhere.
        from accy_async.backends.cuda import CudaBackend
        from tests.gpu import native

        native.host_words()  # the primary context is not made anew for each test
        return CudaBackend(memory_limit_bytes=memory_limit_bytes)

    def artifact(self, name: str) -> KernelArtifact:
        from tests.gpu import native

        return native.artifact(name)

    def check_quiet(self, backend: Any) -> None:
        pinned = backend._pinned
        taken = len(pinned._all) - sum(map(len, pinned._idle.values()))
        assert taken == 1, "more than the streams' words"
        backend.trim(keep_bytes=1 << 62)  # trims nothing, and waits for what is freed
        assert backend.memory_statistics()["used_bytes"] == 0

    def check_closed(self, backend: Any) -> None:
        assert backend._is_given_back

    def faults(self, monkeypatch: pytest.MonkeyPatch) -> Faults:
        from tests.cuda.faults import faulty_cuda

        return faulty_cuda(monkeypatch)


class FakeCuda(Cuda):
    """A made-up driver, on which nothing runs."""

    name = "fake cuda"
    mark = None

    def missing(self) -> str:
        return "" if find_spec("cuda") else "the CUDA bindings are not installed"

    def _open(self, memory_limit_bytes: int | None) -> Backend:
        from accy_async.backends.cuda import CudaBackend

        return CudaBackend(memory_limit_bytes=memory_limit_bytes)

    def check(self, found: np.ndarray, expected: np.ndarray) -> None:
        pass

    def faults(self, monkeypatch: pytest.MonkeyPatch) -> Faults:
        from tests.cuda.fake import FakeDriver
        from tests.cuda.faults import faulty_cuda

        return faulty_cuda(monkeypatch, FakeDriver())


class Vulkan(Hardware):
    """The first Vulkan device; the validation layer looks on, where there is one."""

    name = "vulkan"
    format = ArtifactFormat.VULKAN_SPIRV
    mark = pytest.mark.vulkan
    no_kernel = b"\3\2\x23\7" * 9
    refusal = "SPIR-V"
    fault_code = -1
    fault_name = "VK_ERROR_OUT_OF_HOST_MEMORY"
    unfailing = frozenset(
        {"vkGetSemaphoreCounterValue", "vkSignalSemaphore", "vkWaitSemaphores"}
    )
    absorbed = frozenset()

    def missing(self) -> str:
        reason = harness.unavailable()
        return f"no Vulkan: {reason}" if reason else ""

    def _open(self, memory_limit_bytes: int | None) -> Backend:
        from accy_async.backends.vulkan import VulkanBackend

        return VulkanBackend(
            validation=harness.has_validation(), memory_limit_bytes=memory_limit_bytes
        )

    def artifact(self, name: str) -> KernelArtifact:
        from tests.vulkan import native

        return native.artifact(name)

    def check_quiet(self, backend: Any) -> None:
        assert backend.validation_messages == ()

    def check_closed(self, backend: Any) -> None:
        assert backend.validation_messages == ()
        assert backend._device.made() == {}

    def faults(self, monkeypatch: pytest.MonkeyPatch) -> Faults:
        from tests.vulkan.faults import faulty_vulkan

        return faulty_vulkan(monkeypatch)


CUDA, FAKE_CUDA, VULKAN = Cuda(), FakeCuda(), Vulkan()


def on(*kinds: Hardware) -> list[Any]:
    """Parameters of tests that run on each of these kinds."""
    return [
        pytest.param(kind, id=kind.name, marks=[kind.mark] if kind.mark else [])
        for kind in kinds
    ]
