"""The metadata of a module: loops, and the accesses that are parallel in them.

Source: LLVM Language Reference, 'llvm.loop' and
'llvm.loop.parallel_accesses'.
"""

from __future__ import annotations

__all__ = ["Metadata"]


class Metadata:
    """Numbers the metadata nodes of one module; `text` defines them."""

    def __init__(self) -> None:
        self._nodes: list[str] = []
        self._progress = self._add('!{!"llvm.loop.mustprogress"}')

    def text(self) -> str:
        """The definitions of all nodes."""
        return "\n".join(f"!{i} = {node}" for i, node in enumerate(self._nodes))

    def access_group(self) -> str:
        """A group of memory accesses."""
        return self._add("distinct !{}")

    def loop(self) -> str:
        """A loop that ends."""
        own = f"!{len(self._nodes)}"
        return self._add(f"distinct !{{{own}, {self._progress}}}")

    def parallel_loop(self, group: str) -> str:
        """A loop whose rounds do not touch each other through the group."""
        parallel = self._add(f'!{{!"llvm.loop.parallel_accesses", {group}}}')
        own = f"!{len(self._nodes)}"
        return self._add(f"distinct !{{{own}, {parallel}, {self._progress}}}")

    def _add(self, node: str) -> str:
        self._nodes.append(node)
        return f"!{len(self._nodes) - 1}"
