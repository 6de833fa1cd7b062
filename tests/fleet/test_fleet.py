"""Workers that take from one list, are lost, refuse, and are left."""

from __future__ import annotations

from typing import Any

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import pytest

from accy_async.artifact import KernelArtifact
from accy_async.backends import LaunchRequest, LoadedArtifact
from accy_async.dtypes import DType
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    RuntimeUnavailable,
    SessionClosed,
    UnsupportedOperation,
    WorkerLost,
    WorkerRefused,
)
from accy_async.fleet import (
    FleetBuffer,
    FleetMeasurement,
    kernel_work,
    launch_records,
    open_fleet,
)
from accy_async.fleet.jobs import JobReply
from accy_async.tuning import (
    CandidateStatus,
    LaunchTuningCache,
    MeasureOptions,
    RaceRules,
    Standing,
)
from tests.fleet.kit import FakePlace, device, found, work_of
from tests.tuning.devices import Durations, ScriptedDevice, noisy, number_of
from tests.tuning.samples import kernel

pytestmark = pytest.mark.anyio


def measures(_: str, names: tuple[str, ...]) -> JobReply:
    return JobReply(found=found(names))


async def test_workers_share_a_list_and_each_candidate_is_measured_once() -> None:
    places = [FakePlace("one", measures), FakePlace("two", measures)]
    seen: list[FleetMeasurement] = []
    async with open_fleet(places) as fleet:
        assert set(fleet.workers) == {"one", "two"}
        async with fleet.measuring(work_of(*"abcdefg")) as measuring:
            seen = [one async for one in measuring]
            outcome = measuring.outcome()
            assert measuring.is_over
    assert sorted(one.name for one in seen) == list("abcdefg")
    (kind,) = outcome.kinds
    assert all(one.status is CandidateStatus.MEASURED for one in kind.measurements)
    jobs = [names[1] for place in places for names in place.jobs]
    assert sorted(jobs) == list("bcdefg")
    assert all(place.jobs for place in places)
    assert [len(place.taken) for place in places] == [1, 1]  # the list goes out once
    assert [place.open_count for place in places] == [0, 0]


async def test_lost_workers_candidates_go_to_the_others() -> None:
    def dies(_: str, names: tuple[str, ...]) -> JobReply | None:
        return None if len(frail.jobs) > 1 else JobReply(found=found(names))

    frail, solid = FakePlace("frail", dies), FakePlace("solid", measures)
    async with open_fleet([frail, solid], restarts=0) as fleet:
        outcome = await fleet.measure(work_of(*"abcdef"))
        assert set(fleet.workers) == {"solid"}
        (again,) = (await fleet.measure(work_of("x", "y"))).kinds
    (kind,) = outcome.kinds
    assert [one.name for one in kind.measurements] == list("abcdef")
    assert all(one.status is CandidateStatus.MEASURED for one in kind.measurements)
    assert frail.jobs[1] in solid.jobs
    assert outcome.lost == (("frail", "worker frail: it was killed"),)
    assert {one.worker for one in again.measurements} == {"solid"}


async def test_lost_worker_is_replaced_as_often_as_allowed() -> None:
    def dies_twice(_: str, names: tuple[str, ...]) -> JobReply | None:
        return None if place.opened < 3 else JobReply(found=found(names))

    place = FakePlace("one", dies_twice)
    async with open_fleet(place, restarts=2, most_losses=3) as fleet:
        outcome = await fleet.measure(work_of("a", "b"))
        assert place.opened == 3
    assert outcome.kinds[0].winner == "a"
    assert len(outcome.lost) == 2


async def test_what_nobody_is_left_for_is_told_and_the_next_list_refused() -> None:
    place = FakePlace("one", lambda *_: None)
    async with open_fleet(place, restarts=0) as fleet:
        outcome = await fleet.measure(work_of("a", "b"))
        assert {one.status for one in outcome.measurements} == {
            CandidateStatus.NOT_TRIED
        }
        with pytest.raises(WorkerLost, match=r"no worker is left: one: .*killed"):
            await fleet.measure(work_of("a"))


async def test_place_that_opens_no_more_is_given_up() -> None:
    place = FakePlace("one", lambda *_: None)
    place.fails_to_open = [None, RuntimeUnavailable("no driver")]
    async with open_fleet(place, restarts=5) as fleet:
        outcome = await fleet.measure(work_of("a", "b"))
        assert not fleet.workers
    assert [reason for _, reason in outcome.lost][-1] == "no driver"
    assert place.opened == 1


