"""What goes wrong where nobody waits any more is told to its owner, or does no harm."""

from __future__ import annotations

import threading

import anyio
import pytest

import accy_async
from accy_async.artifact import ArtifactFormat
from accy_async.backends.bell import Waiter
from accy_async.backends.loops import current_bell
from accy_async.errors import DeviceError
from accy_async.tuning.search.jobs import Workers
from tests.harness.blocking import BlockingBackend, join_loads
from tests.harness.scan_chain import PIPELINE, REGISTRY

GIVE_UP_S = 20.0


@pytest.mark.anyio
async def test_a_kernel_that_came_too_late_and_stays_is_told_by_the_session() -> None:
    """Its loading was cancelled; the device refuses to unload it."""
    backend = BlockingBackend()
    with pytest.raises(DeviceError) as caught:
        async with accy_async.open_session(backend) as session:
            async with anyio.create_task_group() as tasks:
                load = session.load_pipeline
                tasks.start_soon(load, PIPELINE, REGISTRY, ArtifactFormat.CUDA_PTX)
                while not backend.threads:  # noqa: ASYNC110 - it is another thread's
                    await anyio.sleep(0.001)
                tasks.cancel_scope.cancel()
            backend.fail("destroy", 1)
            join_loads(backend)
    (note,) = caught.value.__notes__
    assert note.endswith("whose loading was cancelled")
    assert not any(backend.live_objects().values())


@pytest.mark.anyio
async def test_a_listener_that_breaks_keeps_nobody_asleep() -> None:
    """Those that the bell was rung for are woken nevertheless."""
    bell = current_bell()
    woken: list[str] = []

    def broken() -> None:
        raise MemoryError("no list")

    bell.listen(broken, lambda: None)
    try:
        bell._queue.append(Waiter(bell, lambda: woken.append("one")))
        bell._queue.append(Waiter(bell, lambda: woken.append("two")))
        with pytest.raises(MemoryError):
            bell.answer()
    finally:
        bell._listeners = ()
    assert woken == ["one", "two"]


@pytest.mark.anyio
async def test_workers_that_the_system_refuses_are_hired_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And count for none meanwhile: the jobs would wait for them for ever."""
    workers = Workers(1, "tests")

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            workers.submit(lambda: "lost")
    with anyio.fail_after(GIVE_UP_S):
        assert await workers.submit(lambda: "done").result() == "done"
    workers.close()
