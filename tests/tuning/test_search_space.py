"""Spaces of schedules: what is in them, what is ruled out, and limits of devices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.backends.recording import RecordingBackend
from accy_async.errors import InvalidType, InvalidValue
from accy_async.tuning.search import (
    Constraint,
    Schedule,
    SearchParameter,
    SearchSpace,
    resource_limits,
)

SPACE = SearchSpace(
    {"tile": (16, 32, 64), "stages": (1, 2), "order": ("row", "column")},
    constraints=[lambda tile, stages: tile * stages <= 64],
)


def test_schedules_are_what_constraints_leave_the_last_parameter_changing_first() -> (
    None
):
    names = [str(one) for one in SPACE.schedules()]
    assert names[:3] == [
        "tile=16 stages=1 order=row",
        "tile=16 stages=1 order=column",
        "tile=16 stages=2 order=row",
    ]
    assert len(names) == 10
    assert SPACE.combinations == 12


def test_a_schedule_is_a_mapping_and_can_be_a_key() -> None:
    one = SPACE.schedule(order="row", tile=32, stages=2)
    assert dict(one) == {"tile": 32, "stages": 2, "order": "row"}
    assert list(one) == ["tile", "stages", "order"]
    assert {one: 1}[SPACE.schedule(tile=32, stages=2, order="row")] == 1
    assert one in SPACE
    assert Schedule((("tile", 64), ("stages", 2), ("order", "row"))) not in SPACE
    assert Schedule((("tile", 32),)) not in SPACE
    with pytest.raises(KeyError):
        one["width"]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"tile": 64, "stages": 2, "order": "row"}, "on tile, stages"),
        ({"tile": 65, "stages": 2, "order": "row"}, "one of 16, 32, 64"),
        ({"tile": 64, "order": "row"}, "stages"),
        ({"tile": 16, "stages": 1, "order": "row", "width": 1}, "width"),
    ],
)
def test_what_is_no_schedule_is_refused_by_name(values: dict, words: str) -> None:
    with pytest.raises(InvalidValue, match=words):
        SPACE.schedule(**values)


@pytest.mark.parametrize(
    ("parameters", "constraints", "words"),
    [
        ({}, (), "at least one parameter"),
        ({"tile": ()}, (), "at least one value"),
        ({"tile": (1, 1)}, (), "values that differ"),
        ({"tile": (1.5, float("nan"))}, (), "finite"),
        ({"tile": (None,)}, (), "numbers, strings"),
        ({"two words": (1,)}, (), "identifier"),
        ({"tile": (1,)}, [lambda width: width > 1], "one of tile"),
        ({"tile": (1,)}, [lambda *tiles: tiles], "names what it takes"),
        ({"tile": (1,)}, [3], "a function"),
        ({"tile": (1,)}, [lambda tile: tile > 1], "at least one schedule"),
        ({"tile": (1,)}, [lambda tile: 1 / (tile - 1)], "an answer"),
    ],
)
def test_spaces_that_make_no_sense_are_refused(
    parameters: dict, constraints: list, words: str
) -> None:
    with pytest.raises(InvalidValue, match=words):
        SearchSpace(parameters, constraints)


def test_two_parameters_of_one_name_are_refused() -> None:
    one = SearchParameter("tile", (1,))
    with pytest.raises(InvalidValue, match="names of their own"):
        SearchSpace([one, one])


def test_constraints_are_asked_as_soon_as_they_can_be() -> None:
    asked = []

    def first(a: int) -> bool:
        asked.append(a)
        return a == 1

    space = SearchSpace({"a": (1, 2, 3), "b": tuple(range(100))}, [first])
    asked.clear()
    assert sum(1 for _ in space.schedules()) == 100
    assert asked == [1, 2, 3]


def test_draws_are_of_the_space_and_even() -> None:
    generator = np.random.default_rng(1)
    drawn = [SPACE.draw(generator) for _ in range(2000)]
    counts = {one: drawn.count(one) for one in SPACE.schedules()}
    assert sum(counts.values()) == 2000
    assert min(counts.values()) > 140


def test_a_needle_is_found_value_by_value() -> None:
    space = SearchSpace(
        {name: tuple(range(20)) for name in "abcd"},
        [lambda a: a == 7, lambda b: b == 3, lambda a, c: c == a, lambda d: d == 0],
    )
    assert str(space.draw(np.random.default_rng(0))) == "a=7 b=3 c=7 d=0"


@given(st.integers(0, 2**32))
@settings(max_examples=20, deadline=None)
def test_places_and_values_belong_together(seed: int) -> None:
    one = SPACE.draw(np.random.default_rng(seed))
    assert SPACE.from_places(SPACE.places(one)) == one
    assert SPACE.from_places({"tile": 2, "stages": 1, "order": 0}) is None


def test_numbers_in_order_are_ordered_and_names_are_not() -> None:
    assert SearchParameter("a", (1, 2.5, 8)).is_ordered
    assert SearchParameter("a", (8, 4, 2)).is_ordered
    assert not SearchParameter("a", (1, 4, 2)).is_ordered
    assert not SearchParameter("a", (False, True)).is_ordered
    assert not SearchParameter("a", ("x", "y")).is_ordered
    assert not SearchParameter("a", ((1, 2), (2, 4))).is_ordered


def test_a_device_limits_threads_and_shared_memory() -> None:
    capabilities = RecordingBackend().capabilities
    limits = resource_limits(
        capabilities,
        threadgroup=lambda tile, width: (tile, tile // width),
        shared_memory_bytes=lambda tile, stages: 4 * tile * tile * stages,
    )
    space = SearchSpace(
        {"tile": (16, 32, 64), "stages": (1, 2, 4), "width": (1, 2, 128)}, limits
    )
    most = capabilities.max_threads_per_block
    room = capabilities.max_shared_memory_bytes
    expected = [
        (tile, stages, width)
        for tile in (16, 32, 64)
        for stages in (1, 2, 4)
        for width in (1, 2, 128)
        if 0 < tile * (tile // width) <= most and 4 * tile * tile * stages <= room
    ]
    assert [tuple(one.values()) for one in space.schedules()] == expected
    with pytest.raises(InvalidValue, match=f"at most {most} threads"):
        space.schedule(tile=64, stages=1, width=1)
    with pytest.raises(InvalidValue, match="bytes of shared memory"):
        SearchSpace(
            {"size": (1 << 30,)},
            resource_limits(capabilities, shared_memory_bytes=lambda size: size),
        )
    with pytest.raises(InvalidType):
        resource_limits(capabilities, threadgroup=3)  # type: ignore[arg-type]


def test_a_constraint_says_what_it_demands() -> None:
    def fits(tile: int) -> bool:
        return tile > 0

    assert str(Constraint(fits)) == "fits"
    assert str(Constraint(fits, "a tile")) == "a tile"
    assert str(Constraint(lambda a, b: a < b)) == "on a, b"
