"""One session over several devices: seats, placing, health, leaving."""

from __future__ import annotations

from collections.abc import Sequence

import anyio
import numpy as np
import pytest

from accy_async.backends import LaunchRequest, RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.routes import Way
from accy_async.dtypes import DType
from accy_async.errors import (
    BackendUnavailable,
    DeviceLost,
    GraceExpired,
    GraphError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
    SessionClosed,
    UnsupportedOperation,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import Candidate, MultiSession, Work, open_session
from tests.conftest import cuda_missing
from tests.devices.parts import ONE, TWO, check_all_empty, gpus, opened, ring
from tests.graph.graphs import kernel_entry

pytestmark = pytest.mark.anyio


def alone() -> LaunchGraphPlan:
    """A plan whose data are its own."""
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4)
    b.kernel(ONE, [x], name="work")
    return b.build()


def bound(count: int = 1) -> LaunchGraphPlan:
    """A plan over bound buffers."""
    b = LaunchGraphBuilder()
    uses = [b.buffer(f"x{i}", DType.U32, 4) for i in range(count)]
    b.kernel(kernel_entry(count), uses, name="work")
    return b.build()


async def test_devices_are_named_and_have_seats() -> None:
    """By name and by place; a seat makes what is its device's, and ends with all."""
    devices = gpus(3)
    async with opened(devices) as session:
        assert session.devices == ("cuda:0", "cuda:1", "cuda:2")
        assert session.on("cuda:2") is session.on(2)
        array = session.on("cuda:1").allocate(4, DType.U32)
        other = session.allocate(4, DType.U32, device=2)
        assert array.is_of(devices[1])
        assert other.is_of(devices[2])
        assert session.live_objects()["buffers"] == 2
        assert session.statistics()["cuda:1"].live_objects["buffers"] == 1
        with pytest.raises(InvalidValue, match="one of cuda:0, cuda:1, cuda:2"):
            session.on("cuda:7")
        with pytest.raises(InvalidValue, match="one of cuda:0"):
            session.on(3)
    check_all_empty(devices)
    with pytest.raises(SessionClosed):
        session.allocate(4, DType.U32)
    assert all(device.is_healthy for device in devices)  # the caller's own


@pytest.mark.parametrize(
    ("devices", "error", "message"),
    [
        ([], InvalidValue, "at least one"),
        ("cpu", InvalidType, "a list of names"),
        ([1.5], InvalidType, "indices of GPUs"),
        (["cpu:0", "cpu"], InvalidValue, "each device once"),
        (["nonsense"], InvalidValue, "or a device's name"),
        (["cpu:x"], InvalidValue, "or a device's name"),
    ],
)
async def test_devices_that_cannot_be(
    devices: Sequence[str], error: type[Exception], message: str
) -> None:
    """They are refused before anything is open."""
    with pytest.raises(error, match=message):
        async with open_session(devices=devices):
            pass


async def test_all_gpus_where_there_are_none() -> None:
    """``all`` says why there is none."""
    if cuda_missing() is None:
        pytest.skip("there are GPUs here")
    with pytest.raises(BackendUnavailable, match="cuda"):
        async with open_session(devices="all"):
            pass


async def test_two_processors_by_name() -> None:
    """They are two devices, whose backends are the session's own."""
    async with open_session(devices=["cpu:0", "cpu:1"]) as session:
        values = np.arange(1000, dtype=np.float32)
        here = await session.upload(values, device="cpu:0")
        there = await session.copy_to(here, "cpu:1")
        assert here.is_of(session.on(0).backend)
        assert there.is_of(session.on(1).backend)
        np.testing.assert_array_equal(await session.download(there), values)
        again = await there.copy_to(session.on("cpu:0"))
        here.free()
        np.testing.assert_array_equal(await session.download(again), values)
        backends = [session.on(i).backend for i in range(2)]
    assert not any(backend.is_healthy for backend in backends)


async def test_arrays_are_used_where_they_are() -> None:
    """Writes, reads and waits go to the array's device; another's array is refused."""
    devices = gpus(2)
    stranger = RecordingBackend(index=5)
    async with opened(devices) as session, open_session(stranger) as elsewhere:
        array = session.allocate(4, DType.U32, device="cuda:1")
        await session.write(array, np.zeros(4, np.uint32))
        await session.download(array)
        await session.wait_array(array)
        assert (devices[0].write_count, devices[1].write_count) == (0, 1)
        async with session.stream(device="cuda:1") as stream:
            await session.download(array, stream=stream)
            up = await session.upload(np.zeros(4, np.uint32), stream=stream)
        assert up.is_of(devices[1])
        assert devices[1].read_count == 2
        foreign = elsewhere.allocate(4, DType.U32)
        with pytest.raises(InvalidBuffer, match=r"cuda:5 .*devices are cuda:0, cuda:1"):
            await session.download(foreign)


