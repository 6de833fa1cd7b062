"""What the system or the driver refuses the hub's threads leaves no wait behind."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from typing import cast

import anyio
import pytest

from accy_async.backends.cuda.plainscanner import PlainScanner
from accy_async.backends.cuda.timeline import CudaTimeline
from accy_async.errors import DeviceError, RuntimeUnavailable
from tests.backends.loops import PATIENCE_S
from tests.backends.test_hub import park, submit
from tests.backends.words import WordsDevice, open_device

pytestmark = pytest.mark.anyio


@pytest.fixture
def device() -> Iterator[WordsDevice]:
    with open_device(PlainScanner) as opened:
        yield opened


@pytest.fixture
def anyio_backend() -> str:
    """One will do: the threads know no loop."""
    return "asyncio"


async def wait_parked(device: WordsDevice, line: CudaTimeline) -> None:
    """Wait for a stream that comes to its end when everybody sleeps."""
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, submit(line))
            await park()
            device.do(line)
    assert line.armed is None


@pytest.mark.parametrize("granted", [0, 1])
async def test_a_thread_that_is_refused_is_started_by_the_next_wait(
    device: WordsDevice, monkeypatch: pytest.MonkeyPatch, granted: int
) -> None:
    line = device.line(0)
    start, left = threading.Thread.start, [None] * granted

    def refuse(thread: threading.Thread) -> None:
        if not left:
            raise RuntimeError("can't start new thread")
        left.pop()
        start(thread)

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with anyio.fail_after(PATIENCE_S), pytest.raises(RuntimeUnavailable):
            await line.wait_reached(submit(line))
    assert len(device.threads()) == granted
    await wait_parked(device, line)
    assert len(device.threads()) == 2


async def test_a_loop_that_no_descriptor_is_left_for_is_woken_by_the_second_thread(
    device: WordsDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(os, "dup", refuse)
    await wait_parked(device, device.line(0))


async def test_a_driver_that_does_not_answer_is_asked_again(
    device: WordsDevice,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The others hear of it, and nothing counts as done that may not be."""
    silent, other = device.line(0), device.line(1)
    asked = cast("property", vars(CudaTimeline)["is_idle"]).__get__
    refusals = [DeviceError("not now")] * 2

    def ask(line: CudaTimeline) -> bool:
        if line is silent and refusals:
            raise refusals.pop()
        return bool(asked(line))

    monkeypatch.setattr(CudaTimeline, "is_idle", property(ask))
    with anyio.fail_after(PATIENCE_S):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(silent.wait_reached, submit(silent))
            tasks.start_soon(other.wait_reached, submit(other))
            await park()
            device.idle |= {silent, other}
    assert not refusals
    assert "asking the driver about stream 0: not now" in caplog.text


async def test_a_copy_on_the_host_that_breaks_ends_no_thread(
    device: WordsDevice,
) -> None:
    """Whatever it raises: who waits is told, and the hub goes on."""
    line = device.line(0)

    def break_() -> None:
        raise SystemExit("no reason")

    with anyio.fail_after(PATIENCE_S):
        position = submit(line)
        line.finish_with(position, break_, 1 << 20)  # long, and so the hub's to do
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(line.wait_reached, position)
            await park()
            device.do(line)
        with pytest.raises(DeviceError, match="no reason"):
            await line.wait(position)
    await wait_parked(device, line)
