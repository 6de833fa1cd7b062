"""Flags behind what is awaited, before somebody else submits to its stream."""

from __future__ import annotations

import pytest

from accy_async.backends import StreamHandle
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.streampool import StreamPool
from accy_async.session import open_session
from tests.cuda.fake import FakeDriver
from tests.cuda.test_launching import prepare
from tests.cuda.test_repeating import plan_of_two

pytestmark = pytest.mark.anyio


async def test_a_stream_is_flagged_before_it_is_shared(
    backend: CudaBackend, driver: FakeDriver
) -> None:
    """Who waits for it, with no flag, is not to wait for what comes now, too."""
    pool = StreamPool(backend, 1)
    stream = pool.lease_or_share()
    backend.submit_launch(prepare(backend, []), stream)
    assert driver.calls["cuStreamWriteValue64"] == 0
    assert pool.lease_or_share() is stream
    assert driver.calls["cuStreamWriteValue64"] == 1


async def test_a_run_that_is_awaited_is_flagged_before_the_next_is_submitted(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one prepared plan: who awaits the first is not to await the second, too."""
    backend = CudaBackend()
    waited: list[int | None] = []

    async def wait_stream(stream: StreamHandle, position: int | None = None) -> None:
        assert stream is prepared.stream
        waited.append(position)
        if len(waited) == 1:
            assert driver.calls["cuStreamWriteValue64"] == flags
            prepared.submit()
            assert driver.calls["cuStreamWriteValue64"] == flags + 1

    async with open_session(backend) as session:
        prepared = await session.prepare(plan_of_two())
        flags = driver.calls["cuStreamWriteValue64"]
        with monkeypatch.context() as patch:
            patch.setattr(backend, "wait_stream", wait_stream)
            await prepared.run()
            flags = driver.calls["cuStreamWriteValue64"]
            mark = prepared.submit()
            assert driver.calls["cuStreamWriteValue64"] == flags, "nobody waits"
            await prepared.run()
        assert waited == [mark.position - 2, mark.position + 1]
