"""Memory, threads and code of the CPU backend come and go as they should."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path

import anyio
import numpy as np
import pytest

from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact
from accy_async.backends import BackendKind
from accy_async.backends.cpu import CpuBackend, describe
from accy_async.dtypes import ScalarArgument
from accy_async.errors import (
    DeviceError,
    InvalidArtifact,
    InvalidValue,
    OutOfMemory,
    UnsupportedOperation,
)
from tests.conformance.devices import CpuDevice
from tests.cpu import native
from tests.threads import join_threads


def our_threads() -> list[str]:
    """The names of the CPU backends' threads that are running."""
    return [
        t.name for t in threading.enumerate() if t.name.startswith("accy_async cpu")
    ]


def test_opening_a_backend_starts_no_thread() -> None:
    backend = CpuBackend()
    backend.create_stream()
    backend.create_event()
    backend.allocate_buffer(4)
    assert our_threads() == []
    backend.close()


def test_threads_end_after_close() -> None:
    device = CpuDevice(workers=2)

    async def main() -> None:
        for _ in range(5):
            stream = device.backend.create_stream()
            buffer = device.write([0] * 5000, stream)
            device.backend.launch(
                device.request("count", [buffer], grid=(5000, 1, 1), stream=stream)
            )
        await device.backend.wait_device()

    anyio.run(main)
    assert len(our_threads()) >= 5
    device.close()
    assert our_threads() == []


def test_threads_of_a_dropped_backend_end_and_a_warning_names_it() -> None:
    async def main() -> None:
        backend = CpuBackend(workers=2, index=3)
        buffer = backend.allocate_buffer(1 << 20)
        for stream in (None, backend.create_stream()):
            backend.write_buffer(buffer, np.zeros(1 << 18, np.float32), stream=stream)
        await backend.wait_device()

    anyio.run(main)
    assert len(our_threads()) >= 2
    with pytest.warns(ResourceWarning, match=r"cpu:3 was dropped without close\(\)"):
        gc.collect()
    join_threads()


def test_an_unused_backend_may_be_dropped() -> None:
    backend = CpuBackend()
    backend.create_stream()
    dropped = weakref.ref(backend)
    del backend
    gc.collect()
    assert dropped() is None


def test_thread_of_a_destroyed_stream_ends() -> None:
    device = CpuDevice()
    stream = device.backend.create_stream()
    device.write([0], stream)
    release = device.hold(stream)
    device.backend.destroy(stream)
    assert our_threads() == [f"accy_async cpu stream {stream.id}"]
    release()
    join_threads()
    device.close()


def test_work_submitted_before_close_is_done_after_it() -> None:
    device = CpuDevice()
    release = device.hold()
    out = np.zeros(1, np.uint32)
    buffer = device.write([7])
    device.backend.read_buffer(buffer, out)
    device.backend.close()
    assert "buffers" in str(device.backend.live_objects())
    release()
    join_threads()
    assert out[0] == 7
    assert set(device.backend.live_objects().values()) == {0}


@pytest.mark.anyio
async def test_memory_goes_when_the_buffer_and_its_last_use_have(
    cpu: CpuDevice,
) -> None:
    backend = cpu.backend
    assert isinstance(backend, CpuBackend)
    before = backend.bytes_in_use
    buffer = cpu.write([1, 2, 3])
    memory = weakref.ref(cpu.words(buffer).base)
    assert backend.bytes_in_use == before + 12
    release = cpu.hold()
    backend.launch(cpu.request("count", [buffer], grid=(3, 1, 1)))
    assert backend.destroy(buffer) is False
    gc.collect()
    assert memory() is not None
    release()
    await backend.wait_default_stream()
    gc.collect()
    assert memory() is None
    assert backend.bytes_in_use == before


@pytest.mark.anyio
async def test_failure_that_is_kept_keeps_no_memory(cpu: CpuDevice) -> None:
    """C25: neither the error nor its cause holds what the kernel used."""
    backend = cpu.backend
    buffer = cpu.write([1])
    memory = weakref.ref(cpu.words(buffer).base)
    scalars = [ScalarArgument.u64(0), ScalarArgument.i32(3)]
    backend.launch(cpu.request("fail", [buffer], scalars, grid=(64, 1, 1)))
    kept: list[BaseException] = []
    try:
        await backend.wait_default_stream()
    except DeviceError as error:
        kept.append(error)
    backend.destroy(buffer)
    gc.collect()
    assert kept
    assert memory() is None


@pytest.mark.anyio
async def test_host_memory_is_let_go_when_the_copy_is_done(cpu: CpuDevice) -> None:
    backend = cpu.backend
    for size in (16, 1 << 20):
        array = np.ones(size, np.uint8)
        alive = weakref.ref(array)
        buffer = backend.allocate_buffer(size)
        release = cpu.hold()
        backend.write_buffer(buffer, array)
        del array
        gc.collect()
        assert alive() is not None
        release()
        await backend.wait_default_stream()
        assert alive() is None
        backend.destroy(buffer)


