"""Loops with ``max_iterations``, and what is left out where one of them reaches it.

Pure. Such a loop fails where its condition still holds after that many iterations, and
what depends on it is skipped. The device decides that itself: the loop leaves a
*verdict*, a word that is not zero where it failed, and what comes after the very same
loops is a *branch*, a body of its own that runs unless one of their verdicts says so.
What depends on none of them is as it was, and each verdict is copied to the host, which
tells it.

Branches never wait for each other in a circle: what comes after an item of one comes
after no fewer loops.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.graph.lowering.outlinenode import OutlineNode

__all__ = ["Limited", "with_branches"]

_Loops = frozenset[int]
"""Loops with a limit that a node comes after, by their places."""


@attrs.frozen(eq=False)
class Limited:
    """A body with its branches.

    Attributes:
        body: its nodes.
        places: of each node before, the place of what it is, or is in, now.
        after_limits: the places before of loops with limits and what depends on them.
    """

    body: tuple[OutlineNode, ...]
    places: tuple[int, ...]
    after_limits: frozenset[int]


def with_branches(nodes: Sequence[OutlineNode]) -> Limited:
    """A plan's nodes, with those in branches that come after loops with limits."""
    before = _loops_before(nodes)
    if not any(node.limit is not None for node in nodes):
        return Limited(tuple(nodes), tuple(range(len(nodes))), frozenset())
    members: dict[_Loops, list[int]] = {}
    for place, loops in enumerate(before):
        if loops:
            members.setdefault(loops, []).append(place)
    body: list[OutlineNode] = []
    places = [-1] * len(nodes)
    for group in _in_order(nodes, before, members):
        first, mine = nodes[group[0]], set(group)
        outer = (p for at in group for p in nodes[at].after if p not in mine)
        after = tuple(dict.fromkeys(places[p] for p in outer))
        place = len(body)
        if loops := before[group[0]]:
            unless = tuple(nodes[p].index for p in sorted(loops))
            branch = _told(nodes, group)
            body.append(
                OutlineNode(
                    first.index, after, first.where, branch=branch, unless=unless
                )
            )
        else:  # one by itself
            body.append(attrs.evolve(first, after=after))
            if first.limit is not None:
                body.append(_tells(first, place))
        for at in group:
            places[at] = place
    limited = {at for at, node in enumerate(nodes) if before[at] or node.limit}
    return Limited(tuple(body), tuple(places), frozenset(limited))


def _loops_before(nodes: Sequence[OutlineNode]) -> list[_Loops]:
    """The loops with limits that each node comes after."""
    found: list[_Loops] = []
    for node in nodes:
        loops: set[int] = set()
        for place in node.after:
            loops |= found[place]
            if nodes[place].limit is not None:
                loops.add(place)
        found.append(frozenset(loops))
    return found


def _in_order(
    nodes: Sequence[OutlineNode],
    before: Sequence[_Loops],
    members: dict[_Loops, list[int]],
) -> list[list[int]]:
    """The nodes in no branch, one by one, and branches, each after what it needs."""
    groups = [*members.values(), *([p] for p, loops in enumerate(before) if not loops)]
    group_of = {place: number for number, group in enumerate(groups) for place in group}
    needs = [
        {group_of[p] for place in group for p in nodes[place].after} - {number}
        for number, group in enumerate(groups)
    ]
    ordered: list[list[int]] = []
    done: set[int] = set()
    # As the nodes were, as far as that can be: by what each group begins with.
    todo = sorted(range(len(groups)), key=lambda number: groups[number][0])
    while todo:
        ready = next(number for number in todo if needs[number] <= done)
        todo.remove(ready)
        done.add(ready)
        ordered.append(groups[ready])
    return ordered


def _told(
    nodes: Sequence[OutlineNode], group: Sequence[int]
) -> tuple[OutlineNode, ...]:
    """The nodes of a branch, each after those of its own alone."""
    body: list[OutlineNode] = []
    places: dict[int, int] = {}
    for at in group:
        after = tuple(places[p] for p in nodes[at].after if p in places)
        places[at] = len(body)
        body.append(attrs.evolve(nodes[at], after=after))
        if nodes[at].limit is not None:
            body.append(_tells(nodes[at], places[at]))
    return tuple(body)


def _tells(loop: OutlineNode, place: int) -> OutlineNode:
    """What copies a loop's verdict to the host."""
    return OutlineNode(loop.index, (place,), loop.where, tells=True)
