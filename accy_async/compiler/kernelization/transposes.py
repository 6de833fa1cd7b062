"""Elementwise work on transposes on a GPU, by way of shared memory.

A thread that reads where it writes would read a transposed operand across its lines,
of which memory gives whole pieces. So a block takes a square of two axes: of the
results' last axis, and of the one that the operand's last axis has become. Its threads
read along the operand's lines, meet, and write along the results'.

Source: M. Harris, "An Efficient Matrix Transpose in CUDA C/C++" (the padded tile).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import attrs

from accy_async.artifact.formats import BackendKind
from accy_async.compiler import semantic
from accy_async.compiler.form import ArrayHandle, Expression
from accy_async.compiler.kernelization.assembly import Assembly, ceil_div
from accy_async.compiler.kernelization.places import Coordinate, Place
from accy_async.compiler.kernelization.profile import TargetProfile
from accy_async.compiler.semantic import Function, Operation, Value

__all__ = ["THREADS", "Crossing", "find_crossing", "write_crossing"]

THREADS = 256
_LEAST = 32
"""Elements along both axes from which squares are worth it."""
_LARGE = 2**14
"""Elements in all from which they are."""
_MOST_BYTES = 16 << 10
"""Of shared memory, which leaves a multiprocessor several blocks."""


@attrs.frozen
class Crossing:
    """Transposes whose operands have their lines along one other axis of the results.

    Attributes:
        shape: of the results.
        axis: the one along which the operands' lines lie.
        side: of a block's square.
        transposed: what the transposes give.
    """

    shape: tuple[int, ...]
    axis: int
    side: int
    transposed: tuple[Value, ...]

    @property
    def others(self) -> list[int]:
        """The results' axes that no square is of."""
        return [i for i in range(len(self.shape) - 1) if i != self.axis]

    @property
    def squares(self) -> tuple[int, int, int]:
        """Squares along the last axis, along the other one, and in all others."""
        outer = 1
        for axis in self.others:
            outer *= self.shape[axis]
        along, across = self.shape[-1], self.shape[self.axis]
        return ceil_div(along, self.side), ceil_div(across, self.side), outer

    @property
    def count(self) -> int:
        """Squares in all."""
        along, across, outer = self.squares
        return along * across * outer