async def test_candidate_that_holds_the_device_is_out_and_its_worker_replaced() -> None:
    def hangs(_: str, names: tuple[str, ...]) -> JobReply:
        is_hung = "c" in names
        statuses = {"c": CandidateStatus.TIMED_OUT} if is_hung else {}
        lost = "candidate 'c' did not end" if is_hung else ""
        return JobReply(found=found(names, statuses=statuses), lost=lost)

    place = FakePlace("one", hangs)
    async with open_fleet(place) as fleet:
        outcome = await fleet.measure(work_of(*"abcd"))
    statuses = [one.status for one in outcome.measurements]
    assert statuses[2] is CandidateStatus.TIMED_OUT
    assert statuses.count(CandidateStatus.MEASURED) == 3
    assert place.opened == 2


async def test_worker_that_refuses_ends_the_measuring_and_is_named() -> None:
    place = FakePlace("one", lambda *_: JobReply(refused="OutOfMemory: no room"))
    async with open_fleet(place) as fleet:
        with pytest.raises(WorkerRefused, match="worker one: OutOfMemory: no room"):
            await fleet.measure(work_of("a", "b"))
        place.fate = measures
        assert (await fleet.measure(work_of("a", "b"))).kinds[0].winner == "a"


async def test_cancelling_a_measuring_cancels_its_jobs_and_keeps_the_workers() -> None:
    places = [FakePlace("one", measures), FakePlace("two", measures)]
    for place in places:
        place.holds = anyio.Event()
    async with open_fleet(places) as fleet:
        async with anyio.create_task_group() as group:
            group.start_soon(fleet.measure, work_of(*"abc"))
            while not all(place.jobs for place in places):
                await anyio.lowlevel.checkpoint()
            group.cancel_scope.cancel()
        assert [place.cancelled for place in places] == [1, 1]
        for place in places:
            place.holds = None
        outcome = await fleet.measure(work_of(*"abc"))
        assert outcome.kinds[0].winner == "a"
        assert [place.opened for place in places] == [1, 1]


async def test_cancelling_the_fleet_ends_every_worker() -> None:
    places = [FakePlace("one", measures), FakePlace("two", measures)]
    for place in places:
        place.holds = anyio.Event()

    async def serve() -> None:
        async with open_fleet(places) as fleet:
            await fleet.measure(work_of(*"abc"))

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        while not all(place.jobs for place in places):
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert [place.open_count for place in places] == [0, 0]
    assert [place.cancelled for place in places] == [1, 1]


async def test_leaving_the_fleet_ends_a_measuring_elsewhere() -> None:
    place = FakePlace("one", measures)
    place.holds = anyio.Event()
    errors: list[AccyError] = []
    async with anyio.create_task_group() as group, open_fleet(place) as fleet:

        async def measure() -> None:
            try:
                await fleet.measure(work_of(*"abc"))
            except SessionClosed as error:
                errors.append(error)

        group.start_soon(measure)
        while not place.jobs:
            await anyio.lowlevel.checkpoint()
    assert len(errors) == 1
    with pytest.raises(SessionClosed, match="the fleet was left"):
        await fleet.measure(work_of("a"))


async def test_lists_at_the_same_time_are_all_measured() -> None:
    places = [FakePlace("one", measures), FakePlace("two", measures)]
    winners: list[str | None] = []
    async with open_fleet(places) as fleet:

        async def measure(*names: str) -> None:
            winners.append((await fleet.measure(work_of(*names))).kinds[0].winner)

        async with anyio.create_task_group() as group:
            group.start_soon(measure, *"abc")
            group.start_soon(measure, *"xyz")
    assert sorted(map(str, winners)) == ["a", "x"]


async def test_worker_that_cannot_be_opened_is_an_error_and_the_others_are_ended() -> (
    None
):
    bad, good = FakePlace("bad", measures), FakePlace("good", measures)
    bad.fails_to_open = [RuntimeUnavailable("no driver")]
    with pytest.raises(RuntimeUnavailable, match="no driver"):
        async with open_fleet([bad, good]):
            pytest.fail("it is not open")
    assert good.open_count == 0
    worse = FakePlace("worse", measures)
    bad.fails_to_open = [RuntimeUnavailable("no driver")]
    worse.fails_to_open = [RuntimeUnavailable("neither")]
    with pytest.raises(ExceptionGroup, match="workers cannot be opened"):
        async with open_fleet([bad, worse]):
            pytest.fail("it is not open")


