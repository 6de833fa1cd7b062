"""What the library says of each kernel, besides the kernel itself."""

from __future__ import annotations

import attrs

from accy_async.compiler.form import Kernel
from accy_async.values import instances, integer, optional, text

__all__ = ["TILE", "LibraryKernel"]

TILE = 256
"""Threads of a block, and elements that one without more to say works on.

256, 512 and 1024 were measured on one Zen 4 core with 10M f32: addition ran the
same with all.
"""


@attrs.frozen
class LibraryKernel:
    """A kernel under the target name that pipelines know it by.

    Attributes:
        target: the name callers ask for.
        kernel: its code; its first scalar is the number of elements.
        elements_per_block: elements a block works on, so that the grid is
            ``ceil(count / elements_per_block)``; None where one block does all.
        tile_buffers: the buffers that hold one element for each tile rather than
            one for each element.
        tile: elements of a tile.
    """

    target: str = attrs.field(validator=text())
    kernel: Kernel = attrs.field(validator=instances(Kernel))
    elements_per_block: int | None = attrs.field(
        default=TILE, validator=optional(integer(1))
    )
    tile_buffers: frozenset[str] = frozenset()
    tile: int = attrs.field(default=TILE, validator=integer(1))