async def test_runs_go_where_their_data_are() -> None:
    """Each plan runs on the device of its arrays, and loads its kernel there once."""
    devices = gpus(2)
    plan = bound()
    async with opened(devices) as session:
        for number in (1, 1, 0):
            array = session.allocate(4, DType.U32, device=number)
            await session.run(plan, {"x0": array})
        assert [device.launch_count for device in devices] == [1, 2]
        assert [device.load_count for device in devices] == [1, 1]
    check_all_empty(devices)


async def test_runs_without_data_go_to_the_least_loaded() -> None:
    """While one device is held up, the next run goes to the other."""
    devices = gpus(2)
    devices[0].hold_all()
    async with opened(devices) as session:
        first = session.start(alone())
        await anyio.wait_all_tasks_blocked()
        for _ in range(3):
            await session.run(alone())
        assert devices[1].launch_count == 3
        devices[0].release_all()
        await first
    check_all_empty(devices)


async def test_runs_of_one_plan_stay_where_its_kernels_are() -> None:
    """With nothing else to choose by, a plan goes where it ran before."""
    devices = gpus(2)
    plan = alone()
    async with opened(devices) as session:
        await session.on(1).run(plan)
        devices[0].hold_all()
        held = session.start(alone())
        await anyio.wait_all_tasks_blocked()
        await session.run(plan)
        devices[0].release_all()
        await held
        await session.run(plan)
    assert (devices[1].load_count, devices[1].launch_count) == (1, 3)


async def test_a_policy_of_the_callers() -> None:
    """It is told what there is, and its answer is taken, or refused by name."""
    seen: list[tuple[Work, tuple[Candidate, ...]]] = []
    answers: list[object] = ["cuda:1", "cuda:9", 3]

    def policy(work: Work, candidates: Sequence[Candidate]) -> str:
        seen.append((work, tuple(candidates)))
        return answers.pop(0)  # type: ignore[return-value]

    devices = gpus(2)
    async with open_session(devices=devices, policy=policy) as session:
        await session.run(alone(), options=LaunchOptions(name="mine"))
        with pytest.raises(InvalidValue, match="one of cuda:0, cuda:1"):
            session.start(alone())
        with pytest.raises(InvalidType, match="name of a device"):
            session.place()
    assert devices[1].launch_count == 1
    work, candidates = seen[0]
    assert work == Work(kind="run", name="mine")
    assert [one.device for one in candidates] == ["cuda:0", "cuda:1"]
    assert seen[2][0].kind == "data"


async def test_a_plan_over_all_devices_runs_in_order() -> None:
    """Copies go from each device to the next, and are waited for on the devices."""
    devices = gpus(3)
    plan = ring([one.device for one in devices])
    async with opened(devices) as session:
        run = session.start(plan, {"out": np.ones(4, np.uint32)})
        statistics = await run
        assert statistics.streams == 3
        assert not statistics.is_lowered
        assert [one.peer_copy_count for one in devices] == [1, 1, 1]
        assert [one.launch_count for one in devices] == [1, 1, 1]
        waits = sum(
            call.kind == "wait_for_peer" for one in devices for call in one.calls
        )
        assert waits >= 3
        prepared = await session.prepare(plan, {"out": np.ones(4, np.uint32)})
        await prepared.run()
    check_all_empty(devices)


async def test_explain_says_which_way_and_why() -> None:
    """And that it is not lowered, as it is on several devices."""
    devices = gpus(2, has_peer_access=False)
    plan = ring(["cuda:0", "cuda:1"])
    async with opened(devices) as session:
        text = session.explain(plan)
        assert "device cuda:1: 2 nodes" in text
        assert "copies cuda:0 → cuda:1: staged in host memory" in text
        assert "no peer access" in text
        assert "edges between devices" in text
        assert "it runs on several devices: cuda:0, cuda:1" in text
        assert session.locate(plan).routes[0].way is Way.STAGED
        assert session.explain(alone()).startswith("on cuda:0")
        with pytest.raises(ExceptionGroup) as caught:
            await session.run(
                plan,
                {"out": np.ones(4, np.uint32)},
                LaunchOptions(lowering="always"),
            )
        assert caught.group_contains(GraphError, match="devices: cuda:0, cuda:1")


