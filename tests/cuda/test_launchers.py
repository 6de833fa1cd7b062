"""Launchers on the CUDA backend, through machine code and through the bindings."""

from __future__ import annotations

import gc
import struct
import sys
import threading
from collections import Counter
from types import FrameType
from typing import cast

import attrs
import pytest

from accy_async.artifact import FixedLaunch
from accy_async.backends import BufferBinding, BufferHandle, LaunchRequest, StreamHandle
from accy_async.backends.cuda import CudaBackend, thunks
from accy_async.backends.cuda.launching import CudaLauncher
from accy_async.backends.cuda.thunks import Record, thunk_code
from accy_async.backends.exchange import Arrival
from accy_async.backends.lifetimes import ResourceTable
from accy_async.errors import (
    DeviceError,
    DeviceLost,
    InvalidArtifact,
    InvalidBuffer,
    RuntimeUnavailable,
    SessionClosed,
)
from tests.cuda.fake import FakeDriver
from tests.gpu import native

ONE = FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))


@pytest.fixture(params=["machine code", "bindings"])
def backend(driver: FakeDriver, request: pytest.FixtureRequest) -> CudaBackend:
    driver.tells_addresses = request.param == "machine code"
    return CudaBackend()


@pytest.fixture
def buffers(backend: CudaBackend) -> list[BufferHandle]:
    return [backend.allocate_buffer(64) for _ in range(3)]


@pytest.fixture
def stream(backend: CudaBackend) -> StreamHandle:
    return backend.create_stream()


def bind(
    backend: CudaBackend,
    buffers: list[BufferHandle],
    stream: StreamHandle | None,
    node: str | None = None,
) -> CudaLauncher:
    artifact = native.artifact(("empty", "count", "combine")[len(buffers)])
    return cast(
        "CudaLauncher",
        backend.bind_launch(
            LaunchRequest(
                artifact=artifact,
                loaded=backend.load_artifact(artifact),
                buffers=tuple(BufferBinding(handle=buffer) for buffer in buffers),
                geometry=ONE,
                stream=stream,
                diagnostic_id=node,
            )
        ),
    )


def test_a_launch_is_one_call_of_ours_and_one_of_the_drivers(
    backend: CudaBackend,
    driver: FakeDriver,
    buffers: list[BufferHandle],
    stream: StreamHandle,
) -> None:
    """And the lock's two."""
    submit = bind(backend, buffers[:2], stream).submit
    submit()
    driver.keeps_launches = False
    before = driver.calls.copy()
    seen: Counter[str] = Counter()

    def look(frame: FrameType, event: str, argument: object) -> None:
        if event == "call" and "accy_async" in frame.f_code.co_filename:
            seen[frame.f_code.co_name] += 1
        elif event == "c_call" and getattr(argument, "__self__", None) is backend._lock:
            seen[argument.__name__] += 1  # type: ignore[attr-defined]

    sys.setprofile(look)
    try:
        for _ in range(100):
            submit()
    finally:
        sys.setprofile(None)
    assert driver.calls - before == {"cuLaunchKernelEx": 100}
    plain = {} if driver.tells_addresses else {"<lambda>": 100}
    assert seen == {"submit": 100, "acquire": 100, "release": 100, **plain}


def test_launchers_keep_nothing_and_return_their_thunks(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle]
) -> None:
    driver.keeps_launches = False
    submit = bind(backend, buffers[:1], None).submit
    del driver.values[:]

    def allocated(count: int) -> int:
        for _ in range(count):
            submit()
        del driver.values[:]
        gc.collect()
        return sys.getallocatedblocks()

    allocated(2000)
    first = allocated(100)
    assert allocated(3000) - first <= 10  # of the interpreter's own
    before = len(thunks._PAGES.free)
    several = [bind(backend, buffers[:1], None).submit for _ in range(3)]
    taken = 3 if driver.tells_addresses else 0
    assert (before - len(thunks._PAGES.free)) % thunks._PER_PAGE == taken
    several.clear()
    gc.collect()
    assert (len(thunks._PAGES.free) - before) % thunks._PER_PAGE == 0


def test_launchers_of_one_kernel_keep_to_their_streams_and_arguments(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle]
) -> None:
    streams = [None, *(backend.create_stream() for _ in range(2))]
    launchers = [
        bind(backend, [buffer], stream)
        for buffer, stream in zip(buffers, streams, strict=True)
    ]
    for _ in range(2):
        for launcher in launchers:
            launcher.submit()
    launchers[0].set_buffer(0, BufferBinding(handle=buffers[2]))
    launchers[0].submit()
    used = [launched.stream for launched in driver.launches]
    assert used[:3] == used[3:6]
    assert len(set(used)) == 3
    assert used[6] == used[0]
    if driver.tells_addresses:
        assert driver.values[:3] == driver.values[3:6]
        assert driver.values[6] == driver.values[2]


