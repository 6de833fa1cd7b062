"""Random programs: a sequence of steps, its launch graph, and its model in numpy.

A program is drawn from a seed and its length, so that hypothesis can shorten it.
The model carries the steps out one after the other on numpy arrays; the graph
leaves the order to what the steps read and write.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence

import anyio.lowlevel
import attrs
import numpy as np

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.compiler.kernels.catalogue import library_entries
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph.builder import GraphBuffer, GraphHost, LaunchGraphBuilder
from accy_async.graph.nodes import RuntimeScalar
from accy_async.graph.plan import LaunchGraphPlan
from tests.graph.graphs import kernel_entry

__all__ = [
    "LENGTH",
    "Kernels",
    "Program",
    "cpu_kernels",
    "library_kernels",
    "named_kernels",
]

LENGTH = 5
_BUFFERS = 6
_HOSTS = 2
_ONE = ScalarArgument.u32(1)
_COUNT = ScalarArgument.u32(LENGTH)
_Array = np.ndarray


@attrs.frozen
class Kernels:
    """The library's kernels for u32, or stand-ins of the same signatures."""

    add: KernelCallArtifact
    axpy: KernelCallArtifact
    fill: KernelCallArtifact
    copy: KernelCallArtifact


@functools.cache
def library_kernels(format: ArtifactFormat) -> Kernels:
    """The real ones, in that format."""
    by_name = {
        entry.target.rpartition(".")[2]: entry
        for entry in library_entries(format, dtype=DType.U32)
    }
    return Kernels(by_name["add"], by_name["axpy"], by_name["fill"], by_name["copy"])


def cpu_kernels() -> Kernels:
    """The real ones, compiled for this processor."""
    return library_kernels(ArtifactFormat.CPU_MACHINE_CODE)


@functools.cache
def named_kernels() -> Kernels:
    """Kernels for the recording backend, which only their names tell apart."""
    made = {
        name: kernel_entry(buffers, f"t.{name}", runtime_scalar_argument_count=scalars)
        for name, buffers, scalars in (
            ("add", 3, 1),
            ("axpy", 3, 2),
            ("fill", 1, 2),
            ("copy", 2, 1),
        )
    }
    return Kernels(**made)


@attrs.define
class State:
    """Where the model is: the array of each slot."""

    buffers: list[_Array]
    hosts: list[_Array]
    counters: list[int]
    scalars: list[int]


Step = Callable[[State], None]


