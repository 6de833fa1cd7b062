"""Every backend behind one set of levers, for tests that state the contract.

A `Device` is a backend and what a test needs to make things happen on it: a
stream that stands still until told, a kernel that fails, a kernel that runs.
What a backend cannot do is declared (`executes`), never guessed from its type.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends import (
    Backend,
    BufferAccess,
    BufferBinding,
    BufferHandle,
    LaunchRequest,
    LoadedArtifact,
    StreamHandle,
)
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.cpu.memory import CpuMemory
from accy_async.backends.recording import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from tests.cpu import native
from tests.threads import join_threads

if TYPE_CHECKING:
    from accy_async.backends.cuda.timeline import CudaTimeline

__all__ = [
    "DEVICES",
    "CpuDevice",
    "CudaDevice",
    "Device",
    "RecordingDevice",
    "VulkanDevice",
]

_HOLDS = 8
_INVENTED = BufferHandle(id=10**6, backend=BackendKind.CPU, byte_size=8)


class Device(ABC):
    """One backend under test."""

    executes: bool
    fails_softly: bool = True
    """Whether the backend goes on after a kernel has failed."""
    knows_parameters: bool = True
    """Whether it knows what parameters a kernel has, and of which dtypes."""
    opens_after_fork: bool = True
    """Whether a child process can open a backend of its own."""
    backend: Backend
    _scrap: BufferHandle
    """What kernels are given whose buffer does not matter."""

    def __init__(self) -> None:
        self._loaded: dict[str, LoadedArtifact] = {}
        self._baseline: dict[str, int] = {}
        # Another backend of this process may be open meanwhile.
        self._threads_before = frozenset(threading.enumerate())

    def settle_in(self) -> None:
        """Load what later launches need, and count objects from here."""
        for name in self.kernel_names():
            self._loaded[name] = self.backend.load_artifact(self.artifact(name))
        self._baseline = self.backend.live_objects()

    def kernel_names(self) -> Iterable[str]:
        """The kernels to load beforehand."""
        return native.SIGNATURES

    def artifact(self, name: str) -> KernelArtifact:
        """A kernel that does what `native.SIGNATURES` says of its name."""
        return native.artifact(name)

    def echo_artifact(self, dtype: DType) -> KernelArtifact:
        """A kernel that writes its scalar to its buffer's first element."""
        return native.echo_artifact(dtype)

    def new_objects(self) -> dict[str, int]:
        """Live objects beyond the device's own; kinds without any left out."""
        counts = self.backend.live_objects()
        more = {kind: n - self._baseline[kind] for kind, n in counts.items()}
        return {kind: n for kind, n in more.items() if n}

    def request(
        self,
        kernel: str | KernelArtifact,
        buffers: Sequence[BufferHandle] = (),
        scalars: Sequence[ScalarArgument] = (),
        *,
        grid: tuple[int, int, int] = (1, 1, 1),
        stream: StreamHandle | None = None,
        node: str | None = None,
        access: BufferAccess = BufferAccess.READ_WRITE,
        shared_bytes: int = 0,
    ) -> LaunchRequest:
        """A launch of one of `native.SIGNATURES`, or of another artifact."""
        artifact = self.artifact(kernel) if isinstance(kernel, str) else kernel
        name = artifact.kernel_name
        if name not in self._loaded:
            self._loaded[name] = self.backend.load_artifact(artifact)
        return LaunchRequest(
            artifact=artifact,
            loaded=self._loaded[name],
            buffers=tuple(BufferBinding(handle=b, access=access) for b in buffers),
            scalars=tuple(scalars),
            geometry=FixedLaunch(
                grid=grid,
                threadgroup=(1, 1, 1),
                dynamic_shared_memory_bytes=shared_bytes,
            ),
            stream=stream,
            diagnostic_id=node,
        )

    def mix(
        self, buffer: BufferHandle, tag: int, stream: StreamHandle | None = None
    ) -> None:
        """Launch ``w[0] = w[0] * 31 + tag``."""
        self.backend.launch(
            self.request("mix", [buffer], [ScalarArgument.u32(tag)], stream=stream)
        )

    def write(
        self,
        values: Sequence[int],
        stream: StreamHandle | None = None,
    ) -> BufferHandle:
        """A new buffer of u32 with these values."""
        array = np.array(values, np.uint32)
        buffer = self.backend.allocate_buffer(array.nbytes)
        self.backend.write_buffer(buffer, array, stream=stream)
        return buffer

    async def read(
        self, buffer: BufferHandle, stream: StreamHandle | None = None
    ) -> list[int]:
        """A buffer's values, read behind the stream's work."""
        out = np.full(buffer.byte_size // 4, 0xDEAD, np.uint32)
        self.backend.read_buffer(buffer, out, stream=stream)
        if stream is None:
            await self.backend.wait_default_stream()
        else:
            await self.backend.wait_stream(stream)
        return [int(value) for value in out]

    @abstractmethod
    def hold(self, stream: StreamHandle | None = None) -> Callable[[], None]:
        """Make a stream stand still behind its work; returns what lets it go on."""

    def fail(
        self,
        stream: StreamHandle | None = None,
        *,
        code: int = 7,
        node: str | None = None,
    ) -> None:
        """Submit a kernel that fails on the device."""
        scalars = [ScalarArgument.u64(0), ScalarArgument.i32(code)]
        self.backend.launch(
            self.request("fail", [self._scrap], scalars, stream=stream, node=node)
        )

    @abstractmethod
    def close(self) -> None:
        """Let everything go on, and close the backend."""


class RecordingDevice(Device):
    """The recording backend, pretending to be a CPU."""

    executes = False
    _scrap = _INVENTED

    def __init__(self) -> None:
        super().__init__()
        self.recording = RecordingBackend(BackendKind.CPU)
        self.backend = self.recording
        self._free = [
            (self.backend.create_stream(), self.backend.create_event())
            for _ in range(_HOLDS)
        ]
        self.settle_in()

    def hold(self, stream: StreamHandle | None = None) -> Callable[[], None]:
        # By an event of a stream of its own, so that holds can follow each other.
        gate, event = self._free.pop()
        # By its state, since it must go on after the handle was destroyed.
        state = self.recording._recording_stream(gate)
        self.recording.hold(gate)
        self.recording.record_event(event, gate)
        self.recording.stream_wait_event(stream, event)

        def release() -> None:
            state.is_held = False
            self.recording._pump()

        return release

    def fail(
        self,
        stream: StreamHandle | None = None,
        *,
        code: int = 7,
        node: str | None = None,
    ) -> None:
        self.recording.fail_execution(1, code=code)
        super().fail(stream, code=code, node=node)

    def close(self) -> None:
        self.recording.release_all()
        self.backend.close()


class CpuDevice(Device):
    """The CPU backend; streams are held by a kernel that waits at a gate."""

    executes = True

    def __init__(self, workers: int | None = None) -> None:
        super().__init__()
        self.backend = CpuBackend(workers=workers)
        self._scrap = self.backend.allocate_buffer(4)
        self._gates = [self.backend.allocate_buffer(8) for _ in range(_HOLDS)]
        self._words = [self.words(gate) for gate in self._gates]
        for words in self._words:
            words[:] = 0
        self._free = list(zip(self._gates, self._words, strict=True))
        self.settle_in()

    def words(self, buffer: BufferHandle) -> np.ndarray:
        """A buffer's memory as u32, to look at while kernels use it."""
        memory = cast("CpuMemory", self.backend._table.get(buffer).payload)
        return memory.array.view(np.uint32)

    def hold(self, stream: StreamHandle | None = None) -> Callable[[], None]:
        gate, words = self._free.pop()
        self.backend.launch(
            self.request("gate", [gate], [ScalarArgument.u64(0)], stream=stream)
        )

        def release() -> None:
            words[1] = 1

        return release

    def close(self) -> None:
        for words in self._words:
            words[1] = 1
        self.backend.close()
        join_threads(self._threads_before)


class CudaDevice(Device):
    """One NVIDIA GPU; streams are held by having them wait for a word on the host.

    A kernel that fails takes CUDA's context with it: what then happens is stated
    in tests/gpu/test_errors.py.
    """

    executes = True
    fails_softly = False
    knows_parameters = False
    opens_after_fork = False

    def __init__(self) -> None:
        # Only where it is used: the bindings are not installed everywhere.
        from accy_async.backends.cuda import CudaBackend
        from tests.gpu import native as kernels

        super().__init__()
        self._kernels = kernels
        self._words, self._address = kernels.host_words()
        self._words[:_HOLDS] = 0
        self._free = list(range(_HOLDS))
        self.cuda = CudaBackend()
        self.backend = self.cuda
        self._scrap = self.backend.allocate_buffer(4)
        self.settle_in()

    def kernel_names(self) -> Iterable[str]:
        return self._kernels.NAMES

    def artifact(self, name: str) -> KernelArtifact:
        return self._kernels.artifact(name)

    def echo_artifact(self, dtype: DType) -> KernelArtifact:
        return self._kernels.echo_artifact(dtype)

    def hold(self, stream: StreamHandle | None = None) -> Callable[[], None]:
        number, words = self._free.pop(), self._words
        line = cast("CudaTimeline", self.backend.mark(stream).timeline)
        self.cuda._context.make_current()
        answer = self.cuda._driver.cuStreamWaitValue32(
            self.cuda._natives[line], self._address + 4 * number, 1, 0
        )
        self.cuda._call(answer, "cuStreamWaitValue32")
        # The backend knows nothing of that: give it something to wait for.
        self.backend.launch(self.request("count", [self._scrap], stream=stream))

        def release() -> None:
            words[number] = 1

        return release

    def fail(
        self,
        stream: StreamHandle | None = None,
        *,
        code: int = 7,
        node: str | None = None,
    ) -> None:
        raise NotImplementedError("ask fails_softly first")

    def close(self) -> None:
        self._words[:_HOLDS] = 1
        self.backend.close()
        join_threads(self._threads_before)


class VulkanDevice(Device):
    """The first Vulkan device; streams are held by a gate on the host.

    Where the validation layer is installed, it looks on, and must say nothing.
    """

    executes = True
    knows_parameters = False
    opens_after_fork = False

    def __init__(self) -> None:
        # Only where it is used: the bindings are not installed everywhere.
        from accy_async.backends.vulkan import VulkanBackend
        from tests.vulkan import harness
        from tests.vulkan import native as kernels

        super().__init__()
        self._kernels = kernels
        self.vulkan = VulkanBackend(validation=harness.has_validation())
        self.backend = self.vulkan
        self._gates: list[Callable[[], None]] = []
        self._scrap = self.backend.allocate_buffer(4)
        self.settle_in()

    def kernel_names(self) -> Iterable[str]:
        return self._kernels.NAMES

    def artifact(self, name: str) -> KernelArtifact:
        return self._kernels.artifact(name)

    def echo_artifact(self, dtype: DType) -> KernelArtifact:
        return self._kernels.echo_artifact(dtype)

    def hold(self, stream: StreamHandle | None = None) -> Callable[[], None]:
        from tests.vulkan.gates import hold

        release = hold(self.vulkan, stream)
        self._gates.append(release)
        return release

    def close(self) -> None:
        for release in self._gates:
            release()
        self.backend.close()
        join_threads(self._threads_before)
        assert not self.vulkan.validation_messages, self.vulkan.validation_messages
        assert self.vulkan._device.made() == {}


DEVICES: dict[str, Callable[[], Device]] = {
    "recording": RecordingDevice,
    "cpu": CpuDevice,
    "cuda": CudaDevice,
    "vulkan": VulkanDevice,
}