async def test_what_is_on_two_devices_is_refused_before_it_starts() -> None:
    """A kernel's buffers, slots and labels, each with both devices' names."""
    devices = gpus(2)
    async with opened(devices) as session:
        arrays = {f"x{i}": session.allocate(4, DType.U32, device=i) for i in range(2)}
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:0.*'x1'.*cuda:1"):
            session.start(bound(2), arrays)
        b = LaunchGraphBuilder()
        b.kernel(ONE, [b.buffer("x0", DType.U32, 4, device="cuda:1")], name="work")
        with pytest.raises(LaunchArgumentMismatch, match=r"on cuda:0.*on cuda:1"):
            session.start(b.build(), {"x0": arrays["x0"]})
        b = LaunchGraphBuilder()
        with b.on("cuda:0"):
            b.kernel(kernel_entry(0), stream="A", name="one")
        with b.on("cuda:1"):
            b.kernel(kernel_entry(0), stream="A", name="two")
        with pytest.raises(LaunchArgumentMismatch, match=r"'A'.*cuda:0.*cuda:1"):
            session.start(b.build())
        b = LaunchGraphBuilder()
        b.kernel(kernel_entry(0), device="cuda:8", name="work")
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:8; .*cuda:0, cuda:1"):
            session.start(b.build())
    assert not any(device.launch_count for device in devices)
    check_all_empty(devices)


async def test_foreign_handles_are_refused_with_both_names() -> None:
    """A buffer, an event and a kernel of a device that is none of the session's."""
    devices = gpus(2)
    stranger = RecordingBackend(index=4)
    buffer, event = stranger.allocate_buffer(16), stranger.create_event()
    stranger.record_event(event)
    async with opened(devices) as session:
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:4.*cuda:0, cuda:1"):
            session.start(bound(), {"x0": buffer})
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:4.*cuda:0"):
            session.start(alone(), options=LaunchOptions(wait_events=(event,)))
        plan = ring(["cuda:0", "cuda:1"])
        given = {"out": np.ones(4, np.uint32)}
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:4.*cuda:0, cuda:1"):
            session.start(plan, given, LaunchOptions(wait_events=(event,)))
        stream = session.on(1).backend.create_stream()
        with pytest.raises(LaunchArgumentMismatch, match="a stream is of one device"):
            session.start(plan, given, LaunchOptions(stream=stream))
    assert not any(device.launch_count for device in devices)


async def test_a_kernel_of_another_device_is_refused_before_its_launch() -> None:
    """It is named with both devices, and nothing is launched."""
    one, other = gpus(2)
    entry = kernel_entry(0)
    artifact = other.create_artifact(entry.artifact_request(None))
    request = LaunchRequest(
        artifact=artifact,
        loaded=other.load_artifact(artifact),
        geometry=entry.launch.geometry(()),
    )
    with pytest.raises(InvalidArtifact, match=r"of backend cuda:1.*one is cuda:0"):
        one.launch(request)
    prepared = other.prepare_launch(request)
    with pytest.raises(InvalidArtifact, match=r"cuda:1.*cuda:0"):
        one.submit_launch(prepared)
    assert (one.launch_count, other.launch_count) == (0, 0)


async def test_times_of_two_devices_are_not_mixed() -> None:
    """Elapsed time between events of two devices is refused by their names."""
    devices = gpus(2)
    events = [device.create_event(timing=True) for device in devices]
    for device, event in zip(devices, events, strict=True):
        device.record_event(event)
    with pytest.raises(InvalidEvent, match=r"cuda:1.*this one is cuda:0"):
        devices[0].elapsed_ns(*events)


async def test_events_around_a_run_over_two_devices() -> None:
    """It waits for an event of either, and signals one after both."""
    devices = gpus(2)
    devices[0].hold_all()
    async with opened(devices) as session:
        before = devices[1].create_event()
        after = devices[1].create_event()
        devices[1].record_event(before)
        options = LaunchOptions(wait_events=(before,), signal_event=after)
        given = {"out": np.ones(4, np.uint32)}
        run = session.start(ring(["cuda:0", "cuda:1"]), given, options)
        await anyio.wait_all_tasks_blocked()
        assert not devices[1].is_event_complete(after)
        devices[0].release_all()
        await run
        assert devices[1].is_event_complete(after)


async def test_one_device_lost_leaves_the_others_alone() -> None:
    """Its runs fail; those of another go on, and the session says which it is."""
    devices = gpus(3)
    for device in devices:
        device.hold_all()
    plan = ring(["cuda:0", "cuda:1"])
    with pytest.raises(ExceptionGroup) as caught:
        async with opened(devices) as session:
            across = session.start(plan, {"out": np.ones(4, np.uint32)})
            spared = session.on(2).start(alone())
            lone = session.on(0).start(alone())
            await anyio.wait_all_tasks_blocked()
            devices[1].lose_device("fell off the bus")
            for device in devices:
                device.release_all()
            await spared
            await lone
            assert not session.is_healthy
            health = session.health()
            assert [one.is_healthy for one in health.values()] == [True, False, True]
            assert isinstance(health["cuda:1"].loss, DeviceLost)
            for _ in range(3):
                await session.run(alone())  # placed elsewhere
            await across
    assert caught.group_contains(DeviceLost, match="fell off the bus")
    assert [device.is_healthy for device in devices] == [True, False, True]
    check_all_empty(devices)


