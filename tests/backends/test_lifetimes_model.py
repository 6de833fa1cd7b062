"""Lifetimes against a model: whatever is done, nothing is freed in use or twice."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    invariant,
    rule,
)

from accy_async.artifact import BackendKind
from accy_async.backends import BufferHandle, ObjectKind
from accy_async.backends.lifetimes import ResourceTable
from accy_async.backends.resources import Resource
from accy_async.backends.timeline import Timeline
from accy_async.errors import InvalidBuffer


class Lifetimes(RuleBasedStateMachine):
    """Buffers, three streams that use them, and what must be freed by now."""

    buffers = Bundle("buffers")
    destroyed = Bundle("destroyed")
    streams = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.lines = [Timeline(f"stream {number}") for number in range(3)]
        self.completed = [0, 0, 0]
        self.submitted = [0, 0, 0]
        self.uses: dict[int, list[int]] = {}
        self.retired: set[int] = set()
        self.freed: list[int] = []
        self.expected: set[int] = set()
        self.table = ResourceTable(BackendKind.CPU, self.free)

    def free(self, resource: Resource) -> None:
        assert not self.is_busy(resource.handle.id)
        self.freed.append(resource.handle.id)

    def is_busy(self, buffer: int) -> bool:
        return any(
            done < at
            for done, at in zip(self.completed, self.uses[buffer], strict=True)
        )

    @rule(target=buffers)
    def allocate(self) -> Resource:
        resource = self.table.add(
            ObjectKind.BUFFER,
            lambda i: BufferHandle(id=i, backend=BackendKind.CPU, byte_size=8),
            None,
        )
        self.uses[resource.handle.id] = [0, 0, 0]
        return resource

    @rule(used=st.lists(buffers, max_size=3), stream=streams)
    def submit(self, used: list[Resource], stream: int) -> None:
        position = self.lines[stream].advance()
        self.submitted[stream] += 1
        assert position == self.submitted[stream]
        for resource in used:
            resource.touch(self.lines[stream], position)
            self.uses[resource.handle.id][stream] = position

    @rule(stream=streams, count=st.integers(0, 4))
    def complete(self, stream: int, count: int) -> None:
        done = min(self.completed[stream] + count, self.submitted[stream])
        self.completed[stream] = done
        self.lines[stream].complete(done)

    @rule(target=destroyed, resource=consumes(buffers))
    def destroy(self, resource: Resource) -> Resource:
        buffer = resource.handle.id
        is_idle = not self.is_busy(buffer)
        assert resource.is_busy is not is_idle
        assert self.table.destroy(resource.handle) is is_idle
        if is_idle:
            self.expected.add(buffer)
        else:
            self.retired.add(buffer)
        return resource

    @rule(resource=destroyed)
    def destroy_again(self, resource: Resource) -> None:
        with pytest.raises(InvalidBuffer, match="was destroyed"):
            self.table.destroy(resource.handle)
        assert self.table.find(resource.handle) is None

    @rule()
    def sweep(self) -> None:
        idle = {buffer for buffer in self.retired if not self.is_busy(buffer)}
        assert self.table.sweep() == len(idle)
        self.retired -= idle
        self.expected |= idle

    @invariant()
    def nothing_is_freed_twice_or_forgotten(self) -> None:
        assert sorted(self.freed) == sorted(self.expected)
        assert {r.handle.id for r in self.table.retired()} == self.retired
        living = {r.handle.id for r in self.table}
        assert living == set(self.uses) - self.retired - self.expected
        assert self.table.counts()["buffers"] == len(living) + len(self.retired)

    def teardown(self) -> None:
        for resource in self.table.living():
            self.table.destroy(resource.handle)
        for stream, line in enumerate(self.lines):
            self.completed[stream] = self.submitted[stream]
            line.complete(self.submitted[stream])
        self.table.sweep()
        assert sorted(self.freed) == sorted(self.uses)
        assert self.table.counts() == dict.fromkeys(self.table.counts(), 0)


Lifetimes.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestLifetimes = Lifetimes.TestCase
