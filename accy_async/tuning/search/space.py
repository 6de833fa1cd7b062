"""Spaces of schedules: named parameters with their values, and what rules some out.

For example::

    space = SearchSpace(
        {"tile": (16, 32, 64), "stages": (1, 2, 3), "layout": ("row", "column")},
        constraints=[lambda tile, stages: tile * tile * 4 * stages <= 48 << 10],
    )

A constraint names the parameters that it looks at by its own parameters, so that it
is asked as soon as these are chosen: what it rules out is never enumerated.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import attrs
import numpy as np

from accy_async.errors import InvalidType, InvalidValue
from accy_async.values import text, to_tuple

__all__ = ["Constraint", "Schedule", "SearchParameter", "SearchSpace", "Value"]

Value = bool | int | float | str | tuple[int, ...]
"""What a parameter may be: a number, a name, or extents such as ``(64, 32)``."""

_MOST_DRAWS = 256
"""Draws of a schedule at random before it is put together value by value."""

MOST_ENUMERATED = 1 << 16
"""Spaces of up to so many combinations are enumerated where that helps."""


@attrs.frozen(repr=False)
class Schedule(Mapping[str, Any]):
    """One point of a space: a value for each parameter. Hashable.

    Attributes:
        pairs: names and values, in the space's order.
    """

    pairs: tuple[tuple[str, Value], ...]

    def __getitem__(self, name: str) -> Any:  # noqa: ANN401 - a `Value`, as wanted
        for known, value in self.pairs:
            if known == name:
                return value
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self.pairs)

    def __len__(self) -> int:
        return len(self.pairs)

    def __str__(self) -> str:
        return " ".join(f"{name}={_show(value)}" for name, value in self.pairs)

    def __repr__(self) -> str:
        return f"<Schedule {self}>"


def _show(value: Value) -> str:
    return "x".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _values(_: object, __: object, value: object) -> None:
    name = "SearchParameter.values"
    if not isinstance(value, tuple) or not value:
        raise InvalidType(name, value, "at least one value")
    for member in value:
        is_extents = isinstance(member, tuple) and all(
            isinstance(part, int) and not isinstance(part, bool) for part in member
        )
        if not is_extents and not isinstance(member, (bool, int, float, str)):
            raise InvalidType(name, member, "numbers, strings, or tuples of integers")
        if isinstance(member, float) and not math.isfinite(member):
            raise InvalidValue(name, member, "finite numbers")
    if len(set(value)) < len(value):
        raise InvalidValue(name, value, "values that differ")


@attrs.frozen
class SearchParameter:
    """A parameter and its values.

    Attributes:
        name: a Python identifier, as constraints take it by name.
        values: in their natural order, if they have one: a model takes numbers that
            follow each other for neighbours.
    """

    name: str = attrs.field(
        validator=text(pattern=r"[A-Za-z_][A-Za-z0-9_]*", what="a Python identifier")
    )
    values: tuple[Value, ...] = attrs.field(converter=to_tuple, validator=_values)

    @property
    def is_ordered(self) -> bool:
        """True where the values are numbers that rise or fall."""
        if any(isinstance(value, (bool, str, tuple)) for value in self.values):
            return False
        numbers = [float(value) for value in self.values]  # type: ignore[arg-type]
        return numbers in (sorted(numbers), sorted(numbers, reverse=True))


@attrs.frozen
class Constraint:
    """What schedules have to fulfil.

    Attributes:
        predicate: takes the parameters that it names, and answers whether they go
            together.
        label: what it demands, in words.
    """

    predicate: Callable[..., object]
    label: str = attrs.field(default="", validator=text(empty=True))
    names: tuple[str, ...] = attrs.field(init=False)

    @names.default
    def _names(self) -> tuple[str, ...]:
        return parameters_of("Constraint.predicate", self.predicate)

    def holds(self, values: Mapping[str, Value]) -> bool:
        """Whether these values fulfil it.

        Raises:
            InvalidValue: the predicate raised; its error is the cause.
        """
        given = {name: values[name] for name in self.names}
        try:
            return bool(self.predicate(**given))
        except Exception as error:
            raise InvalidValue(
                f"constraint {self}", given, f"an answer, not {error!r}"
            ) from error

    def __str__(self) -> str:
        if self.label:
            return self.label
        name = getattr(self.predicate, "__name__", "<lambda>")
        return name if name != "<lambda>" else f"on {', '.join(self.names)}"


def parameters_of(field: str, function: object) -> tuple[str, ...]:
    """The names of a function's parameters, which are those of a space.

    Raises:
        InvalidType: it is no function, or takes something else.
    """
    if not callable(function):
        raise InvalidType(field, function, "a function of parameters of the space")
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if parameter.kind in (
            inspect.Parameter.POSITIONAL_ONLY,
            inspect.Parameter.VAR_POSITIONAL,
            inspect.Parameter.VAR_KEYWORD,
        ):
            raise InvalidType(field, function, "a function that names what it takes")
        if parameter.default is inspect.Parameter.empty:
            names.append(name)
    return tuple(names)


def _parameters(
    given: Mapping[str, Iterable[Value]] | Iterable[SearchParameter],
) -> tuple[SearchParameter, ...]:
    if isinstance(given, Mapping):
        return tuple(SearchParameter(name, values) for name, values in given.items())
    made: tuple[SearchParameter, ...] = to_tuple(given)
    return made


def _constraints(
    given: Iterable[Constraint | Callable[..., object]],
) -> tuple[Constraint, ...]:
    return tuple(
        one if isinstance(one, Constraint) else Constraint(one)
        for one in to_tuple(given)
    )


@attrs.frozen
class SearchSpace:
    """All schedules that its parameters allow and its constraints do not rule out.

    Attributes:
        parameters: a mapping from names to values will do.
        constraints: functions that answer for parameters they name will do.

    Raises:
        InvalidType: a value of another kind.
        InvalidValue: no parameter, two of one name, or a constraint on one that there
            is not.
    """

    parameters: tuple[SearchParameter, ...] = attrs.field(converter=_parameters)
    constraints: tuple[Constraint, ...] = attrs.field(
        default=(), converter=_constraints
    )
    _decided: tuple[tuple[Constraint, ...], ...] = attrs.field(
        init=False, repr=False, eq=False, default=()
    )

    @parameters.validator
    def _check_parameters(self, _: object, value: object) -> None:
        if not isinstance(value, tuple) or not value:
            raise InvalidType("SearchSpace.parameters", value, "at least one parameter")
        for one in value:
            if not isinstance(one, SearchParameter):
                raise InvalidType("SearchSpace.parameters", one, "SearchParameters")
        names = [one.name for one in value]
        if len(set(names)) < len(names):
            raise InvalidValue("SearchSpace.parameters", names, "names of their own")

    @constraints.validator
    def _check_constraints(self, _: object, value: tuple[Constraint, ...]) -> None:
        for one in value:
            for name in one.names:
                if name not in self.names:
                    raise InvalidValue(
                        f"constraint {one}", name, f"one of {', '.join(self.names)}"
                    )

    def __attrs_post_init__(self) -> None:
        # The constraints that can be asked once each parameter is chosen.
        last = {
            one: max((self.names.index(name) for name in one.names), default=0)
            for one in self.constraints
        }
        decided = tuple(
            tuple(one for one in self.constraints if last[one] == depth)
            for depth in range(len(self.names))
        )
        object.__setattr__(self, "_decided", decided)
        if not any(True for _ in self.schedules()):
            raise InvalidValue(
                "SearchSpace.constraints",
                [str(one) for one in self.constraints],
                "to leave at least one schedule",
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The parameters' names, in order."""
        return tuple(one.name for one in self.parameters)

    @property
    def combinations(self) -> int:
        """How many there would be without constraints."""
        return math.prod(len(one.values) for one in self.parameters)

    def schedules(self) -> Iterator[Schedule]:
        """Every schedule, the last parameter changing fastest."""
        return self._from({}, lambda parameter: range(len(parameter.values)))

    def schedule(self, **values: Value) -> Schedule:
        """The schedule of these values.

        Raises:
            InvalidValue: a parameter is missing or has no such value, or a constraint
                rules it out; the message says which.
        """
        for name in values:
            if name not in self.names:
                raise InvalidValue(
                    "SearchSpace.schedule", name, f"one of {', '.join(self.names)}"
                )
        for one in self.parameters:
            if one.name not in values or values[one.name] not in one.values:
                raise InvalidValue(
                    f"SearchSpace.schedule.{one.name}",
                    values.get(one.name),
                    f"one of {', '.join(map(_show, one.values))}",
                )
        made = self._made(values)
        broken = self.broken(made)
        if broken is not None:
            raise InvalidValue(
                "SearchSpace.schedule", str(made), f"to fulfil: {broken}"
            )
        return made

    def broken(self, values: Mapping[str, Value]) -> Constraint | None:
        """The first constraint that these values do not fulfil."""
        return next((one for one in self.constraints if not one.holds(values)), None)

    def __contains__(self, schedule: object) -> bool:
        if not isinstance(schedule, Schedule) or tuple(schedule) != self.names:
            return False
        has_values = all(schedule[one.name] in one.values for one in self.parameters)
        return has_values and self.broken(schedule) is None

    def draw(self, generator: np.random.Generator) -> Schedule:
        """A schedule at random.

        Each is as likely as the others, as long as constraints leave enough of them
        to find one by drawing; else it is put together value by value.
        """
        for _ in range(_MOST_DRAWS):
            values = {
                one.name: one.values[int(generator.integers(len(one.values)))]
                for one in self.parameters
            }
            if self.broken(values) is None:
                return self._made(values)
        return next(
            self._from(
                {},
                lambda parameter: (
                    int(n) for n in generator.permutation(len(parameter.values))
                ),
            )
        )

    def from_places(self, places: Mapping[str, int]) -> Schedule | None:
        """The schedule whose values have these places; None where it is ruled out."""
        made = self._made(
            {one.name: one.values[places[one.name]] for one in self.parameters}
        )
        return None if self.broken(made) is not None else made

    def places(self, schedule: Schedule) -> dict[str, int]:
        """The place of each of its values among its parameter's."""
        return {
            one.name: one.values.index(schedule[one.name]) for one in self.parameters
        }

    # Within

    def _made(self, values: Mapping[str, Value]) -> Schedule:
        # The parameter's own value: 1 and True, or 2 and 2.0, are equal.
        return Schedule(
            tuple(
                (one.name, one.values[one.values.index(values[one.name])])
                for one in self.parameters
            )
        )

    def _from(
        self,
        chosen: dict[str, Any],
        order: Callable[[SearchParameter], Iterable[int]],
    ) -> Iterator[Schedule]:
        depth = len(chosen)
        if depth == len(self.parameters):
            yield Schedule(tuple(chosen.items()))
            return
        parameter = self.parameters[depth]
        for place in order(parameter):
            chosen[parameter.name] = parameter.values[place]
            if all(one.holds(chosen) for one in self._decided[depth]):
                yield from self._from(dict(chosen), order)
