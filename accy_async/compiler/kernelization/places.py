"""Where in a tensor: places as row-major numbers and as one number for each axis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from accy_async.compiler.form import Expression, KernelBuilder, constant
from accy_async.dtypes import DType

__all__ = ["Coordinate", "Place", "Places"]

Coordinate = Expression | int
"""A number known on the device, or one known already."""


class Place:
    """One element of a tensor, given by its number or by its coordinates.

    Made by `Places`, which computes the other when it is asked for.
    """

    __slots__ = ("known_coordinates", "known_linear", "shape")

    def __init__(
        self,
        shape: tuple[int, ...],
        linear: Coordinate | None,
        coordinates: tuple[Coordinate, ...] | None,
    ) -> None:
        self.shape = shape
        self.known_linear = linear
        self.known_coordinates = coordinates


class Places:
    """Makes places and computes with them, in the statements of one kernel.

    What was computed is remembered until the `scope` around it ends, as names made
    in a body are unknown after it.

    Args:
        k: the kernel's builder.
        dtype: the unsigned dtype that numbers of elements are computed in.
    """

    def __init__(self, k: KernelBuilder, dtype: DType) -> None:
        self.k = k
        self.dtype = dtype
        self.known: dict[object, object] = {}
        self._kept: list[object] = []

    @contextmanager
    def scope(self) -> Iterator[None]:
        """What is computed within is forgotten at the end."""
        before = dict(self.known)
        try:
            yield
        finally:
            self.known = before

    def at(self, shape: Sequence[int], linear: Coordinate) -> Place:
        """The element of that row-major number."""
        return self._made(tuple(shape), linear, None)

    def coordinate(
        self,
        shape: Sequence[int],
        coordinates: Sequence[Coordinate],
        linear: Coordinate | None = None,
    ) -> Place:
        """The element at these coordinates; its number too where it is known."""
        settled = tuple(
            0 if extent == 1 else given
            for extent, given in zip(shape, coordinates, strict=True)
        )
        return self._made(tuple(shape), linear, settled)

    def linear(self, place: Place) -> Coordinate:
        """The row-major number."""
        if place.known_linear is not None:
            return place.known_linear
        return self._once(place, "linear", lambda: self._flattened(place))

    def coordinates(self, place: Place) -> tuple[Coordinate, ...]:
        """A number for each axis."""
        if place.known_coordinates is not None:
            return place.known_coordinates
        found = self.known.get((id(place), "coordinates"))
        if found is None:
            found = tuple(self.unravel(self.linear(place), place.shape))
            self.known[id(place), "coordinates"] = found
        assert isinstance(found, tuple)
        return found

    def reshaped(self, place: Place, shape: Sequence[int]) -> Place:
        """The element of the same number in another shape of as many elements."""
        before = [axis for axis, extent in enumerate(place.shape) if extent != 1]
        after = [axis for axis, extent in enumerate(shape) if extent != 1]
        if place.known_coordinates is None or [
            place.shape[axis] for axis in before
        ] != [shape[axis] for axis in after]:
            return self.at(shape, self.linear(place))
        moved: list[Coordinate] = [0] * len(shape)
        for source, target in zip(before, after, strict=True):
            moved[target] = place.known_coordinates[source]
        return self.coordinate(shape, moved, place.known_linear)

    def unravel(self, linear: Coordinate, shape: Sequence[int]) -> list[Coordinate]:
        """The coordinates of an element's number."""
        wide = [axis for axis, extent in enumerate(shape) if extent != 1]
        result: list[Coordinate] = [0] * len(shape)
        rest = linear
        for axis in reversed(wide[1:]):
            result[axis] = self.remainder(rest, shape[axis])
            rest = self.quotient(rest, shape[axis])
        if wide:
            result[wide[0]] = rest
        return result

    def number(self, value: Coordinate) -> Expression:
        """A coordinate as an expression."""
        return constant(self.dtype, value) if isinstance(value, int) else value

    def add(self, left: Coordinate, right: Coordinate) -> Coordinate:
        """The sum of two coordinates."""
        if isinstance(left, int):
            left, right = right, left
        if isinstance(left, int):
            assert isinstance(right, int)
            return left + right
        if isinstance(right, int) and right == 0:
            return left
        return left + right

    def multiply(self, value: Coordinate, factor: int) -> Coordinate:
        """A coordinate times a constant."""
        if isinstance(value, int):
            return value * factor
        return value if factor == 1 else value * factor

    def quotient(self, value: Coordinate, divisor: int) -> Coordinate:
        """A coordinate divided by a constant, rounded down."""
        if isinstance(value, int):
            return value // divisor
        return value if divisor == 1 else self.named(value / divisor)

    def remainder(self, value: Coordinate, divisor: int) -> Coordinate:
        """What a division by a constant leaves."""
        if isinstance(value, int):
            return value % divisor
        return 0 if divisor == 1 else self.named(value % divisor)

    def named(self, value: Coordinate) -> Coordinate:
        """The coordinate, computed once, here."""
        return value if isinstance(value, int) else self.k.let(None, value)

    def _flattened(self, place: Place) -> Coordinate:
        assert place.known_coordinates is not None
        total: Coordinate = 0
        stride = 1
        for extent, given in zip(
            reversed(place.shape), reversed(place.known_coordinates), strict=True
        ):
            total = self.add(total, self.multiply(given, stride))
            stride *= extent
        return self.named(total)

    def _once(self, place: Place, what: str, make: object) -> Coordinate:
        key = (id(place), what)
        found = self.known.get(key)
        if found is None:
            assert callable(make)
            found = self.known[key] = make()
        assert isinstance(found, (Expression, int))
        return found

    def _made(
        self,
        shape: tuple[int, ...],
        linear: Coordinate | None,
        coordinates: tuple[Coordinate, ...] | None,
    ) -> Place:
        place = Place(shape, linear, coordinates)
        self._kept.append(place)  # as its id stands for it in `known`
        return place
