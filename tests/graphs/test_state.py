"""The deciding part: every transition there is, no other."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.graph.state import BlockState, IllegalTransition, ItemState

BLOCKED, READY, STARTED, ENDED, SKIPPED = ItemState


def item_in(state: ItemState, *, is_host: bool) -> BlockState:
    """A block whose item 1 stands there; item 0 is before it, item 2 behind it."""
    block = BlockState(
        rank=[0, 1, 2],
        preds=[(), (0,), (1,)],
        succs=[(1,), (2,), ()],
        is_host=[False, is_host, False],
    )
    if state is SKIPPED:
        block.cancel()
    if state in (READY, STARTED, ENDED):
        assert block.take() == 0
        block.submitted(0)
    if state in (STARTED, ENDED):
        assert block.take() == 1
    if state is ENDED:
        (block.ended if is_host else block.submitted)(1)
    assert block.states[1] is state
    return block


TABLE: dict[str, dict[tuple[ItemState, bool], ItemState]] = {
    "submitted": {(STARTED, False): ENDED},
    "ended": {(STARTED, True): ENDED},
    "failed": {
        (STARTED, False): ENDED,
        (STARTED, True): ENDED,
        (ENDED, False): ENDED,
        (ENDED, True): ENDED,
    },
}


def insides(block: BlockState) -> dict[str, object]:
    return {name: copy.deepcopy(getattr(block, name)) for name in BlockState.__slots__}


@pytest.mark.parametrize("is_host", [False, True])
@pytest.mark.parametrize("state", ItemState)
@pytest.mark.parametrize("told", TABLE)
def test_each_transition_is_the_tables(
    told: str, state: ItemState, *, is_host: bool
) -> None:
    """What the table has happens; all else raises and changes nothing at all."""
    block = item_in(state, is_host=is_host)
    before = insides(block)
    tell: Callable[[int], object] = getattr(block, told)
    after = TABLE[told].get((state, is_host))
    if after is None:
        with pytest.raises(IllegalTransition, match="item 1"):
            tell(1)
        assert insides(block) == before
    else:
        tell(1)
        assert block.states[1] is after


@pytest.mark.parametrize("is_host", [False, True])
@pytest.mark.parametrize("state", ItemState)
def test_cancelling_skips_what_has_not_started(
    state: ItemState, *, is_host: bool
) -> None:
    """Blocked and ready items are skipped, others stay; a second time is nothing."""
    block = item_in(state, is_host=is_host)
    skipped = block.cancel()
    assert (1 in skipped) == (state in (BLOCKED, READY))
    assert block.states[1] is (SKIPPED if state in (BLOCKED, READY) else state)
    before = insides(block)
    assert block.cancel() == []
    assert insides(block) == before
    assert block.take() is None


@pytest.mark.parametrize("is_host", [False, True])
def test_what_is_behind_a_failure_is_skipped(*, is_host: bool) -> None:
    """All of it, once; what is beside goes on."""
    block = BlockState(
        rank=[0, 1, 2, 3],
        preds=[(), (0,), (1,), ()],
        succs=[(1,), (2,), (), ()],
        is_host=[is_host, False, True, False],
    )
    assert block.take() == 0
    assert sorted(block.failed(0)) == [1, 2]
    assert block.failed(0) == []
    assert block.take() == 3
    block.submitted(3)
    assert block.is_done


@st.composite
def blocks(draw: st.DrawFn) -> tuple[list[tuple[int, ...]], list[bool], list[int]]:
    count = draw(st.integers(1, 12))
    preds = [
        tuple(sorted(draw(st.sets(st.integers(0, item - 1), max_size=3))))
        if item
        else ()
        for item in range(count)
    ]
    hosts = draw(st.lists(st.booleans(), min_size=count, max_size=count))
    rank = draw(st.permutations(range(count)))
    return preds, hosts, list(rank)


@settings(max_examples=500, deadline=None)
@given(drawn=blocks(), seed=st.integers(0, 2**32 - 1))
def test_every_order_of_answers_starts_all_items_in_a_right_order(
    drawn: tuple[list[tuple[int, ...]], list[bool], list[int]], seed: int
) -> None:
    """However host items end: none starts before those before it were released, the
    most urgent of the ready goes first, and in the end all have ended.
    """  # noqa: D205 - one promise, in one sentence
    preds, hosts, rank = drawn
    succs = [
        tuple(i for i, before in enumerate(preds) if item in before)
        for item in range(len(preds))
    ]
    block = BlockState(rank, preds, succs, hosts)
    draw = random.Random(seed)
    running: list[int] = []
    released: set[int] = set()
    while not block.is_done:
        ready = [i for i, state in enumerate(block.states) if state is READY]
        assert block.has_ready == bool(ready)
        if ready and (not running or draw.random() < 0.7):
            item = block.take()
            assert item == min(ready, key=rank.__getitem__)
            assert item is not None
            assert set(preds[item]) <= released
            if hosts[item]:
                running.append(item)
            else:
                block.submitted(item)
                released.add(item)
        else:
            ended = running.pop(draw.randrange(len(running)))
            block.ended(ended)
            released.add(ended)
    assert block.states == [ENDED] * len(preds)
    assert not running
