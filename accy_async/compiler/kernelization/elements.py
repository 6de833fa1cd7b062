"""Any value of a fused function at a place: expressions and index arithmetic.

Operations on elements become operations of the kernel form, operations that move
elements become arithmetic on places: a transpose swaps coordinates, a slice adds to
them, a pad asks whether they lie inside. Nothing is branched around: where an element
does not exist (outside a padded operand, in the other operand of a concatenation) the
place is moved to one that does and the value is not chosen, so that loops stay loops
that a vector unit can run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from accy_async.compiler import semantic
from accy_async.compiler.form import (
    ArrayHandle,
    Expression,
    constant,
    maximum,
    minimum,
    multiply_add,
    select,
)
from accy_async.compiler.kernelization import operations
from accy_async.compiler.kernelization.places import Coordinate, Place, Places
from accy_async.compiler.semantic import BinaryKind, Function, Operation, Value
from accy_async.dtypes import DType
from accy_async.errors import UnsupportedOperation

__all__ = ["MAX_FOLDED_ELEMENTS", "Elements", "is_elementwise", "needs_coordinates"]

MAX_FOLDED_ELEMENTS = 32
"""Elements of a constant that is no splat and still has no buffer."""

_IN_PLACE = (*semantic.POINTWISE, semantic.Constant, semantic.Reshape)
_PLACED = (
    semantic.Iota,
    semantic.Broadcast,
    semantic.Transpose,
    semantic.Slice,
    semantic.Concatenate,
    semantic.Pad,
    semantic.Reverse,
    semantic.Gather,
)


def is_elementwise(op: semantic.Op) -> bool:
    """Whether each element of the result comes of a few elements of the operands."""
    if isinstance(op, semantic.Constant):
        return op.is_splat or op.type.element_count <= MAX_FOLDED_ELEMENTS
    return isinstance(op, (*_IN_PLACE, *_PLACED))


def needs_coordinates(function: Function) -> bool:
    """Whether an operation asks where an element lies, beside its number."""
    return any(_asks_where(entry) for entry in function.operations)


def _asks_where(entry: Operation) -> bool:
    match entry.op:
        case semantic.Broadcast():
            return entry.operands[0].type.element_count > 1
        case semantic.Constant() as op:
            return not op.is_splat
        case op:
            return isinstance(op, _PLACED)


class Elements:
    """Computes values of a function at places, each once where it stays known.

    Args:
        function: whose values.
        places: makes places, and remembers what was computed.
        operands: the buffers of its parameters.
        fuse: whether a product that is only added may keep its full width.

    Attributes:
        bound: values that are not computed but given, by what gives them at a place.
    """

    def __init__(
        self,
        function: Function,
        places: Places,
        operands: Mapping[Value, ArrayHandle],
        *,
        fuse: bool = False,
    ) -> None:
        self.places = places
        self.bound: dict[Value, Callable[[Place], Expression]] = {}
        self._operands = operands
        self._producers = function.producers()
        self._fused = _fused_products(function) if fuse else frozenset()

    def value(self, value: Value, place: Place) -> Expression:
        """The value's element at a place of its shape."""
        known = self.places.known
        key = (value, id(place))
        found = known.get(key)
        if found is None:
            found = known[key] = self._computed(value, place)
        assert isinstance(found, Expression)
        return found

    def _computed(self, value: Value, place: Place) -> Expression:
        if value in self.bound:
            return self.bound[value](place)
        if value in self._operands:
            return self._operands[value][self.places.number(self.places.linear(place))]
        computed = self._operation(self._producers[value], place)
        return self.places.k.let(None, computed)

    def _operation(self, entry: Operation, place: Place) -> Expression:
        match entry.op:
            case semantic.Unary(kind=kind):
                return operations.unary(kind, self._operand(entry, 0, place))
            case semantic.Binary(kind=kind):
                return self._binary(kind, entry, place)
            case semantic.Compare(kind=comparison):
                left, right = (self._operand(entry, i, place) for i in (0, 1))
                return operations.compare(comparison, left, right)
            case semantic.Select():
                test, then, otherwise = (
                    self._operand(entry, i, place) for i in range(3)
                )
                return select(test, then, otherwise)
            case semantic.Convert(dtype=dtype):
                return operations.convert(self._operand(entry, 0, place), dtype)
            case semantic.Constant() as op:
                return self._constant(op, place)
            case semantic.Iota(type=type, axis=axis):
                at = self.places.number(self.places.coordinates(place)[axis])
                return operations.convert(at, type.dtype)
            case semantic.Concatenate(axis=axis):
                return self._concatenation(entry, axis, place)
            case semantic.Pad() as op:
                return self._padding(entry, op, place)
            case semantic.Gather(axis=axis):
                return self._gathered(entry, axis, place)
            case _:
                return self.value(entry.operands[0], self._moved(entry, place))

    def _operand(self, entry: Operation, index: int, place: Place) -> Expression:
        return self.value(entry.operands[index], place)

    def _binary(self, kind: BinaryKind, entry: Operation, place: Place) -> Expression:
        if kind is BinaryKind.ADD and entry.operands[0] in self._fused:
            product, addend = entry.operands
        elif kind is BinaryKind.ADD and entry.operands[1] in self._fused:
            addend, product = entry.operands
        else:
            left, right = (self._operand(entry, i, place) for i in (0, 1))
            return operations.binary(kind, left, right)
        factors = self._producers[product].operands
        return multiply_add(
            self.value(factors[0], place),
            self.value(factors[1], place),
            self.value(addend, place),
        )

    def _constant(self, op: semantic.Constant, place: Place) -> Expression:
        dtype = op.type.dtype
        elements = op.to_numpy().reshape(-1)
        if op.is_splat:
            return constant(dtype, elements[0].item())
        if op.type.element_count > MAX_FOLDED_ELEMENTS:
            raise UnsupportedOperation(
                f"constant: {op.type} has its elements in a buffer, not in code"
            )
        at = self.places.number(self.places.linear(place))
        chosen = constant(dtype, elements[0].item())
        for index, element in enumerate(elements[1:].tolist(), 1):
            chosen = self.places.k.let(
                None, select(at.equals(index), constant(dtype, element), chosen)
            )
        return chosen

    def _moved(self, entry: Operation, place: Place) -> Place:
        """The operand's place that a place of the result shows."""
        places, shape = self.places, entry.operands[0].shape
        match entry.op:
            case semantic.Reshape():
                return places.reshaped(place, shape)
            case semantic.Broadcast(axes=axes):
                if entry.operands[0].type.element_count == 1:
                    return places.coordinate(shape, [0] * len(shape), 0)
                given = places.coordinates(place)
                return places.coordinate(shape, [given[axis] for axis in axes])
            case semantic.Transpose(permutation=permutation):
                given = places.coordinates(place)
                moved: list[Coordinate] = [0] * len(shape)
                for axis, source in enumerate(permutation):
                    moved[source] = given[axis]
                return places.coordinate(shape, moved)
            case semantic.Slice(starts=starts, strides=strides):
                given = places.coordinates(place)
                return places.coordinate(
                    shape,
                    [
                        places.named(places.add(places.multiply(at, step), start))
                        for at, step, start in zip(given, strides, starts, strict=True)
                    ],
                )
            case semantic.Reverse(axes=axes):
                given = places.coordinates(place)
                return places.coordinate(
                    shape,
                    [
                        self._mirrored(at, shape[axis]) if axis in axes else at
                        for axis, at in enumerate(given)
                    ],
                )
            case op:
                raise UnsupportedOperation(f"{op.opcode} is no elementwise operation")

    def _mirrored(self, at: Coordinate, extent: int) -> Coordinate:
        if isinstance(at, int):
            return extent - 1 - at
        return self.places.named(constant(at.dtype, extent - 1) - at)

    def _concatenation(self, entry: Operation, axis: int, place: Place) -> Expression:
        places = self.places
        given = list(places.coordinates(place))
        begin = 0
        chosen: Expression | None = None
        for operand in entry.operands:
            extent = operand.shape[axis]
            if extent == 0:
                continue
            inside, at = self._within(given[axis], begin, extent)
            moved = places.coordinate(
                operand.shape, [*given[:axis], at, *given[axis + 1 :]]
            )
            value = self.value(operand, moved)
            chosen = value if chosen is None else select(inside, value, chosen)
            chosen = places.k.let(None, chosen)
            begin += extent
        assert chosen is not None, "an empty result has no element to compute"
        return chosen

    def _padding(self, entry: Operation, op: semantic.Pad, place: Place) -> Expression:
        places = self.places
        operand, filler = entry.operands
        padding = self.value(filler, places.coordinate((), (), 0))
        if operand.type.element_count == 0:
            return padding
        tests: list[Expression] = []
        moved: list[Coordinate] = []
        for axis, at in enumerate(places.coordinates(place)):
            if op.low[axis] == op.high[axis] == 0:
                moved.append(at)
                continue
            inside, settled = self._within(at, op.low[axis], operand.shape[axis])
            tests.append(inside)
            moved.append(settled)
        value = self.value(operand, places.coordinate(operand.shape, moved))
        if not tests:
            return value
        test = tests[0]
        for other in tests[1:]:
            test = test & other
        return select(test, value, padding)

    def _within(
        self, at: Coordinate, begin: int, extent: int
    ) -> tuple[Expression, Coordinate]:
        """Whether a coordinate lies in a span, and where in it: 0 if it does not."""
        places, k = self.places, self.places.k
        # Below the span the difference wraps, and lies beyond it.
        offset = k.let(None, places.number(at) - begin) if begin else places.number(at)
        inside = k.let(None, offset < extent)
        zero = constant(places.dtype, 0)
        return inside, k.let(None, select(inside, offset, zero))

    def _gathered(self, entry: Operation, axis: int, place: Place) -> Expression:
        places = self.places
        operand, indices = entry.operands
        given = list(places.coordinates(place))
        rank = indices.rank
        asked = places.coordinate(indices.shape, given[axis : axis + rank])
        index = self.nearest(self.value(indices, asked), operand.shape[axis])
        moved = [*given[:axis], index, *given[axis + rank :]]
        return self.value(operand, places.coordinate(operand.shape, moved))

    def nearest(self, index: Expression, extent: int) -> Coordinate:
        """An index of any integer dtype, moved into the axis."""
        if extent <= 1:
            return 0
        settled = maximum(index, 0) if index.dtype.is_signed else index
        if index.dtype.maximum > extent - 1:
            settled = minimum(settled, extent - 1)
        return self.places.k.let(None, settled.cast(self.places.dtype))


def _fused_products(function: Function) -> frozenset[Value]:
    """Products of f32 or f64 that one sum uses, and nothing else."""
    found = set()
    users = function.users()
    for entry in function.operations:
        op = entry.op
        if not isinstance(op, semantic.Binary) or op.kind is not BinaryKind.MULTIPLY:
            continue
        value = entry.result
        if value.dtype not in (DType.F32, DType.F64) or value in function.results:
            continue
        using = users[value]
        if len(using) == 1 and using[0].operands.count(value) == 1:
            other = using[0].op
            if isinstance(other, semantic.Binary) and other.kind is BinaryKind.ADD:
                found.add(value)
    return frozenset(found)