async def test_all_devices_lost() -> None:
    """Nothing can be placed any more, and that says why."""
    devices = gpus(2)
    with pytest.raises((DeviceLost, ExceptionGroup)):
        async with opened(devices) as session:
            for device in devices:
                device.lose_device("gone")
            with pytest.raises(DeviceLost, match="gone"):
                session.start(alone())
            with pytest.raises(DeviceLost, match="gone"):
                session.place()
    check_all_empty(devices)


async def test_the_grace_is_one_for_all_devices() -> None:
    """Two devices that hang are waited for at the same time, and each is named."""
    devices = gpus(2, grace_s=0.2)
    with pytest.raises(ExceptionGroup) as caught:
        async with opened(devices) as session:
            for number, device in enumerate(devices):
                device.hold_all()
                session.on(number).start(alone())
            await anyio.wait_all_tasks_blocked()
    names = [error for error in _leaves(caught.value) if type(error) is GraceExpired]
    assert len(names) >= 2
    for device in devices:
        device.release_all()
    check_all_empty(devices)


def _leaves(error: BaseException) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in _leaves(one)]
    return [error]


async def test_edges_that_the_host_resolves() -> None:
    """Where devices cannot wait for each other, the host does; the result is right."""
    devices = gpus(2, can_wait_for_peers=False)
    async with opened(devices) as session:
        for device in devices:
            device.hold_all()
        plan = ring(["cuda:0", "cuda:1"])
        run = session.start(plan, {"out": np.ones(4, np.uint32)})
        order = []
        for _ in range(200):
            await anyio.wait_all_tasks_blocked()
            if run.is_done:
                break
            for device in devices:
                for stream in device.ready_streams():
                    order.append(device.device)
                    device.step(stream)
        await run
        kinds = {call.kind for device in devices for call in device.calls}
        assert "wait_for_peer" not in kinds
        for device in devices:
            device.release_all()
    check_all_empty(devices)


async def test_no_way_between_devices_is_refused() -> None:
    """Without peer access and without waits there is none; both are named."""
    devices = gpus(2, has_peer_access=False, can_wait_for_peers=False)
    async with opened(devices) as session:
        with pytest.raises(UnsupportedOperation, match=r"cuda:0.*cuda:1"):
            session.start(ring(["cuda:0", "cuda:1"]), {"out": np.ones(4, np.uint32)})


async def test_loops_over_two_devices() -> None:
    """A body on both begins and ends each turn on one, and runs as often."""
    devices = gpus(2)
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4, device="cuda:0")
    y, z = (b.scratch(name, DType.U32, 4, device="cuda:1") for name in "yz")
    b.fill(x, 1)
    with b.loop(count=3, carries=[(y, z)]):
        b.copy(x, y)
        b.kernel(TWO, [y.read, z.write], name="there")
        b.kernel(ONE, [x.read_write], name="here")
    async with opened(devices) as session:
        await session.run(b.build())
    assert [device.launch_count for device in devices] == [3, 3]
    check_all_empty(devices)


async def test_a_session_over_one_device_is_a_session() -> None:
    """It costs what one session does: runs are the seat's, and are lowered."""
    (device,) = gpus(1)
    plan = bound()
    async with open_session(devices=[device]) as session:
        assert isinstance(session, MultiSession)
        array = session.allocate(4, DType.U32)
        for _ in range(3):
            statistics = await session.run(plan, {"x0": array})
        assert statistics.is_lowered
    check_all_empty([device])


async def test_two_real_processors_compute_together() -> None:
    """A plan over both leaves what its steps in order would."""
    devices = [CpuBackend(workers=1), CpuBackend(workers=1, index=1)]
    b = LaunchGraphBuilder()
    source, out = b.host("source", DType.U32, 100), b.host("out", DType.U32, 100)
    x = b.scratch("x", DType.U32, 100, device="cpu:0")
    y = b.scratch("y", DType.U32, 100, device="cpu:1")
    b.copy_in(source, x)
    b.copy(x, y)
    b.fill(x, 3)
    b.copy_out(y, out)
    values = np.arange(100, dtype=np.uint32)
    found = np.zeros(100, np.uint32)
    async with open_session(devices=devices) as session:
        await session.run(b.build(), {"source": values, "out": found})
    np.testing.assert_array_equal(found, values)
    for device in devices:
        device.close()
