"""Two GPUs on a made-up driver: access, copies, waits, and whose context is current."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from accy_async.backends.cpu import CpuBackend
from accy_async.backends.cuda import CudaBackend, context
from accy_async.backends.routes import Way
from accy_async.dtypes import DType
from accy_async.errors import DeviceLost
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session
from tests.cuda.fake import TwoGpus

PEER_CALLS = (
    "cuDeviceCanAccessPeer",
    "cuCtxEnablePeerAccess",
    "cuMemPoolSetAccess",
    "cuCtxDisablePeerAccess",
)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> TwoGpus:
    fake = TwoGpus()
    monkeypatch.setattr(context, "load_driver", lambda: fake)
    return fake


@pytest.fixture
def gpus(driver: TwoGpus) -> Iterator[tuple[CudaBackend, CudaBackend]]:
    del driver
    made = CudaBackend(0), CudaBackend(1)
    yield made
    for backend in made:
        backend.close()


def counts(driver: TwoGpus) -> tuple[int, ...]:
    return tuple(driver.calls[name] for name in PEER_CALLS)


def test_access_is_enabled_once_and_given_back(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """However many copies there are; closing either GPU takes it back."""
    one, two = gpus
    source, target = one.allocate_buffer(64), two.allocate_buffer(64)
    for _ in range(3):
        one.copy_to_peer(source, target, two)
    assert one.route_to(two).way is Way.PEER
    assert counts(driver) == (1, 1, 1, 0)
    two.copy_to_peer(target, source, one)
    assert counts(driver) == (2, 2, 2, 0)
    two.close()
    assert counts(driver) == (2, 2, 2, 2)
    one.close()
    assert counts(driver) == (2, 2, 2, 2)


def test_access_of_another_library_is_left_to_it(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """What was enabled already is used, and not disabled."""
    driver.answers["cuCtxEnablePeerAccess"] = [704]
    one, two = gpus
    assert one.route_to(two).way is Way.PEER
    one.close()
    assert driver.calls["cuCtxDisablePeerAccess"] == 0


@pytest.mark.parametrize("has_room", [True, False])
def test_copies_are_staged_where_there_is_no_access(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend], has_room: bool
) -> None:
    """Or no room for one more peer: each piece goes out of one and into the other."""
    driver.can_access = not has_room
    driver.answers["cuCtxEnablePeerAccess"] = [711]
    one, two = gpus
    one.staging_bytes = 1000  # type: ignore[misc]
    source, target = one.allocate_buffer(3500), two.allocate_buffer(3500)
    assert one.route_to(two).way is Way.STAGED

    one.copy_to_peer(source, target, two)

    assert driver.calls["cuMemcpyDtoHAsync"] == 4
    assert driver.calls["cuMemcpyHtoDAsync"] == 4
    assert not driver.copies
    assert driver.calls["cuMemPoolSetAccess"] == 0
    # The copy waits to begin, each piece for the one before, reads for the writes.
    assert driver.calls["cuStreamWaitEvent"] == 1 + 4 + 2


def test_copies_name_both_contexts_and_run_in_the_sources(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """The target's first, as the driver takes them; whatever was current before."""
    one, two = gpus
    source, target = one.allocate_buffer(64), two.allocate_buffer(64)
    one.copy_to_peer(source, target, two, byte_size=48)
    ((_, to_context, _, from_context, size, stream),) = driver.copies
    assert (to_context, from_context, size) == (101, 100, 48)
    assert int(stream) == one.native_stream().handle
    assert driver.contexts == [100]
    two.copy_to_peer(target, source, one)
    one.copy_to_peer(source, target, two)
    assert driver.contexts == [100, 101, 100]