@pytest.mark.parametrize("rounds", [0, 2])
def test_what_was_destroyed_is_refused_before_the_driver_is_asked(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle], rounds: int
) -> None:
    both = bind(backend, buffers[:2], None)
    one = bind(backend, buffers[:1], None)
    for _ in range(rounds):
        both.submit()
        one.submit()
    backend.destroy(buffers[1])
    asked = driver.calls["cuLaunchKernelEx"]
    with pytest.raises(InvalidBuffer, match=f"buffer {buffers[1].id} .* was destroyed"):
        both.submit()
    assert driver.calls["cuLaunchKernelEx"] == asked
    both.set_buffer(1, BufferBinding(handle=buffers[2]))
    assert both.submit() == one.submit() - 1
    backend.destroy(one.request.loaded)
    with pytest.raises(InvalidArtifact, match=r"artifact .*\(count\) was destroyed"):
        one.submit()
    backend.close()
    with pytest.raises(SessionClosed):
        both.submit()


def table(backend: CudaBackend) -> ResourceTable:
    return backend._table


def test_a_buffer_that_was_exchanged_is_in_use_no_further(
    backend: CudaBackend, buffers: list[BufferHandle], stream: StreamHandle
) -> None:
    launcher = bind(backend, buffers[:2], stream)
    line = backend._stream(stream).timeline
    first = table(backend).get(buffers[0])
    launcher.submit()
    launcher.set_buffer(0, BufferBinding(handle=buffers[2]))
    for _ in range(3):
        launcher.submit()
    second, third = (table(backend).get(buffer) for buffer in buffers[1:])
    assert first.last_positions() == {line: 1}
    assert second.last_positions() == third.last_positions() == {line: 4}
    launcher.set_buffer(0, BufferBinding(handle=buffers[1]))  # twice the same
    launcher.submit()
    launcher.set_buffer(0, BufferBinding(handle=buffers[0]))
    launcher.submit()
    launcher.set_buffer(1, BufferBinding(handle=buffers[2]))
    launcher.submit()
    positions = [table(backend).get(b).last_positions()[line] for b in buffers]
    assert positions == [7, 6, 7]


@pytest.mark.parametrize("code", [201, 400])
def test_a_launch_without_our_context_is_made_again_with_it(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle], code: int
) -> None:
    launcher = bind(backend, buffers[:1], None)
    driver.answers["cuLaunchKernelEx"] = [code]
    before = driver.calls["cuCtxSetCurrent"]
    assert launcher.submit() == 1
    assert len(driver.launches) == 1
    assert driver.calls["cuCtxSetCurrent"] == before + 1


def test_a_refused_launch_names_everything_and_leaves_the_lock(
    backend: CudaBackend,
    driver: FakeDriver,
    buffers: list[BufferHandle],
    stream: StreamHandle,
) -> None:
    launcher = bind(backend, buffers[:2], stream, "the node")
    driver.answers["cuLaunchKernelEx"] = [1]
    with pytest.raises(DeviceError) as caught:
        launcher.submit()
    error = caught.value
    assert (error.kernel, error.node, error.stream, error.call, error.code) == (
        "combine", "the node", stream.id, "cuLaunchKernelEx", 1,
    )  # fmt: skip
    thread = threading.Thread(target=launcher.submit)  # which needs the lock
    thread.start()
    thread.join()
    assert len(driver.launches) == 1
    driver.answers["cuLaunchKernelEx"] = [700]
    with pytest.raises(DeviceError):
        launcher.submit()
    with pytest.raises(DeviceLost):
        launcher.submit()


def test_an_interrupt_at_the_lock_leaves_it_as_it_was(
    backend: CudaBackend, buffers: list[BufferHandle]
) -> None:
    """Before it is had, and right behind."""
    real = backend._lock

    class Interrupted:
        is_before = True

        def acquire(self) -> None:
            if not self.is_before:
                real.acquire()
            raise KeyboardInterrupt

        def release(self) -> None:
            real.release()

    launcher = bind(backend, buffers[:1], None)
    lock = Interrupted()
    for lock.is_before in (True, False):
        backend._lock = lock  # type: ignore[assignment]
        with pytest.raises(KeyboardInterrupt):
            launcher.submit()
        assert not real._is_owned()  # type: ignore[attr-defined]
    backend._lock = real
    assert launcher.submit() == 1


