"""What is alive, what is in use, and that each object is freed exactly once."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable

import pytest

from accy_async.artifact import BackendKind
from accy_async.backends import (
    BufferHandle,
    EventHandle,
    GraphHandle,
    Handle,
    LoadedArtifact,
    ObjectKind,
    Reaper,
    StreamHandle,
)
from accy_async.backends.lifetimes import ResourceTable
from accy_async.backends.owners import Owner
from accy_async.backends.refusals import Refusals
from accy_async.backends.resources import Resource, kind_of
from accy_async.backends.timeline import Timeline
from accy_async.errors import (
    AccyError,
    DeviceError,
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidGraph,
    InvalidStream,
)
from tests.backends.loops import PATIENCE_S

CUDA, CPU = BackendKind.CUDA, BackendKind.CPU
MAKERS: dict[ObjectKind, Callable[[int, BackendKind], Handle]] = {
    ObjectKind.BUFFER: lambda i, b: BufferHandle(id=i, backend=b, byte_size=16),
    ObjectKind.ARTIFACT: lambda i, b: LoadedArtifact(id=i, backend=b),
    ObjectKind.STREAM: lambda i, b: StreamHandle(id=i, backend=b),
    ObjectKind.EVENT: lambda i, b: EventHandle(id=i, backend=b),
    ObjectKind.GRAPH: lambda i, b: GraphHandle(id=i, backend=b),
}
ERRORS: dict[ObjectKind, type[AccyError]] = {
    ObjectKind.BUFFER: InvalidBuffer,
    ObjectKind.ARTIFACT: InvalidArtifact,
    ObjectKind.STREAM: InvalidStream,
    ObjectKind.EVENT: InvalidEvent,
    ObjectKind.GRAPH: InvalidGraph,
}
KINDS = pytest.mark.parametrize("kind", ObjectKind)


class Table(ResourceTable):
    """A table that remembers what it has freed."""

    def __init__(self) -> None:
        self.freed: list[int] = []
        super().__init__(CUDA, lambda resource: self.freed.append(resource.handle.id))

    def make(
        self, kind: ObjectKind = ObjectKind.BUFFER, timeline: Timeline | None = None
    ) -> Resource:
        maker = MAKERS[kind]
        return self.add(kind, lambda i: maker(i, CUDA), None, timeline=timeline)


def test_ids_count_up_over_all_kinds() -> None:
    """Objects of all kinds share one count of ids, which are not used again."""
    table = Table()
    made = [table.make(kind) for kind in ObjectKind]
    assert [resource.handle.id for resource in made] == [1, 2, 3, 4, 5]
    table.destroy(made[0].handle)
    assert table.next_id == table.make().handle.id == 6
    assert table.next_id == 7


@KINDS
def test_object_is_found_by_its_own_handle_only(kind: ObjectKind) -> None:
    """A handle of another kind or backend, with the same id, finds nothing."""
    table = Table()
    resource = table.make(kind)
    assert kind_of(resource.handle) is kind
    assert table.find(resource.handle) is resource
    assert table.get(MAKERS[kind](1, CUDA)) is resource
    for other in set(ObjectKind) - {kind}:
        assert table.find(MAKERS[other](1, CUDA)) is None
    assert table.find(MAKERS[kind](1, CPU)) is None
    assert table.find(MAKERS[kind](2, CUDA)) is None


@KINDS
def test_destroyed_foreign_and_unknown_handles_are_told_apart(kind: ObjectKind) -> None:
    """Each kind has its own error, which says what is wrong with the handle."""
    table = Table()
    table.make(kind)
    destroyed = table.make(kind).handle
    table.destroy(destroyed)
    other = next(k for k in ObjectKind if k is not kind)
    table.make(other)
    name = kind.singular
    for handle, why in (
        (destroyed, f"{name} 2 was destroyed"),
        (MAKERS[kind](1, CPU), f"{name} 1 is of backend cpu, this one is cuda"),
        (MAKERS[kind](99, CUDA), f"{name} 99 was never given out by this backend"),
        (MAKERS[kind](0, CUDA), f"{name} 0 was never given out by this backend"),
        (MAKERS[kind](3, CUDA), f"{name} 3 was never given out by this backend"),
    ):
        for call in (table.get, table.destroy):
            with pytest.raises(ERRORS[kind]) as caught:
                call(handle)
            assert str(caught.value) == why
    assert table.freed == [2]


def test_idle_object_is_freed_at_once() -> None:
    """What was never used, or whose uses are done, is freed by destroy itself."""
    table, line = Table(), Timeline("s")
    fresh, used = table.make(), table.make()
    used.touch(line, line.advance())
    line.complete(1)
    assert table.destroy(fresh.handle)
    assert table.destroy(used.handle)
    assert table.freed == [1, 2]
    assert table.retired() == []


def test_busy_object_is_retired_until_its_last_use() -> None:
    """Every stream must come past its own last use; only then is the object freed."""
    table, lines = Table(), [Timeline("a"), Timeline("b")]
    resource = table.make()
    for line in (*lines, *lines):
        resource.touch(line, line.advance())
    assert not table.destroy(resource.handle)
    assert resource.is_retired
    assert table.find(resource.handle) is None
    lines[0].complete(2)
    lines[1].complete(1)
    assert table.sweep() == 0
    assert table.freed == []
    lines[1].complete(2)
    assert table.sweep() == 1
    assert table.sweep() == 0
    assert table.freed == [1]


def test_stream_is_busy_with_its_own_work() -> None:
    """A stream is in use until all that it was given is done."""
    table, line = Table(), Timeline("s")
    stream = table.make(ObjectKind.STREAM, timeline=line)
    assert not stream.is_busy
    line.advance()
    assert stream.is_busy
    assert not table.destroy(stream.handle)
    line.complete(1)
    assert table.sweep() == 1


def test_counts_are_by_kind_and_by_owner() -> None:
    """What is retired still counts; what is another's does not."""
    table, line = Table(), Timeline("s")
    mine, theirs = Owner("mine"), Owner("theirs")
    kinds = (ObjectKind.BUFFER, ObjectKind.ARTIFACT, ObjectKind.STREAM)
    made = [table.make(kind) for kind in (*kinds, *kinds)]
    for resource in made[3:]:
        resource.owner = mine
    nothing = dict.fromkeys((kind.value for kind in ObjectKind), 0)
    assert table.counts() == {**nothing, "buffers": 2, "artifacts": 2, "streams": 2}
    made[3].touch(line, line.advance())
    table.destroy(made[3].handle)
    table.destroy(made[4].handle)
    assert table.counts(mine) == {**nothing, "buffers": 1, "streams": 1}
    assert table.counts(theirs) == nothing
    assert [r.handle.id for r in table.living(mine)] == [6]
    assert [r.handle.id for r in table] == [6, 3, 2, 1]
    assert [r.handle.id for r in table.retired()] == [4]
    assert Reaper(table).held(mine) == ("buffer 4",)
    assert Reaper(table).held(theirs) == ()


