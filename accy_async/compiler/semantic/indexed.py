"""The builder's methods that read and write at computed places."""

from __future__ import annotations

from accy_async.compiler.semantic.indexing import Gather, Scatter
from accy_async.compiler.semantic.kinds import ScatterKind
from accy_async.compiler.semantic.recorder import Recorder
from accy_async.compiler.semantic.types import Value

__all__ = ["IndexingMethods"]


class IndexingMethods(Recorder):
    """Gather and scatter along one axis; see `indexing` for indices outside it."""

    def gather(self, operand: Value, indices: Value, axis: int = 0) -> Value:
        """The elements at the indices, whose axes replace the axis."""
        return self.record_one(Gather(axis), operand, indices)

    def scatter(
        self, operand: Value, indices: Value, updates: Value, axis: int = 0
    ) -> Value:
        """The operand with the updates put at the indices."""
        return self.record_one(
            Scatter(ScatterKind.SET, axis), operand, indices, updates
        )

    def scatter_add(
        self, operand: Value, indices: Value, updates: Value, axis: int = 0
    ) -> Value:
        """The operand with the updates added at the indices."""
        return self.record_one(
            Scatter(ScatterKind.ADD, axis), operand, indices, updates
        )