async def test_cancelling_while_workers_open_ends_those_that_are_open() -> None:
    slow, quick = FakePlace("slow", measures), FakePlace("quick", measures)
    slow.opening = anyio.Event()

    async def serve() -> None:
        async with open_fleet([slow, quick]):
            pytest.fail("it is not open")

    async with anyio.create_task_group() as group:
        group.start_soon(serve)
        while not quick.open_count:
            await anyio.lowlevel.checkpoint()
        group.cancel_scope.cancel()
    assert (slow.opened, quick.open_count) == (0, 0)


async def test_what_goes_wrong_on_the_way_out_is_raised_beside_the_blocks_own() -> None:
    place = FakePlace("one", measures)
    place.fails_to_close = RuntimeUnavailable("the driver is gone")
    with pytest.raises(RuntimeUnavailable, match="is gone"):
        async with open_fleet(place) as fleet:
            await fleet.measure(work_of("a", "b"))
    with pytest.raises(ExceptionGroup) as caught:
        async with open_fleet(place):
            raise KeyError("mine")
    assert [type(one) for one in caught.value.exceptions] == [
        KeyError,
        RuntimeUnavailable,
    ]
    lost = FakePlace("lost", lambda *_: None)
    lost.fails_to_close = RuntimeUnavailable("nor that")
    async with open_fleet([lost, FakePlace("two", measures)], restarts=0) as fleet:
        outcome = await fleet.measure(work_of("a", "b", "c"))
    assert outcome.lost[0][1].endswith("it was killed; leaving it: nor that")


@pytest.mark.parametrize("answered", [("a",), ("a", "a"), ("b", "a"), ("x", "y")])
async def test_an_answer_of_other_candidates_is_no_answer(
    answered: tuple[str, ...],
) -> None:
    """As of a worker that is not the same accy_async; it is not taken for lost."""
    place = FakePlace("one", lambda *_: JobReply(found=found(answered)))
    with pytest.raises(WorkerRefused, match="it answered of"):
        async with open_fleet([place]) as fleet:
            await fleet.measure(work_of("a", "b"))
    assert place.opened == 1
    assert place.open_count == 0


async def test_what_no_worker_can_run_is_refused_before_anything() -> None:
    place = FakePlace("one", measures)
    async with open_fleet(place) as fleet:
        with pytest.raises(UnsupportedOperation, match="no worker loads vulkan_spirv"):
            await fleet.measure(work_of("a", format="vulkan_spirv"))
        with pytest.raises(InvalidType, match="a FleetWork"):
            await fleet.measure("list")  # type: ignore[arg-type]
    assert not place.jobs


async def test_wrong_fleets_are_refused() -> None:
    place = FakePlace("one", measures)
    with pytest.raises(InvalidType, match="devices, open backends"):
        async with open_fleet("cpu"):
            pytest.fail("it is not open")
    with pytest.raises(InvalidType, match="devices, open backends"):
        async with open_fleet([object()]):  # type: ignore[list-item]
            pytest.fail("it is not open")
    with pytest.raises(InvalidValue, match="at least one worker"):
        async with open_fleet([]):
            pytest.fail("it is not open")
    with pytest.raises(InvalidValue, match="each worker once"):
        async with open_fleet([place, place]):
            pytest.fail("it is not open")
    with pytest.raises(InvalidValue, match=r"open_fleet\.most_losses"):
        async with open_fleet(place, most_losses=0):
            pytest.fail("it is not open")
    with pytest.raises(InvalidType, match=r"open_fleet\.restarts"):
        async with open_fleet(place, restarts=0.5):  # type: ignore[arg-type]
            pytest.fail("it is not open")


async def test_kinds_of_devices_keep_their_own_winners_and_records() -> None:
    def by_kind(worker: str, names: tuple[str, ...]) -> JobReply:
        return JobReply(found=found(names, {"1" if worker == "old" else "2": -0.5}))

    old = FakePlace("old", by_kind, device("cuda:0", kind=1))
    new = FakePlace("new", by_kind, device("cuda:0", kind=2))
    planned = kernel()
    work = kernel_work(planned, [FleetBuffer.of([1.0])] * 3)
    async with open_fleet([old, new]) as fleet:
        outcome = await fleet.measure(work)
    assert [one.winner for one in outcome.kinds] == ["1", "2"]
    assert [one.standing for one in outcome.kinds] == [Standing.FASTER] * 2
    records = launch_records(planned, outcome)
    assert [(r.key.device, r.selection.candidate_index) for r in records] == [
        (1, 1),
        (2, 2),
    ]