def test_what_is_shared_goes_with_the_last_owner() -> None:
    """Every owner counts it while open; afterwards the one that it ended with."""
    shared = Owner("all")
    first, last = Owner("first", shared), Owner("last", shared)
    assert first.has(first)
    assert first.has(shared)
    assert not first.has(last)
    assert not first.has(None)
    first.is_ended = True
    assert not first.has(shared)
    assert last.has(shared)
    last.is_ended = shared.is_ended = True
    assert last.has(shared)


def test_reaper_names_what_it_holds() -> None:
    """The reaper lists what is retired, oldest first, and lets it go when idle."""
    table, line = Table(), Timeline("s")
    reaper = Reaper(table)
    resources = [table.make(), table.make(ObjectKind.ARTIFACT)]
    for resource in resources:
        resource.touch(line, line.advance())
        table.destroy(resource.handle)
    assert reaper.held() == ("buffer 1", "artifact 2")
    line.complete(1)
    assert (reaper.sweep(), reaper.held(), len(reaper)) == (1, ("artifact 2",), 1)
    line.complete(2)
    assert (reaper.sweep(), len(reaper)) == (1, 0)


def test_lost_device_uses_nothing() -> None:
    """After the loss what was retired is freed, and destroying frees at once."""
    table, line = Table(), Timeline("s")
    early, late = table.make(), table.make()
    for resource in (early, late):
        resource.touch(line, line.advance())
    assert not table.destroy(early.handle)
    table.lose()
    assert table.freed == [1]
    assert table.destroy(late.handle)
    assert table.freed == [1, 2]
    assert table.counts() == dict.fromkeys(table.counts(), 0)


