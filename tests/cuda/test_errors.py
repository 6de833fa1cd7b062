"""Every driver call is looked at, and what takes the context names who did it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import anyio
import pytest

from accy_async.artifact import ArtifactFormat, FixedLaunch, KernelArtifact
from accy_async.backends import BufferHandle, LaunchRequest, StreamHandle
from accy_async.backends.cuda import CudaBackend
from accy_async.dtypes import DType
from accy_async.errors import AccyError, DeviceError, DeviceLost
from accy_async.session import open_session
from tests.cuda.fake import FakeDriver

ILLEGAL, MISALIGNED, FAILED = 700, 716, 719


def launch(backend: CudaBackend, node: str, stream: StreamHandle | None = None) -> None:
    artifact = KernelArtifact(
        kernel_name="k",
        format=ArtifactFormat.CUDA_CUBIN,
        argument_count=0,
        scalar_argument_count=0,
        payload=b"\x7fELF",
    )
    backend.launch(
        LaunchRequest(
            artifact=artifact,
            loaded=backend.load_artifact(artifact),
            geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
            stream=stream,
            diagnostic_id=node,
        )
    )


def told(call: Callable[[], object]) -> DeviceLost:
    with pytest.raises(DeviceLost) as raised:
        call()
    return raised.value


FINDERS: dict[str, Callable[[CudaBackend, BufferHandle], object]] = {
    "cuLaunchKernelEx": lambda backend, _: launch(backend, "innocent"),
    "cuMemcpyDtoHAsync": lambda b, buffer: b.read_buffer(buffer, bytearray(8)),
    "cuMemcpyHtoDAsync": lambda b, buffer: b.write_buffer(buffer, bytes(8)),
    "cuMemAllocFromPoolAsync": lambda b, _: b.allocate_buffer(8),
    "cuStreamSynchronize": lambda b, _: b.allocate_buffer(8),
    "cuEventCreate": lambda b, _: b.create_event(),
    "cuStreamCreateWithPriority": lambda b, _: b.create_stream(),
    "cuModuleLoadDataEx": lambda backend, _: launch(backend, "innocent"),
    "cuModuleGetFunction": lambda backend, _: launch(backend, "innocent"),
    "cuMemPoolGetAttribute": lambda b, _: b.memory_statistics(),
    "cuMemPoolTrimTo": lambda b, _: b.trim(),
}


@pytest.mark.parametrize("call", FINDERS)
def test_c14_whatever_call_finds_out_the_launch_before_it_is_named(
    backend: CudaBackend, driver: FakeDriver, call: str
) -> None:
    buffer = backend.allocate_buffer(8)
    launch(backend, "culprit")
    driver.answers[call] = [ILLEGAL]
    error = told(lambda: FINDERS[call](backend, buffer))
    assert (error.node, error.kernel, error.code) == ("culprit", "k", ILLEGAL)
    assert error.is_consequence
    assert call in str(error)
    assert not backend.is_healthy
    before = driver.calls.copy()
    later = told(lambda: launch(backend, "later"))
    assert later.node == "culprit"
    assert later.__cause__ is error.__cause__
    assert driver.calls == before  # nobody asked the driver again


def test_c14_what_was_known_to_be_done_is_no_suspect(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    one, two = backend.create_stream(), backend.create_stream()
    launch(backend, "done", one)
    assert backend.is_stream_idle(one)
    launch(backend, "beside", two)
    backend.record_event(backend.create_event(), two)  # which writes the word
    launch(backend, "A", one)
    launch(backend, "B", one)
    driver.answers["cuStreamQuery"] = [FAILED]
    assert not backend.is_stream_idle(one)
    error = told(backend.create_event)
    assert [suspect.node for suspect in error.suspects] == ["A", "B"]
    assert "A (kernel k on stream 1) or B (kernel k on stream 1)" in str(error)


@pytest.mark.anyio
async def test_c14_who_was_told_of_a_loss_by_a_call_is_not_told_again(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """Leaving the session raises only what no call and no wait has raised."""
    async with open_session(backend) as session:
        driver.answers["cuMemAllocFromPoolAsync"] = [ILLEGAL]
        with pytest.raises(DeviceLost):
            session.allocate(4, DType.U32)
        assert not session.is_healthy


@pytest.mark.anyio
async def test_c14_a_loss_that_no_call_has_raised_is_raised_by_the_exit(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    with pytest.raises(DeviceLost, match="cuStreamQuery"):
        async with open_session(backend):
            launch(backend, "culprit")
            driver.answers["cuStreamQuery"] = [ILLEGAL]
            assert not backend.is_stream_idle()


def test_refused_launch_is_no_suspect_and_takes_nothing_along(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    driver.answers["cuLaunchKernelEx"] = [1]
    with pytest.raises(DeviceError) as raised:
        launch(backend, "refused")
    assert raised.value.node == "refused"
    assert backend.is_healthy
    driver.answers["cuEventCreate"] = [ILLEGAL]
    assert told(backend.create_event).suspects == ()


@pytest.mark.parametrize("code", [701, 711, 712, 713, 720, 900, 801, 2])
def test_refusals_are_not_taken_for_a_loss(
    backend: CudaBackend, driver: FakeDriver, code: int
) -> None:
    driver.answers["cuEventCreate"] = [code]
    with pytest.raises(AccyError):
        backend.create_event()
    assert backend.is_healthy


@pytest.mark.parametrize("code", [ILLEGAL, 710, 714, 715, MISALIGNED, 717, 718, FAILED])
def test_debug_waits_for_each_launch_and_names_it(
    driver: FakeDriver, code: int
) -> None:
    backend = CudaBackend(debug=True)
    for node in ("first", "second"):
        launch(backend, node)
    driver.answers["cuStreamSynchronize"] = [code]
    error = told(lambda: launch(backend, "culprit"))
    assert (error.node, error.kernel, error.code) == ("culprit", "k", code)
    assert error.suspects == ()
    assert not error.is_consequence
    backend.close()


@pytest.mark.parametrize(("value", "waits"), [("1", 1), ("0", 0)])
def test_the_environment_asks_for_it_too(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, value: str, waits: int
) -> None:
    monkeypatch.setenv("CUDA_LAUNCH_BLOCKING", value)
    backend = CudaBackend()
    before = driver.calls["cuStreamSynchronize"]
    launch(backend, "n")
    assert driver.calls["cuStreamSynchronize"] == before + waits
    backend.close()


def test_debug_waits_for_copies_too(driver: FakeDriver) -> None:
    backend = CudaBackend(debug=True)
    buffer, other = backend.allocate_buffer(8), backend.allocate_buffer(8)
    submissions: dict[str, Callable[[], object]] = {
        "write": lambda: backend.write_buffer(buffer, bytes(8)),
        "read": lambda: backend.read_buffer(buffer, bytearray(8)),
        "copy": lambda: backend.copy_buffer(buffer, other),
        "fill": lambda: backend.fill_buffer(buffer, b"\1"),
        "launch": lambda: launch(backend, "n"),
    }
    for name, submit in submissions.items():
        before = driver.calls["cuStreamSynchronize"]
        submit()
        assert driver.calls["cuStreamSynchronize"] == before + 1, name
    backend.close()


def scenario(driver: FakeDriver, failing: str | None, code: int) -> None:
    """All that a backend does; the call named fails once, at its first time."""
    if failing is not None:
        # One of them is made again: another device's context may be what was broken.
        times = 3 if failing == "cuCtxSetCurrent" else 1
        driver.answers[failing] = [code] * times
    backend = CudaBackend()
    try:
        stream = backend.create_stream()
        start, end = (backend.create_event(timing=True) for _ in range(2))
        buffer, other = backend.allocate_buffer(16), backend.allocate_buffer(16)
        backend.write_buffer(buffer, bytes(16), stream=stream)
        backend.record_event(start, stream)
        launch(backend, "n", stream)
        backend.fill_buffer(buffer, b"\1\2\3\4\5\6\7\0", stream=stream)
        backend.fill_buffer(buffer, b"\1", stream=stream)
        backend.copy_buffer(buffer, other, stream=stream)
        backend.record_event(end, stream)
        backend.stream_wait_event(None, end)
        backend.read_buffer(other, bytearray(16))
        anyio.run(backend.wait_device)
        driver.answers.setdefault("cuEventElapsedTime", [])
        backend.memory_statistics()
        backend.trim()
        for handle in (buffer, other, start, end, stream):
            backend.destroy(handle)
    finally:
        backend.close()


ASKING_NO_DEVICE = {"cuGetErrorName", "cuGetErrorString", "cuGetProcAddress"}
"""Calls after whose failure all goes on as it would without."""


def calls_of_the_scenario() -> list[str]:
    driver = FakeDriver()
    with pytest.MonkeyPatch.context() as patch:
        from accy_async.backends.cuda import context

        patch.setattr(context, "load_driver", lambda: driver)
        scenario(driver, None, 0)
    return sorted(set(driver.calls) - ASKING_NO_DEVICE)


DISPENSABLE = {
    "cuCtxRecordEvent",
    "cuEventQuery",
    "cuThreadExchangeStreamCaptureMode",
}
"""Refused, these leave something for later, as they do where there is work, or what is
done is done without."""


@pytest.mark.parametrize("code", [1, FAILED])
@pytest.mark.parametrize("call", calls_of_the_scenario())
def test_no_failing_call_goes_unnoticed(
    driver: FakeDriver, call: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever fails, an error says so and names it; and nothing hangs."""
    if call in DISPENSABLE and code == 1:
        scenario(driver, call, code)
        return
    with pytest.raises((AccyError, ExceptionGroup)) as raised:
        scenario(driver, call, code)
    assert call in "".join(all_texts(raised.value))


def test_c61_no_call_ends_what_others_capture(driver: FakeDriver) -> None:
    """All that a backend does, its opening and closing too, spares them."""
    scenario(driver, None, 0)
    assert driver.ending_captures == []


def all_texts(error: BaseException) -> list[str]:
    """What an error says, with what it holds, comes from and met on its way."""
    texts = [str(error), *getattr(error, "__notes__", [])]
    near: list[Any] = [error.__cause__, error.__context__]
    near += error.exceptions if isinstance(error, BaseExceptionGroup) else []
    for other in near:
        if isinstance(other, BaseException):
            texts += all_texts(other)
    return texts


def test_memory_that_could_not_be_waited_for_is_given_back(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """Nobody gets it, so nobody would free it."""
    calls = ("cuMemAllocFromPoolAsync", "cuMemFreeAsync")
    given, taken = (driver.calls[call] for call in calls)
    driver.answers["cuStreamSynchronize"] = [1]
    with pytest.raises(DeviceError, match="cuStreamSynchronize"):
        backend.allocate_buffer(64)
    assert [driver.calls[call] for call in calls] == [given + 1, taken + 1]
    assert backend.live_objects()["buffers"] == 0