FAST = MeasureOptions(rules=RaceRules(min_rounds=4, max_rounds=8, repeats=0), warmup=0)


async def test_sessions_of_this_process_need_nothing_else() -> None:
    """Two scripted devices of one kind; the winner is found again there."""
    times = [900.0, 400.0, 0.0, 700.0]  # of 32, 64 and 128 threads
    backends = [ScriptedDevice(noisy(times), index=i) for i in range(2)]
    planned = kernel()
    work = kernel_work(
        planned, [FleetBuffer.random(DType.F32, 8, "read_only")] * 3, options=FAST
    )
    async with open_fleet(backends) as fleet:
        outcome = await fleet.measure(work)
        assert all(one.left() for one in backends)  # the list is still there
    assert all(not one.left() for one in backends)
    (kind,) = outcome.kinds
    assert (kind.winner, kind.standing) == ("1", Standing.FASTER)
    assert {one.worker for one in kind.measurements} <= {"cuda:0", "cuda:1"}
    speedup = kind.measurement("1").speedup
    assert speedup == pytest.approx(900 / 400, rel=0.02)
    (record,) = launch_records(planned, outcome)
    cache = LaunchTuningCache(backends[0].capabilities, [record])
    selection = cache.selection(planned)
    assert selection is not None
    assert selection.candidate_index == 1


async def test_device_that_is_lost_in_a_session_is_a_lost_worker() -> None:
    backends: list[ScriptedDevice] = []
    lost: list[str] = []

    def durations(index: int) -> Durations:
        def duration(request: LaunchRequest) -> float:
            if number_of(request) == 1 and not lost:
                lost.append(f"cuda:{index}")
                backends[index].lose_device()
            return 500.0

        return duration

    backends += [ScriptedDevice(durations(index), index=index) for index in range(2)]
    work = kernel_work(kernel(), [FleetBuffer.random(DType.F32, 8)] * 3, options=FAST)
    async with open_fleet(backends, restarts=0) as fleet:
        outcome = await fleet.measure(work)
        assert set(fleet.workers) == {"cuda:0", "cuda:1"} - set(lost)
    assert [name for name, _ in outcome.lost] == lost
    (kind,) = outcome.kinds
    assert sorted(one.name for one in kind.measurements) == ["0", "1", "2"]
    assert kind.baseline == "0"


async def test_code_that_does_not_load_is_a_failed_candidate() -> None:
    backend = ScriptedDevice(lambda _: 500.0)
    work = kernel_work(kernel(), [FleetBuffer.random(DType.F32, 8)] * 3, options=FAST)
    bad = attrs.evolve(work.candidates[1].artifact, payload="bad code")
    candidates = list(work.candidates)
    candidates[1] = attrs.evolve(candidates[1], artifact=bad)
    loads = backend.load_artifact

    def load(artifact: KernelArtifact) -> LoadedArtifact:
        if artifact.payload == "bad code":
            raise InvalidArtifact("no such code")
        return loads(artifact)

    backend.load_artifact = load  # type: ignore[method-assign]
    async with open_fleet([backend]) as fleet:
        outcome = await fleet.measure(attrs.evolve(work, candidates=candidates))
    (kind,) = outcome.kinds
    assert [one.status for one in kind.measurements] == [
        CandidateStatus.MEASURED,
        CandidateStatus.FAILED,
        CandidateStatus.MEASURED,
    ]
    assert kind.measurement("1").outcome.reason == "no such code"


@pytest.mark.parametrize("make", [FleetBuffer.random, FleetBuffer.zeros])
def test_a_buffer_of_no_number_of_elements_is_refused(make: Any) -> None:
    for dtype in (None, "f32", 4, np.float32):
        with pytest.raises(InvalidType, match=r"FleetBuffer\.dtype"):
            make(dtype, 4)
    for count in (None, True, 1.5, "4", [4]):
        with pytest.raises(InvalidType, match=r"FleetBuffer\.count"):
            make(DType.F32, count)
    for count in (0, -1, 2**62):
        with pytest.raises(InvalidValue, match=r"FleetBuffer\.byte_size"):
            make(DType.F32, count)
    assert make(DType.F32, np.int64(3)).byte_size == 12
