"""The nodes of outlines; see `outline`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import attrs

__all__ = ["OutlineNode", "each_node"]


@attrs.frozen(eq=False)
class OutlineNode:
    """One node of an outline.

    Attributes:
        index: the plan's node, or its loop; a branch's is its first node's.
        after: the nodes of its body that it comes after, by their places.
        where: of each slot, the slot whose first memory it has here.
        turns: a loop's bodies, which take turns; empty for a node.
        count: how often a loop runs; None where its condition decides.
        conditions: of such a loop, for each turn the slot whose first memory holds its
            condition before that turn.
        exchanges: for each turn that the loop may end after, the slots whose first
            memories exchange their contents then, one pair after the other; shorter
            where none do after the last ones.
        limit: how many turns a loop that its condition ends may have; it leaves a
            verdict then.
        limits: the loops with limits that lie within a loop, by the plan's numbers: it
            ends after a turn in which one of them failed.
        branch: a body that runs unless the verdict of one of these loops says that it
            failed; empty for what is no branch.
        unless: the loops, by the plan's numbers.
        tells: whether it copies the verdict of the loop ``index`` to the host.
    """

    index: int
    after: tuple[int, ...]
    where: tuple[int, ...]
    turns: tuple[tuple[OutlineNode, ...], ...] = ()
    count: int | None = None
    conditions: tuple[int, ...] = ()
    exchanges: tuple[tuple[tuple[int, int], ...], ...] = ()
    limit: int | None = None
    limits: tuple[int, ...] = ()
    branch: tuple[OutlineNode, ...] = ()
    unless: tuple[int, ...] = ()
    tells: bool = False

    @property
    def may_fail(self) -> tuple[int, ...]:
        """The loops with limits that this one is or has within, by their numbers."""
        return self.limits if self.limit is None else (self.index, *self.limits)


def each_node(body: Sequence[OutlineNode]) -> Iterator[OutlineNode]:
    """The plan's nodes and loops of a body, those in branches for these."""
    for node in body:
        if node.branch:
            yield from each_node(node.branch)
        elif not node.tells:
            yield node