def find_crossing(
    function: Function, shape: tuple[int, ...], profile: TargetProfile
) -> Crossing | None:
    """What there is to gain from squares in elementwise work; None for nothing.

    Of transposes along several axes those along the first one found count.
    """
    if profile.backend is BackendKind.CPU or len(shape) < 2 or shape[-1] < _LEAST:
        return None
    if function.results[0].type.element_count < _LARGE:
        return None
    if profile.capabilities.max_threads_per_block < THREADS:
        return None
    found: dict[int, list[Operation]] = {}
    for entry in _transposes(function):
        assert isinstance(entry.op, semantic.Transpose)
        axis = entry.op.permutation.index(len(shape) - 1)
        if axis != len(shape) - 1 and shape[axis] >= _LEAST:
            found.setdefault(axis, []).append(entry)
    if not found:
        return None
    axis, entries = next(iter(found.items()))
    widest = max(entry.result.dtype.size_bytes for entry in entries)
    is_narrow = widest <= 2 and profile.backend is BackendKind.CUDA
    side = 64 if is_narrow else 32
    each = side * (side + 4) * max(widest, 2 if is_narrow else 4)
    chosen = entries[: max(1, _MOST_BYTES // each)]
    return Crossing(shape, axis, side, tuple(entry.result for entry in chosen))


def _transposes(function: Function) -> Iterator[Operation]:
    """Those of which an element is only ever asked for where a result's is."""
    producers = function.producers()
    here: set[Value] = set()
    todo = list(function.results)
    while todo:
        value = todo.pop()
        if value in here:
            continue
        here.add(value)
        entry = producers.get(value)
        if entry is not None and isinstance(entry.op, semantic.POINTWISE):
            todo += entry.operands
    elsewhere: set[Value] = set()
    for entry in reversed(function.operations):
        if not isinstance(entry.op, semantic.POINTWISE) or entry.result in elsewhere:
            elsewhere.update(entry.operands)
    parameters = set(function.parameters)
    for entry in function.operations:
        if not isinstance(entry.op, semantic.Transpose):
            continue
        operand = producers.get(entry.operands[0])
        is_read = entry.operands[0] in parameters or (
            operand is not None and isinstance(operand.op, semantic.POINTWISE)
        )
        if is_read and entry.result in here and entry.result not in elsewhere:
            yield entry


def write_crossing(a: Assembly, crossing: Crossing) -> None:
    """The kernel's body."""
    arrays = [
        a.k.shared(f"square{i}", value.dtype, crossing.side * _pitch(crossing, value))
        for i, value in enumerate(crossing.transposed)
    ]
    with a.tasks(crossing.count) as task:
        along, across, _ = crossing.squares
        x = a.k.let("x", task % along * crossing.side)
        y = a.k.let("y", task / along % across * crossing.side)
        outer = a.k.let("outer", task / (along * across))
        square = _Square(a, crossing, x, y, outer)
        with a.k.region(), a.places.scope():
            square.read(arrays)
        with a.k.region(), a.places.scope():
            square.write(arrays)


def _always(value: Expression) -> Callable[[Place], Expression]:
    return lambda _: value


def _pitch(crossing: Crossing, value: Value) -> int:
    """Elements from line to line: threads that go down them find other banks."""
    return crossing.side + max(1, 4 // value.dtype.size_bytes)


class _Square:
    """Writes what a block does with one square."""

    def __init__(
        self,
        a: Assembly,
        crossing: Crossing,
        x: Expression,
        y: Expression,
        outer: Expression,
    ) -> None:
        self.a, self.crossing = a, crossing
        self.begin = x, y
        shape = crossing.shape
        outer_shape = [shape[axis] for axis in crossing.others]
        self.outer = a.places.unravel(outer, outer_shape)

    def read(self, arrays: list[ArrayHandle]) -> None:
        """Take the transposed values, threads along the operands' lines."""
        a, crossing = self.a, self.crossing
        for near, far in self._turns():
            with self._inside(far, near) as place:
                for value, array in zip(crossing.transposed, arrays, strict=True):
                    a.elements.bound.pop(value, None)
                    at = far * _pitch(crossing, value) + near
                    array[at] = a.elements.value(value, place)

    def write(self, arrays: list[ArrayHandle]) -> None:
        """Compute the results, threads along theirs."""
        a, crossing = self.a, self.crossing
        for near, far in self._turns():
            with self._inside(near, far) as place:
                for value, array in zip(crossing.transposed, arrays, strict=True):
                    at = a.k.let(None, near * _pitch(crossing, value) + far)
                    a.elements.bound[value] = _always(array[at])
                results = [a.elements.value(v, place) for v in a.function.results]
                number = a.places.number(a.places.linear(place))
                for out, result in zip(a.results, results, strict=True):
                    out[number] = result

    def _turns(self) -> Iterator[tuple[Expression, Expression]]:
        """A thread's places in the square: along its lines, and which line."""
        a, side = self.a, self.crossing.side
        near = a.k.let(None, a.thread % side)
        line = a.k.let(None, a.thread / side)
        for turn in range(0, side, THREADS // side):
            yield near, a.k.let(None, line + turn) if turn else line

    @contextmanager
    def _inside(self, x: Expression, y: Expression) -> Iterator[Place]:
        """The place of the results so far into the square, where there is one."""
        a, crossing = self.a, self.crossing
        along = a.k.let(None, self.begin[0] + x)
        across = a.k.let(None, self.begin[1] + y)
        shape, axis = crossing.shape, crossing.axis
        tests = [
            at < extent
            for at, extent in ((along, shape[-1]), (across, shape[axis]))
            if extent % crossing.side
        ]
        coordinates: list[Coordinate] = [0] * len(shape)
        for other, given in zip(crossing.others, self.outer, strict=True):
            coordinates[other] = given
        coordinates[axis], coordinates[-1] = across, along
        with self._when(tests), a.places.scope():
            yield a.places.coordinate(shape, coordinates)

    @contextmanager
    def _when(self, tests: list[Expression]) -> Iterator[None]:
        if not tests:
            yield
            return
        with self.a.k.when(tests[0] if len(tests) == 1 else tests[0] & tests[1]):
            yield