class Program:
    """One random program.

    Args:
        seed: what it is drawn from.
        length: how many steps it has, those within loops counted once.
        kernels: what it launches.
        has_hosts: whether it calls functions on the host.
        has_loops: whether it has loops.
        has_while: whether some are while-loops, which read a value back.
        has_limits: whether those say how many iterations there may be.
        may_fail: whether they may have more than that; there is no model then. What is
            within an outermost loop has one order: so it is told what is skipped.
        calls_in_loops: whether functions are called within loops, too.
        host_call: makes the function that a host call is; None for an own one.
        devices: the names of those that its buffers are spread over, if any.

    Attributes:
        plan: its graph.
        scalars: the runtime scalars that a run brings.
        hosts: the arrays to bind to its host slots, by name.
        external: the event to bind to ``start``, if it has such a slot.
    """

    def __init__(
        self,
        seed: int,
        length: int,
        kernels: Kernels,
        *,
        has_hosts: bool = True,
        has_loops: bool = True,
        has_while: bool = True,
        has_limits: bool = True,
        may_fail: bool = False,
        calls_in_loops: bool = True,
        is_labelled: bool = True,
        host_call: Callable[[str], Callable[[], object]] | None = None,
        devices: Sequence[str] = (),
    ) -> None:
        self._random = random.Random(seed)
        self._kernels = kernels
        self._has_hosts = has_hosts
        self._has_loops = has_loops
        self._has_while = has_while
        self._has_limits = has_limits
        self._may_fail = may_fail
        self._calls_in_loops = calls_in_loops
        self._is_labelled = is_labelled and self._random.random() < 0.5
        self._is_labelled &= not may_fail
        self._is_labelled &= not devices  # a label is one device's
        self.devices = tuple(devices)
        self._outermost: str | None = None  # the label of what is within that loop
        self._near: dict[tuple[int, int], GraphBuffer] = {}
        self._host_call = host_call
        self._builder = b = LaunchGraphBuilder()
        self._number = 0
        self.scalars: list[ScalarArgument] = []
        self._buffers = [
            (b.scratch if i % 2 else b.buffer)(
                f"b{i}", DType.U32, LENGTH, device=self.device_of(i)
            )
            for i in range(_BUFFERS)
        ]
        self._hosts = [b.host(f"h{i}", DType.U32, LENGTH) for i in range(_HOSTS)]
        self._outs = [b.host(f"out{i}", DType.U32, LENGTH) for i in range(_BUFFERS)]
        self._counters: list[GraphBuffer] = []
        self._minus: GraphBuffer | None = None
        self.has_external = self._random.random() < 0.3
        if self.has_external:
            b.external_event("start")
        self.hosts = {
            slot.name: np.arange(LENGTH, dtype=np.uint32) + np.uint32(7 * i)
            for i, slot in enumerate([*self._hosts, *self._outs])
        }
        steps = [*self._inputs(), *self._block(length, 0), *self._outputs()]
        self._steps: list[Step] = steps
        self.plan: LaunchGraphPlan = b.build()

    def device_of(self, buffer: int) -> str | None:
        """The name of the device that a buffer is on; None where there is one."""
        return self.devices[buffer % len(self.devices)] if self.devices else None

    def expected(self) -> dict[str, _Array]:
        """What the model leaves in the host slots; before anything has run."""
        state = State(
            buffers=[np.zeros(LENGTH, np.uint32) for _ in range(_BUFFERS)],
            hosts=[array.copy() for array in self.hosts.values()],
            counters=[0] * len(self._counters),
            scalars=[int(scalar.value) for scalar in self.scalars],
        )
        for step in self._steps:
            step(state)
        return dict(zip(self.hosts, state.hosts, strict=True))

    def check(self, expected: Mapping[str, _Array]) -> None:
        """The host's arrays are as the model had them."""
        for name, array in expected.items():
            np.testing.assert_array_equal(self.hosts[name], array, name)

    # Steps

    def _inputs(self) -> Iterator[Step]:
        for index, buffer in enumerate(self._buffers):
            wait = "start" if self.has_external and index == 0 else ()
            self._builder.fill(buffer, index + 1, name=f"init{index}", wait=wait)

            def fill(state: State, index: int = index) -> None:
                state.buffers[index][:] = index + 1

            yield fill

    def _outputs(self) -> Iterator[Step]:
        for index, buffer in enumerate(self._buffers):
            self._builder.copy_out(buffer, self._outs[index], name=f"result{index}")

            def read(state: State, index: int = index) -> None:
                state.hosts[_HOSTS + index][:] = state.buffers[index]

            yield read

    def _block(self, length: int, depth: int) -> list[Step]:
        draw = self._random
        steps: list[Step] = []
        signals: list[str] = []
        while length > 0:
            if self._has_loops and depth < 3 and length > 1 and draw.random() < 0.15:
                inner = draw.randint(1, length - 1)
                steps += self._loop(inner, depth)
                length -= inner
                continue
            may_call = self._has_hosts and (self._calls_in_loops or not depth)
            if may_call and draw.random() < 0.12:
                steps.append(self._call())
            else:
                steps.append(self._device_step(self._options(signals)))
            length -= 1
        return steps

    def _options(self, signals: list[str]) -> dict[str, object]:
        """A name, perhaps a label or a priority, an event signalled or waited for."""
        draw = self._random
        self._number += 1
        options: dict[str, object] = {"name": f"n{self._number}"}
        if self._is_labelled:
            options["stream"] = draw.choice([None, None, "A", "B"])
        elif self._outermost is not None:
            options["stream"] = self._outermost
        if options.get("stream") is None and draw.random() < 0.1:
            options["priority"] = draw.choice([0, -1, 1])
        if signals and draw.random() < 0.2:
            options["wait"] = draw.choice(signals)
        elif draw.random() < 0.1:
            signals.append(f"e{self._number}")
            options["signal"] = signals[-1]
        return options

    def _scalar(self, value: int) -> ScalarArgument | RuntimeScalar:
        """A number as a constant, or as what a run brings."""
        if self._random.random() < 0.7:
            return ScalarArgument.u32(value)
        self.scalars.append(ScalarArgument.u32(value))
        return self._builder.runtime_scalar()

    def _device_step(self, options: dict[str, object]) -> Step:
        out, a, b = (self._random.randrange(_BUFFERS) for _ in range(3))
        kind = self._random.choice(
            ["add", "axpy", "kfill", "kcopy", "copy", "fill", "in"]
        )
        if kind in ("kcopy", "copy") and a == out:
            kind = "fill"
        if kind in ("add", "axpy", "kfill", "kcopy"):
            return self._kernel_step(kind, out, a, b, options)
        return self._copy_step(kind, out, a, options)

    def _kernel_step(
        self, kind: str, out: int, a: int, b: int, options: dict[str, object]
    ) -> Step:
        value = self._random.randrange(1000)
        number = np.uint32(value)
        if kind == "add":
            self._launch(self._kernels.add, (out, a, b), (_COUNT,), options)
            return _write(out, lambda s: s.buffers[a] + s.buffers[b])
        if kind == "kcopy":
            self._launch(self._kernels.copy, (out, a), (_COUNT,), options)
            return _write(out, lambda s: s.buffers[a])
        scalars = (_COUNT, self._scalar(value))
        if kind == "kfill":
            self._launch(self._kernels.fill, (out,), scalars, options)
            return _write(out, lambda _: number)
        self._launch(self._kernels.axpy, (out, a, b), scalars, options)
        return _write(out, lambda s: number * s.buffers[a] + s.buffers[b])

    def _copy_step(
        self, kind: str, out: int, a: int, options: dict[str, object]
    ) -> Step:
        target = self._buffers[out]
        if kind == "fill":
            value = self._random.randrange(1000)
            self._builder.fill(target, value, **options)  # type: ignore[arg-type]
            return _write(out, lambda _: np.uint32(value))
        if kind == "copy":
            self._builder.copy(self._buffers[a], target, **options)  # type: ignore[arg-type]
            return _write(out, lambda s: s.buffers[a])
        host = self._random.randrange(_HOSTS)
        self._builder.copy_in(self._hosts[host], target, **options)  # type: ignore[arg-type]
        return _write(out, lambda s: s.hosts[host])

    def _launch(
        self,
        entry: KernelCallArtifact,
        slots: tuple[int, ...],
        scalars: tuple[ScalarArgument | RuntimeScalar, ...],
        options: dict[str, object],
    ) -> None:
        out, *reads = slots
        buffers = [self._buffers[out], *(self._brought(i, out) for i in reads)]
        uses = [buffers[0].write, *(buffer.read for buffer in buffers[1:])]
        if out in reads:
            uses = [buffer.read_write for buffer in buffers]
        self._builder.kernel(entry, uses, scalars, **options)  # type: ignore[arg-type]

    def _brought(self, buffer: int, out: int) -> GraphBuffer:
        """A buffer on the device of a kernel's output; copied there if need be."""
        here, there = self.device_of(buffer), self.device_of(out)
        if here == there:
            return self._buffers[buffer]
        key = buffer, out % len(self.devices)
        near = self._near.get(key)
        if near is None:
            near = self._near[key] = self._builder.scratch(
                f"near{len(self._near)}", DType.U32, LENGTH, device=there
            )
        self._number += 1
        self._builder.copy(self._buffers[buffer], near, name=f"n{self._number}")
        return near

    def _call(self) -> Step:
        self._number += 1
        name = f"n{self._number}"
        host = self._random.randrange(_HOSTS)
        factor = self._random.randrange(1, 1000)
        slot: GraphHost = self._hosts[host]
        array = self.hosts[slot.name]

        def change() -> None:
            array[:] = array * np.uint32(factor) + np.uint32(1)

        async def change_async() -> None:
            await anyio.lowlevel.checkpoint()
            change()

        function: Callable[[], object] = change_async
        if self._host_call is not None:
            function = self._host_call(name)
        elif self._random.random() < 0.3:
            function = change
        self._builder.host_call(function, writes=[slot], name=name)

        def step(s: State) -> None:
            s.hosts[host][:] = s.hosts[host] * np.uint32(factor) + np.uint32(1)

        return step

    # Loops

    def _loop(self, length: int, depth: int) -> Iterator[Step]:
        draw = self._random
        carries: list[tuple[int, int]] = []
        if draw.random() < 0.5:
            carries = [tuple(draw.sample(range(_BUFFERS), 2))]  # type: ignore[list-item]
            if self.devices:  # both on one
                first = draw.randrange(_BUFFERS - len(self.devices))
                carries = [(first, first + len(self.devices))]
        given = [(self._buffers[a], self._buffers[b]) for a, b in carries]
        count = draw.randrange(4)
        name = f"loop{self._number}_{depth}"
        if not depth:
            self._outermost = name if self._may_fail else None
        yield from self._loop_of_kind(name, length, depth, count, carries, given)
        if not depth:
            self._outermost = None

    def _loop_of_kind(
        self,
        name: str,
        length: int,
        depth: int,
        count: int,
        carries: list[tuple[int, int]],
        given: list[tuple[GraphBuffer, GraphBuffer]],
    ) -> Iterator[Step]:
        draw = self._random
        if self._has_while and draw.random() < 0.4:
            yield from self._while(name, length, depth, count, carries, given)
            return
        scalar = self._scalar(count)
        number = count if isinstance(scalar, ScalarArgument) else scalar
        with self._builder.loop(count=number, carries=given, name=name):
            body = self._block(length, depth + 1)

        def loop(state: State) -> None:
            for _ in range(count):
                _iterate(state, body, carries)

        yield loop

    def _while(
        self,
        name: str,
        length: int,
        depth: int,
        count: int,
        carries: list[tuple[int, int]],
        given: list[tuple[GraphBuffer, GraphBuffer]],
    ) -> Iterator[Step]:
        b = self._builder
        if self._minus is None:
            self._minus = b.scratch("minus_one", DType.U32, 1, device=self.device_of(0))
        index = len(self._counters)
        counter = b.scratch(f"counter{index}", DType.U32, 1, device=self.device_of(0))
        self._counters.append(counter)
        label = self._outermost if depth else None
        b.fill(self._minus, 2**32 - 1, name=f"minus{index}", stream=label)
        b.fill(counter, count, name=f"set{index}", stream=label)
        most = 9 if self._has_limits else None
        if self._may_fail:
            most = self._random.choice([1, 2, 3, 3, None])
        with b.loop(while_=counter, carries=given, name=name, max_iterations=most):
            uses = [counter.read_write, counter.read_write, self._minus.read]
            b.kernel(
                self._kernels.add,
                uses,
                (_ONE,),
                name=f"down{index}",
                stream=self._outermost,
            )
            body = self._block(length, depth + 1)

        def loop(state: State) -> None:
            for _ in range(count):
                _iterate(state, body, carries)

        yield loop


def _write(out: int, value: Callable[[State], object]) -> Step:
    def step(state: State) -> None:
        state.buffers[out][:] = value(state)

    return step


def _iterate(state: State, body: list[Step], carries: list[tuple[int, int]]) -> None:
    for step in body:
        step(state)
    for a, b in carries:
        state.buffers[a], state.buffers[b] = state.buffers[b], state.buffers[a]