@pytest.mark.parametrize("alignment", [1, 64, 256, 4096, 1 << 21])
def test_buffers_are_aligned_as_asked(cpu: CpuDevice, alignment: int) -> None:
    for size in (4, 1000, 1 << 16):
        buffer = cpu.backend.allocate_buffer(size, alignment=alignment)
        address = cpu.backend._table.get(buffer).payload.address  # type: ignore[attr-defined]
        assert address % max(alignment, 64) == 0


def test_memory_limit_is_kept() -> None:
    backend = CpuBackend(memory_limit_bytes=1000)
    first = backend.allocate_buffer(600)
    with pytest.raises(OutOfMemory, match="500 bytes asked for, 600 of 1000") as caught:
        backend.allocate_buffer(500)
    assert caught.value.requested_bytes == 500
    backend.destroy(first)
    assert backend.bytes_in_use == 0
    backend.allocate_buffer(1000)
    backend.close()
    assert backend.bytes_in_use == 0


@pytest.mark.parametrize("size", [1 << 60, 2**63 - 1])
def test_more_than_the_system_has_is_refused(size: int) -> None:
    backend = CpuBackend()
    with pytest.raises(OutOfMemory) as caught:
        backend.allocate_buffer(size)
    assert caught.value.requested_bytes == size
    assert backend.bytes_in_use == 0
    assert backend.live_objects()["buffers"] == 0
    backend.close()


@pytest.mark.anyio
@pytest.mark.parametrize(
    "format", [ArtifactFormat.CPU_MACHINE_CODE, ArtifactFormat.CPU_OBJECT]
)
async def test_both_formats_run(cpu: CpuDevice, format: ArtifactFormat) -> None:
    backend = cpu.backend
    asked = native.artifact("count", format)
    artifact = backend.create_artifact(
        ArtifactRequest(
            kernel_name="count",
            requested_format=format,
            argument_count=1,
            payload=asked.payload,
        )
    )
    assert artifact == asked
    loaded = backend.load_artifact(artifact)
    cpu._loaded["count"] = loaded
    buffer = cpu.write([0] * 9)
    backend.launch(cpu.request("count", [buffer], grid=(3, 3, 1)))
    assert await cpu.read(buffer) == [1] * 9


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"payload": b"nonsense"}, InvalidArtifact, "machine code"),
        (
            {"payload": native.artifact("count").payload[:200]},
            InvalidArtifact,
            "machine code",
        ),
        ({"payload": "text"}, InvalidArtifact, "is bytes, got text"),
        ({"kernel_name": "missing"}, InvalidArtifact, "missing"),
        ({"argument_count": 2}, InvalidArtifact, "takes 1 buffers and 0 scalars"),
        ({"format": ArtifactFormat.CUDA_PTX}, UnsupportedOperation, "cuda_ptx"),
    ],
)
def test_artifact_that_cannot_be_loaded_is_refused(
    cpu: CpuDevice, change: dict[str, object], error: type[Exception], message: str
) -> None:
    good = native.artifact("count")
    fields: dict[str, object] = {
        "kernel_name": good.kernel_name,
        "format": good.format,
        "argument_count": good.argument_count,
        "scalar_argument_count": good.scalar_argument_count,
        "payload": good.payload,
    }
    artifact = KernelArtifact(**{**fields, **change})  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        cpu.backend.load_artifact(artifact)
    assert cpu.new_objects() == {}


def test_text_is_no_artifact(cpu: CpuDevice) -> None:
    with pytest.raises(InvalidArtifact, match="is bytes, got text"):
        cpu.backend.create_artifact(
            ArtifactRequest(
                kernel_name="k",
                requested_format=ArtifactFormat.CPU_OBJECT,
                argument_count=0,
                payload="text",
            )
        )


def test_device_is_described_without_being_opened() -> None:
    identity = describe()
    backend = CpuBackend()
    assert backend.capabilities.identity == identity
    assert identity.backend is BackendKind.CPU
    assert identity.compute_units >= 1
    assert identity.memory_bytes > 0
    few = CpuBackend(workers=identity.compute_units + 1)
    assert few.capabilities.fingerprint != backend.capabilities.fingerprint
    for opened in (backend, few):
        opened.close()


@pytest.mark.parametrize(
    ("arguments", "field"),
    [({"workers": 0}, "workers"), ({"memory_limit_bytes": -1}, "memory_limit_bytes")],
)
def test_wrong_arguments_are_refused(arguments: dict[str, int], field: str) -> None:
    with pytest.raises(InvalidValue, match=field):
        CpuBackend(**arguments)


ENDLESS = """
from tests.conformance.devices import CpuDevice

device = CpuDevice()
device.hold()
device.hold(device.backend.create_stream())
{ending}
print("ended", flush=True)
"""


@pytest.mark.parametrize("ending", ["", "device.backend.close()"])
def test_kernel_that_never_ends_lets_the_interpreter_exit(ending: str) -> None:
    """Its thread is a daemon: neither a close nor the exit waits for it."""
    child = subprocess.run(
        [sys.executable, "-c", ENDLESS.format(ending=ending)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (child.returncode, child.stdout, child.stderr) == (0, "ended\n", "")
