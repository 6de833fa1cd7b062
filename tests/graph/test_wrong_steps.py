"""What is wrong with a step is refused where it is added, and the builder goes on."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from accy_async import DType
from accy_async.errors import AccyError, GraphError, InvalidType, InvalidValue
from accy_async.graph import GraphBuffer, LaunchGraphBuilder

Step = Callable[[LaunchGraphBuilder, GraphBuffer, Any], object]
NO_ITERABLES = (None, 1, 1.5, b"x", object(), np.int64(1))


def loop(g: LaunchGraphBuilder, x: GraphBuffer, **options: Any) -> None:
    with g.loop(**options):
        g.fill(x, 1.0)


def on(g: LaunchGraphBuilder, device: Any) -> None:
    with g.on(device):
        g.scratch("on", DType.F32, 4)


STEPS: dict[str, tuple[Step, tuple[object, ...]]] = {
    "reads": (lambda g, x, v: g.host_call(print, reads=v), (*NO_ITERABLES, "x", [1])),
    "writes": (lambda g, x, v: g.host_call(print, writes=v), (*NO_ITERABLES, [None])),
    "name": (lambda g, x, v: g.fill(x, 1.0, name=v), ([], 1, b"x", ())),
    "after": (lambda g, x, v: g.fill(x, 1.0, after=v), (*NO_ITERABLES, [1], [None])),
    "wait": (lambda g, x, v: g.fill(x, 1.0, wait=v), NO_ITERABLES),
    "external_event.name": (lambda g, x, v: g.external_event(v), (None, 1, [], b"x")),
    "loop.carries": (
        lambda g, x, v: loop(g, x, count=1, carries=v),
        (*NO_ITERABLES, [1], ["xy"], [(1, 2)]),
    ),
    "name of a loop": (lambda g, x, v: loop(g, x, count=1, name=v), ([], 1, b"x")),
    "on.device": (lambda g, x, v: on(g, v), (None, 1, b"cpu", [])),
}


@pytest.mark.parametrize("option", STEPS)
def test_what_is_of_another_type_is_refused_at_once(option: str) -> None:
    add, wrong = STEPS[option]
    g = LaunchGraphBuilder()
    x = g.scratch("x", DType.F32, 4)
    g.fill(x, 0.0)
    before = g.build()
    for value in wrong:
        with pytest.raises(InvalidType, match=option.partition(" ")[0]):
            add(g, x, value)
    assert g.build() == before


def test_what_names_nothing_is_refused_at_once() -> None:
    g = LaunchGraphBuilder()
    x = g.scratch("x", DType.F32, 4)
    added: list[Callable[[], object]] = [
        lambda: g.fill(x, 1.0, name=""),
        lambda: g.external_event(""),
        lambda: g.buffer("b", DType.F32, 4, device=""),
        lambda: g.scratch("b", DType.F32, 4, device=""),
        lambda: loop(g, x, count=1, carries=[(x,)]),
    ]
    for add in added:
        with pytest.raises(InvalidValue):
            add()


def test_a_step_that_is_refused_in_the_midst_leaves_no_edge_of_its_own() -> None:
    g = LaunchGraphBuilder()
    x = g.scratch("x", DType.F32, 4)
    first = g.fill(x, 0.0)

    def befores() -> Iterator[Any]:
        yield first
        raise GraphError("no more")

    with pytest.raises(GraphError, match="no more"):
        g.fill(x, 1.0, name="second", after=befores())
    assert [node.name for node in g.build().nodes] == [first.name]


def test_a_layout_on_no_number_of_streams_is_refused() -> None:
    g = LaunchGraphBuilder()
    g.fill(g.scratch("x", DType.F32, 4), 0.0)
    plan = g.build()
    for wrong in (None, 1.5, "2", True):
        with pytest.raises(InvalidType, match="max_streams"):
            plan.layout(wrong)  # type: ignore[arg-type]
    with pytest.raises(AccyError, match="max_streams"):
        plan.layout(0)
