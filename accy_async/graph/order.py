"""What comes before what: a graph as a tree of blocks of ordered items.

The nodes of a plan outside any loop make up its *top block*; each loop has a
block of its own, its body. A block's *items* are its nodes and the loops that
lie directly within it: seen from outside, a loop is one item, and an edge into
or out of its range is an edge of that item. So every edge belongs to exactly one
block, the innermost that holds both its ends, and each block is an ordinary
acyclic graph.

Everything here is plain lists of ints, because graphs have 100,000 nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from accy_async.errors import GraphError

__all__ = [
    "HOST",
    "LOOP",
    "MAX_LOOP_DEPTH",
    "NODE",
    "Block",
    "GraphOrder",
    "nest_loops",
]

NODE, HOST, LOOP = 0, 1, 2
"""The kinds of items: device work, a call on the host, a loop."""

MAX_LOOP_DEPTH = 64
"""How deep loops may nest: what runs or draws them goes down one level a loop."""


class Block:
    """The items of the top level or of one loop's body, and their order.

    Attributes:
        loop: the loop whose body it is; -1 for the top block.
        parent: the block that the loop is an item of; None for the top block.
        parent_item: which item of the parent it is.
        depth: how many loops it lies within.
        kinds: of each item, `NODE`, `HOST` or `LOOP`.
        indices: of each item, the index of its node or loop in the plan.
        bodies: the blocks of the items that are loops, by item.
        preds, succs: of each item, the items with an edge to it or from it.
        topological: the items, none before its predecessors.
        positions: where each item stands in ``topological``.
    """

    __slots__ = (
        "_chain_of",
        "bodies",
        "depth",
        "edges",
        "indices",
        "kinds",
        "loop",
        "parent",
        "parent_item",
        "positions",
        "preds",
        "succs",
        "topological",
    )

    def __init__(self, loop: int, parent: Block | None) -> None:
        self.loop = loop
        self.parent = parent
        self.parent_item = -1
        self.depth = 0
        if parent is not None:
            self.parent_item = len(parent.kinds)
            self.depth = parent.depth + 1
            parent.bodies[self.parent_item] = self
            parent.kinds.append(LOOP)
            parent.indices.append(loop)
        self.kinds: list[int] = []
        self.indices: list[int] = []
        self.bodies: dict[int, Block] = {}
        self.preds: Sequence[Sequence[int]] = ()
        self.succs: Sequence[Sequence[int]] = ()
        self.edges: set[int] = set()
        self.topological: Sequence[int] = ()
        self.positions: Sequence[int] = ()
        self._chain_of: list[int] | None = None

    def __len__(self) -> int:
        return len(self.kinds)

    def has_edge(self, before: int, after: int) -> bool:
        """True where the two items have an edge of their own."""
        return before * len(self.kinds) + after in self.edges

    def link(self, edges: Iterable[tuple[int, int]]) -> None:
        """Set the edges between items, each once, and sort the items by them.

        Edges that make a cycle leave its items, and all behind them, out of
        ``topological``.
        """
        count = len(self.kinds)
        seen = self.edges
        preds: list[list[int]] = [[] for _ in range(count)]
        succs: list[list[int]] = [[] for _ in range(count)]
        is_forward = True
        for before, after in edges:
            key = before * count + after
            if key in seen:
                continue
            seen.add(key)
            preds[after].append(before)
            succs[before].append(after)
            if before >= after:
                is_forward = False
        self.preds = tuple(map(tuple, preds))
        self.succs = tuple(map(tuple, succs))
        self.topological = range(count) if is_forward else self._sort()
        if is_forward:
            self.positions = self.topological
        else:
            positions = [count] * count
            for position, item in enumerate(self.topological):
                positions[item] = position
            self.positions = positions

    def _sort(self) -> list[int]:
        missing = [len(before) for before in self.preds]
        ready = [item for item, count in enumerate(missing) if not count]
        for item in ready:  # a queue, which grows as it is read
            for after in self.succs[item]:
                missing[after] -= 1
                if not missing[after]:
                    ready.append(after)
        return ready

    def cycle(self) -> list[int]:
        """Items in a circle, each before the next and the last before the first.

        Empty where there is none. Starts at the item that the plan has first.
        """
        if len(self.topological) == len(self.kinds):
            return []
        sorted_items = set(self.topological)
        item = next(i for i in range(len(self.kinds)) if i not in sorted_items)
        path: list[int] = []
        seen: dict[int, int] = {}
        while item not in seen:  # every item left has a predecessor that is left
            seen[item] = len(path)
            path.append(item)
            item = next(p for p in self.preds[item] if p not in sorted_items)
        circle = path[seen[item] :][::-1]
        start = circle.index(min(circle))
        return circle[start:] + circle[:start]

    def before(self, item: int, candidates: Iterable[int]) -> set[int]:
        """Those of the candidates that come before the item, whatever else runs.

        Looks at the item's own edges first; then walks back from it, no farther
        than the earliest candidate.
        """
        found = set()
        wanted = set()
        for candidate in candidates:
            if self.has_edge(candidate, item):
                found.add(candidate)
            elif self.positions[candidate] < self.positions[item]:
                wanted.add(candidate)
        if not wanted:
            return found
        positions, preds, chains = self.positions, self.preds, self._chains()
        by_chain: dict[int, list[int]] = {}
        for candidate in wanted:
            by_chain.setdefault(chains[candidate], []).append(candidate)
        earliest = min(positions[candidate] for candidate in wanted)
        seen = {item}
        stack = [item]
        while stack and by_chain:
            current = stack.pop()
            here = by_chain.get(chains[current])
            if here is not None:
                position = positions[current]
                found.update(c for c in here if positions[c] <= position)
                still = [c for c in here if positions[c] > position]
                if still:
                    by_chain[chains[current]] = still
                else:
                    del by_chain[chains[current]]
            for pred in preds[current]:
                if positions[pred] >= earliest and pred not in seen:
                    seen.add(pred)
                    stack.append(pred)
        return found

    def _chains(self) -> list[int]:
        """A chain for each item, so that a chain's items are a path of the graph.

        A search that meets a chain so knows at once all that is earlier in it.
        """
        if self._chain_of is None:
            chains = [-1] * len(self.kinds)
            is_last = [False] * len(self.kinds)
            count = 0
            for item in self.topological:
                for pred in self.preds[item]:
                    if is_last[pred]:
                        is_last[pred] = False
                        chains[item] = chains[pred]
                        break
                else:
                    chains[item] = count
                    count += 1
                is_last[item] = True
            self._chain_of = chains
        return self._chain_of


class GraphOrder:
    """The blocks of a plan, and where each node lies among them.

    Attributes:
        blocks: the top block, then the loops' in the order they begin, outer
            ones first; so a block comes before those within it.
        by_loop: each loop's block.
        block_of, item_of: of each node, its block and which item of it it is.
    """

    __slots__ = ("block_of", "blocks", "by_loop", "item_of")

    def __init__(
        self, is_host: Sequence[bool], ranges: Sequence[tuple[int, int]]
    ) -> None:
        """Make the blocks; ``ranges`` are the loops' first and last nodes."""
        top = Block(-1, None)
        self.blocks = [top]
        self.by_loop: dict[int, Block] = {}
        self.block_of: list[Block] = []
        self.item_of: list[int] = []
        waiting = sorted(
            range(len(ranges)), key=lambda k: (-ranges[k][0], ranges[k][1], -k)
        )
        current, open_ends = top, [len(is_host)]
        for node, host in enumerate(is_host):
            while open_ends[-1] < node:
                open_ends.pop()
                assert current.parent is not None
                current = current.parent
            while waiting and ranges[waiting[-1]][0] == node:
                loop = waiting.pop()
                current = self.by_loop[loop] = Block(loop, current)
                self.blocks.append(current)
                open_ends.append(ranges[loop][1])
            self.block_of.append(current)
            self.item_of.append(len(current.kinds))
            current.kinds.append(HOST if host else NODE)
            current.indices.append(node)

    @property
    def top(self) -> Block:
        """The block of what lies in no loop, and of the outermost loops."""
        return self.blocks[0]

    def place(self, before: int, after: int) -> tuple[Block, int, int]:
        """The innermost block that holds both nodes, and their items in it.

        The two items are the same where it is one node twice.
        """
        first, second = self.block_of[before], self.block_of[after]
        one, two = self.item_of[before], self.item_of[after]
        while first is not second:
            if first.depth >= second.depth and first.parent is not None:
                one, first = first.parent_item, first.parent
            elif second.parent is not None:
                two, second = second.parent_item, second.parent
        return first, one, two

    def link(self, edges: Iterable[tuple[int, int]]) -> None:
        """Give every block its edges, from edges between nodes."""
        by_block: dict[Block, list[tuple[int, int]]] = {b: [] for b in self.blocks}
        block_of, item_of = self.block_of, self.item_of
        top_edges = by_block[self.top] if len(self.blocks) == 1 else None
        if top_edges is not None:
            top_edges.extend(edges)
        else:
            for before, after in edges:
                block = block_of[before]
                if block is block_of[after]:
                    by_block[block].append((item_of[before], item_of[after]))
                else:
                    block, one, two = self.place(before, after)
                    by_block[block].append((one, two))
        for block, pairs in by_block.items():
            block.link(pairs)

    def precedes(self, before: int, after: int) -> bool:
        """True where the first node has finished before the second starts."""
        block, one, two = self.place(before, after)
        return one != two and one in block.before(two, (one,))

    def nodes_within(self, block: Block, item: int) -> Iterator[int]:
        """The nodes of an item: its own, or all in the loop."""
        stack = [(block, item)]
        while stack:
            where, which = stack.pop()
            body = where.bodies.get(which)
            if body is None:
                yield where.indices[which]
            else:
                stack.extend((body, inner) for inner in reversed(range(len(body))))


def nest_loops(names: Sequence[str], ranges: Sequence[tuple[int, int]]) -> None:
    """Check that every two loops lie apart or one within the other.

    Raises:
        GraphError: two ranges cross, or loops nest deeper than `MAX_LOOP_DEPTH`.
    """
    begun: list[int] = []
    for loop in sorted(
        range(len(ranges)), key=lambda k: (ranges[k][0], -ranges[k][1], k)
    ):
        first, last = ranges[loop]
        while begun and ranges[begun[-1]][1] < first:
            begun.pop()
        if begun and ranges[begun[-1]][1] < last:
            raise GraphError(
                f"loops {names[begun[-1]]!r} and {names[loop]!r} cross: they share "
                "some nodes, and each has some that the other has not; expected one "
                "within the other, or both apart"
            )
        begun.append(loop)
        if len(begun) > MAX_LOOP_DEPTH:
            raise GraphError(
                f"loop {names[loop]!r} lies within {MAX_LOOP_DEPTH} others, which is "
                "as deep as loops may nest"
            )
