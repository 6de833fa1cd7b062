"""Loops with ``max_iterations``, and what is left out where one of them reaches it.

Pure. Such a loop fails where its condition still holds after that many iterations, and
what depends on it is skipped. The device decides that itself: the loop leaves a
*verdict*, a word that is not zero where it failed, and what comes after the very same
loops is a *branch*, a body of its own that runs unless one of their verdicts says so.
What depends on none of them is as it was, and each verdict is copied to the host, which
tells it.

A loop around such a loop fails with it: a turn of it has branches of its own, it ends
with the turn in which one of the verdicts was left, and what comes after it is a branch
unless one was. The verdicts are told where the outermost loop has ended.

Branches never wait for each other in a circle: what comes after an item of one comes
after no fewer loops.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

from accy_async.graph.lowering.outlinenode import OutlineNode

__all__ = ["Limited", "Loops", "with_branches"]

Loops = frozenset[int]
"""Loops with limits that something comes after, by the plan's numbers."""


@attrs.frozen(eq=False)
class Limited:
    """A body with its branches.

    Attributes:
        body: its nodes.
        places: of each node before, the place of what it is, or is in, now.
        after_limits: the places before of what has limits or depends on such loops.
        limits: the loops with limits that are in it, however deep.
    """

    body: tuple[OutlineNode, ...]
    places: tuple[int, ...]
    after_limits: frozenset[int]
    limits: tuple[int, ...]

    def moved(self, ends: Sequence[Sequence[int]]) -> tuple[tuple[int, ...], ...]:
        """Where the nodes are now that items end with."""
        return tuple(
            tuple(dict.fromkeys(self.places[place] for place in mine)) for mine in ends
        )

    def items(self, ends: Sequence[Sequence[int]]) -> frozenset[int]:
        """The items, by the nodes that they end with, that a limit may concern."""
        return frozenset(
            item
            for item, mine in enumerate(ends)
            if not self.after_limits.isdisjoint(mine)
        )


def with_branches(
    nodes: Sequence[OutlineNode],
    given: Sequence[Loops] = (),
    *,
    is_told: bool = True,
) -> Limited:
    """A body's nodes, with those in branches that come after loops with limits.

    Args:
        nodes: the body's.
        given: of each node, the loops that it comes after which are elsewhere.
        is_told: whether their verdicts are copied to the host.
    """
    before = _loops_before(nodes, given)
    limits = tuple(dict.fromkeys(one for node in nodes for one in node.may_fail))
    if not limits and not any(before):
        return Limited(tuple(nodes), tuple(range(len(nodes))), frozenset(), ())
    members: dict[Loops, list[int]] = {}
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
            branch = _branch(nodes, group, is_told=is_told)
            unless = tuple(sorted(loops))
            body.append(
                OutlineNode(
                    first.index, after, first.where, branch=branch, unless=unless
                )
            )
        else:  # one by itself
            body.append(attrs.evolve(first, after=after))
            if is_told:
                body += _telling(first, place)
        for at in group:
            places[at] = place
    limited = {at for at, node in enumerate(nodes) if before[at] or node.may_fail}
    return Limited(tuple(body), tuple(places), frozenset(limited), limits)


def _loops_before(nodes: Sequence[OutlineNode], given: Sequence[Loops]) -> list[Loops]:
    """The loops with limits that each node comes after."""
    found: list[Loops] = []
    for at, node in enumerate(nodes):
        loops = set(given[at]) if given else set()
        for place in node.after:
            loops |= found[place]
            loops.update(nodes[place].may_fail)
        found.append(frozenset(loops))
    return found


def _in_order(
    nodes: Sequence[OutlineNode],
    before: Sequence[Loops],
    members: dict[Loops, list[int]],
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


def _branch(
    nodes: Sequence[OutlineNode], group: Sequence[int], *, is_told: bool
) -> tuple[OutlineNode, ...]:
    """The nodes of a branch, each after those of its own alone."""
    body: list[OutlineNode] = []
    places: dict[int, int] = {}
    for at in group:
        after = tuple(places[p] for p in nodes[at].after if p in places)
        places[at] = len(body)
        body.append(attrs.evolve(nodes[at], after=after))
        if is_told:
            body += _telling(nodes[at], places[at])
    return tuple(body)


def _telling(loop: OutlineNode, place: int) -> Iterator[OutlineNode]:
    """What copies verdicts to the host: a loop's own, and those of loops within."""
    for one in loop.may_fail:
        yield OutlineNode(one, (place,), loop.where, tells=True)