def test_an_interrupt_behind_a_refused_launch_leaves_no_lock(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle]
) -> None:
    """Nothing is asked of the lock before it is released, where one might come in."""
    real = backend._lock

    class Lock:
        acquire, release = real.acquire, real.release

        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    launcher = bind(backend, buffers[:1], None)
    launcher.submit()
    driver.answers["cuLaunchKernelEx"] = [1]
    backend._lock = Lock()  # type: ignore[assignment]
    with pytest.raises(DeviceError):
        launcher.submit()
    assert not real._is_owned()  # type: ignore[attr-defined]
    backend._lock = real


def test_where_no_machine_code_runs_the_bindings_are_called(
    backend: CudaBackend,
    driver: FakeDriver,
    buffers: list[BufferHandle],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse() -> None:
        raise RuntimeUnavailable("not here")

    monkeypatch.setattr(thunks._PAGES, "take", refuse)
    assert bind(backend, buffers[:1], None).submit() == 1
    assert len(driver.launches) == 1
    assert not driver.values


def test_what_is_submitted_often_comes_to_be_made_by_machine_code(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle]
) -> None:
    """On whatever streams; and it is refused and made again like any other."""
    prepared = backend.prepare_launch(bind(backend, buffers[:1], None).request)
    streams = [backend.create_stream(), None]
    for number in range(40):
        backend.submit_launch(prepared, streams[number % 2])
    assert len(driver.launches) == 40
    assert len(driver.values) == (24 if driver.tells_addresses else 0)
    used = [launched.stream for launched in driver.launches]
    assert used == used[:2] * 20
    assert len(set(used)) == 2
    driver.answers["cuLaunchKernelEx"] = [201]
    backend.submit_launch(prepared)
    driver.answers["cuLaunchKernelEx"] = [1]
    with pytest.raises(DeviceError, match="cuLaunchKernelEx"):
        backend.submit_launch(prepared)
    backend.submit_launches([prepared] * 3)
    assert len(driver.launches) == 44


def test_debugging_waits_behind_each_launch(driver: FakeDriver) -> None:
    driver.tells_addresses = True
    backend = CudaBackend(debug=True)
    bind(backend, [], None).submit()
    assert driver.calls["cuStreamSynchronize"] == 1
    backend.close()


class _OnItsWay:
    """What a stream has to wait for before it uses the buffer."""

    is_past = False

    def __init__(self) -> None:
        self.admitted: list[object] = []

    def admit(self, state: object) -> None:
        self.admitted.append(state)


def test_a_buffer_that_arrives_is_waited_for_by_the_next_launch(
    backend: CudaBackend, buffers: list[BufferHandle]
) -> None:
    launcher = bind(backend, buffers[:1], None)
    launcher.submit()
    arrival = _OnItsWay()
    table(backend).get(buffers[1]).arrive(cast("Arrival", arrival))
    launcher.set_buffer(0, BufferBinding(handle=buffers[1]))
    assert not arrival.admitted
    for _ in range(2):
        launcher.submit()
        assert arrival.admitted == [backend._default]


def test_the_aarch64_thunk_passes_the_four_arguments() -> None:
    """Through an emulator."""
    unicorn = pytest.importorskip("unicorn", reason="the emulator is not installed")
    arm64 = pytest.importorskip("unicorn.arm64_const")
    code, record, callee = 0x1000_0000, 0x2000_0000, 0x3000_0000
    machine = unicorn.Uc(unicorn.UC_ARCH_ARM64, unicorn.UC_MODE_ARM)
    for place in (code, record, callee):
        machine.mem_map(place, 4096)
    machine.mem_write(code, thunk_code("aarch64", record))
    machine.mem_write(record, bytes(Record(11, 22, 33, callee)))
    machine.mem_write(callee, struct.pack("<I", 0xD65F03C0))
    machine.reg_write(arm64.UC_ARM64_REG_X3, 99)
    machine.emu_start(code, callee)
    given = [machine.reg_read(getattr(arm64, f"UC_ARM64_REG_X{i}")) for i in range(4)]
    assert given == [11, 22, 33, 0]


def test_a_copied_request_binds_another_launcher(
    backend: CudaBackend, driver: FakeDriver, buffers: list[BufferHandle]
) -> None:
    """Launchers share nothing that changes."""
    first = bind(backend, buffers[:1], None)
    second = backend.bind_launch(attrs.evolve(first.request))
    second.set_buffer(0, BufferBinding(handle=buffers[1]))
    first.submit()
    second.submit()
    assert first.request.buffers[0].handle is buffers[0]
    if driver.tells_addresses:
        assert len(set(driver.values)) == 2