def race(count: int, work: Callable[[int], None]) -> None:
    """Run the work on so many threads at once, and raise what they raise."""
    barrier = threading.Barrier(count)
    errors: list[Exception] = []

    def run(number: int) -> None:
        barrier.wait(PATIENCE_S)
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - raised by the test's own thread
            errors.append(error)

    threads = [
        threading.Thread(target=run, args=(number,), daemon=True)
        for number in range(count)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_four_threads_destroy_the_same_objects() -> None:
    """Each object is freed once; the threads that come second are told so."""
    table = Table()
    handles = [table.make().handle for _ in range(500)]
    outcomes: list[Counter[str]] = [Counter() for _ in range(4)]

    def destroy(number: int) -> None:
        for handle in handles:
            try:
                outcomes[number]["freed"] += table.destroy(handle)
            except InvalidBuffer as error:
                outcomes[number][str(error).removeprefix(f"buffer {handle.id} ")] += 1

    race(4, destroy)
    assert sorted(table.freed) == list(range(1, 501))
    assert sum(outcomes, Counter()) == Counter({"freed": 500, "was destroyed": 1500})


def test_threads_destroy_complete_and_sweep_at_once() -> None:
    """However retirement races with completion, each object is freed exactly once."""
    table, lines = Table(), [Timeline("a"), Timeline("b")]
    handles: list[Handle] = []
    for _ in range(1000):
        resource = table.make()
        for line in lines:
            resource.touch(line, line.advance())
        handles.append(resource.handle)

    def work(number: int) -> None:
        if number < 2:
            for position in range(1, 1001):
                lines[number].complete(position)
                table.sweep()
        else:
            for handle in handles[number - 2 :: 2]:
                table.destroy(handle)

    race(4, work)
    assert sorted(table.freed) == list(range(1, 1001))
    assert table.retired() == []


def test_completion_between_look_and_retirement_is_not_missed() -> None:
    """The thread that completes the last use, or the one that destroys, frees it."""
    table = Table()

    class Sly(Timeline):
        """Completes on another thread the moment after somebody saw it busy."""

        __slots__ = ("seen",)

        def __getattribute__(self, name: str) -> object:
            value = super().__getattribute__(name)
            if name == "completed" and value == 0 and not hasattr(self, "seen"):
                self.seen = True
                finisher = threading.Thread(target=self.finish, daemon=True)
                finisher.start()
                finishers.append(finisher)
                assert is_complete.wait(PATIENCE_S)
            return value

        def finish(self) -> None:
            self.complete(1)
            is_complete.set()
            table.sweep()

    is_complete = threading.Event()
    finishers: list[threading.Thread] = []
    resource = table.make()
    line = Sly("s")
    resource.touch(line, line.advance())
    table.destroy(resource.handle)
    finishers[0].join(PATIENCE_S)
    assert table.freed == [1]


def test_a_sweep_frees_all_although_some_cannot_be_freed() -> None:
    """What was refused is told together, once, and an interrupt goes before it."""
    refusals: dict[int, BaseException] = {
        2: ValueError("two"),
        3: KeyboardInterrupt(),
        4: ValueError("four"),
    }
    freed: list[int] = []

    def free(resource: Resource) -> None:
        freed.append(resource.handle.id)
        if resource.handle.id in refusals:
            raise refusals.pop(resource.handle.id)

    table, line = ResourceTable(CUDA, free), Timeline("s")

    def retire(count: int) -> None:
        for _ in range(count):
            made = table.add(
                ObjectKind.BUFFER, lambda i: MAKERS[ObjectKind.BUFFER](i, CUDA), None
            )
            made.touch(line, line.advance())
            table.destroy(made.handle)
        line.complete(line.submitted)

    retire(5)
    with pytest.raises(KeyboardInterrupt):
        table.sweep()
    assert sorted(freed) == [1, 2, 3, 4, 5]
    refusals.update({6: ValueError("six"), 8: ValueError("eight")})
    retire(4)
    assert table.sweep() == 4
    kept = table.refusals.close()  # and what the interrupt came between
    assert sorted(map(str, kept)) == ["eight", "four", "six", "two"]
    assert all("destroyed while in use" in error.__notes__[0] for error in kept)
    assert sorted(freed) == list(range(1, 10))
    assert table.retired() == []
    assert table.sweep() == 0


def test_a_table_is_swept_while_another_begins_to_be_swept_along() -> None:
    """On two threads: who goes through the others goes through those of before."""
    tables = [ResourceTable(BackendKind.CPU, lambda resource: None) for _ in range(3)]
    tables[0].sweep_along(tables[1])
    assert tables[0]._along is not None
    sweeping = iter(tables[0]._along)
    tables[0].sweep_along(tables[2])
    assert list(sweeping) == [tables[1]]
    assert set(tables[0]._along) == set(tables[1:])


def test_refusals_beyond_count_are_logged(caplog: pytest.LogCaptureFixture) -> None:
    """A device that refuses everything fills no memory."""
    refusals = Refusals()
    for number in range(1002):
        refusals.note(None, DeviceError(f"refusal {number}."), "freeing something")
    assert "refusal 999." not in caplog.text
    assert "refusal 1001." in caplog.text
    assert len(refusals.close()) == 1000