def test_a_wait_for_the_other_gpu_is_the_drivers(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """A stream of one waits for an event of the other, without the host."""
    one, two = gpus
    assert two.can_wait_for(one)
    event = one.create_event()
    one.record_event(event)
    two.wait_for_peer(two.create_stream(), event, one)
    assert driver.calls["cuStreamWaitEvent"] == 1
    assert driver.contexts == [101]


def test_the_end_of_what_uses_the_others_memory_is_asked_for_by_who_frees_it(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """Once for all copies, and behind the last: before it, memory would go too soon."""
    one, two = gpus
    source, target = one.allocate_buffer(64), two.allocate_buffer(64)
    for _ in range(3):
        one.copy_to_peer(source, target, two)
    number = one.native_stream().handle
    assert driver.streams == {number: 3 * ["copy"]}
    assert not two.destroy(target)
    assert driver.streams == {number: [*3 * ["copy"], "flag"]}
    assert two.live_objects()["buffers"] == 1
    assert one.destroy(source)  # the flag has come meanwhile
    assert two.reaper.sweep() == 1
    event, stream = one.create_event(), two.create_stream()
    one.record_event(event)
    number = two.native_stream(stream).handle
    two.wait_for_peer(stream, event, one)
    assert driver.streams[number] == ["wait"]
    assert not one.destroy(event)
    assert driver.streams[number] == ["wait", "flag"]


def test_who_asks_whether_a_buffer_is_idle_finds_out(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """Though nobody waits for the copy from it: to ask has the other GPU say so."""
    one, two = gpus
    source, target = one.allocate_buffer(64), two.allocate_buffer(64)
    one.copy_to_peer(source, target, two)
    assert two.is_buffer_idle(target)
    assert two.is_buffer_idle(target)
    assert driver.streams[one.native_stream().handle] == ["copy", "flag"]


def test_copies_and_the_freeing_of_what_they_use_stand_in_nobodys_way(
    gpus: tuple[CudaBackend, CudaBackend],
) -> None:
    """Threads copy to and fro and free what is in use: no two wait for each other."""

    def play(here: CudaBackend, there: CudaBackend) -> None:
        for _ in range(100):
            source, target = here.allocate_buffer(64), there.allocate_buffer(64)
            here.copy_to_peer(source, target, there)
            there.destroy(target)
            here.destroy(source)

    threads = [
        threading.Thread(target=play, args=pair, daemon=True)
        for pair in (gpus, gpus[::-1], gpus, gpus[::-1])
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20.0)
        assert not thread.is_alive()
    for backend in gpus:
        backend.reaper.sweep()
        assert backend.live_objects()["buffers"] == 0


def test_a_stream_that_follows_another_asks_for_nothing(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """Two calls, in the contexts of the two: no flag, and no event that is kept."""
    one, two = gpus
    leader, stream = one.create_stream(), two.create_stream()
    numbers = one.native_stream(leader).handle, two.native_stream(stream).handle
    before = two.live_objects()
    for _ in range(3):
        two.follow_stream(stream, leader, one)
    assert driver.streams == {numbers[1]: 3 * ["wait"]}
    assert driver.calls["cuEventRecord"] == 3
    assert driver.calls["cuEventCreate"] == 1
    assert two.live_objects() == before


def test_the_access_of_a_lost_gpu_is_left_alone(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """The driver is not asked about a context that is gone."""
    one, two = gpus
    one.route_to(two)
    two.route_to(one)
    driver.answers["cuStreamWriteValue64"] = [700]
    with pytest.raises(Exception, match=r"700|lost"):
        one.record_event(one.create_event())
    assert not one.is_healthy
    assert two.is_healthy
    two.close()
    assert driver.calls["cuCtxDisablePeerAccess"] == 0


def test_a_gpu_that_is_lost_takes_no_other_along(
    driver: TwoGpus, gpus: tuple[CudaBackend, CudaBackend]
) -> None:
    """While its context is current, any call may say so, also one for the other."""
    one, two = gpus
    two.allocate_buffer(64)
    assert driver.current == 101
    driver.answers["cuCtxSetCurrent"] = [700]
    one.allocate_buffer(64)
    assert driver.current == 100
    assert one.is_healthy
    driver.answers["cuCtxSetCurrent"] = [700, 700, 700]
    with pytest.raises(DeviceLost, match="cuCtxSetCurrent"):
        two.allocate_buffer(64)
    assert one.is_healthy
    assert not two.is_healthy


@pytest.mark.anyio
async def test_a_copy_back_from_the_processor_is_not_submitted_before_the_copy_there(
    gpus: tuple[CudaBackend, CudaBackend],
) -> None:
    """A GPU takes the bytes of a copy in when it is submitted, so the host waits."""
    gpu, cpu = gpus[0], CpuBackend()
    b = LaunchGraphBuilder()
    x, z = (b.scratch(name, DType.U32, 4, device=gpu.device) for name in "xz")
    y = b.scratch("y", DType.U32, 4, device=cpu.device)
    b.fill(x, 1)
    b.copy(x, y, name="there")
    b.copy(y, z, name="back")
    plan = b.build()
    async with open_session(devices=[gpu, cpu]) as session:
        made = await session.prepare(plan, {})
        assert [str(one) for one in made.obstacles] == [
            "back: it copies from the processor's memory what 'there' copies there"
        ]
        assert f"\n  {made.obstacles[0]}" in session.explain(plan)
        await made.run()
    cpu.close()
