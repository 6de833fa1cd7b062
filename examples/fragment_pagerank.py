"""PageRank: the ranks of a graph's pages, in double precision, by one fragment.

python examples/fragment_pagerank.py [cuda]
"""

import sys
from typing import Any

import anyio
import numpy as np

from accy_async import open_session
from accy_async.compiler import tensor

Array = Any  # numpy's, or what is traced in its place

PAGES, LINKS, STEPS = 50, 200, 20


def pagerank(sources: Array, targets: Array) -> Array:
    """Ranks after some steps of a surfer, from the ends of the links."""
    links = np.ones_like(sources, dtype=np.float64)
    degree = tensor.segment_sum(links, sources, PAGES)

    def step(rank: Array) -> Array:
        flow = np.take(rank / np.maximum(degree, 1), sources)
        lost = np.sum(np.where(degree == 0, rank, 0))
        arrived = tensor.segment_sum(flow, targets, PAGES)
        return 0.15 / PAGES + 0.85 * (arrived + lost / PAGES)

    return tensor.repeat(STEPS, step, np.full(PAGES, 1 / PAGES))


def surfed(sources: Array, targets: Array) -> Array:
    """The same with a matrix, as a textbook has it."""
    matrix = np.zeros((PAGES, PAGES))
    np.add.at(matrix, (targets, sources), 1)
    degree = matrix.sum(axis=0)
    matrix = np.where(degree > 0, matrix / np.maximum(degree, 1), 1 / PAGES)
    rank = np.full(PAGES, 1 / PAGES)
    for _ in range(STEPS):
        rank = 0.15 / PAGES + 0.85 * matrix @ rank
    return rank


async def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rng = np.random.default_rng(0)
    sources = rng.integers(0, PAGES, LINKS).astype(np.int32)
    # Pages of low numbers are linked to most.
    targets = (PAGES * rng.random(LINKS) ** 3).astype(np.int32)
    async with (
        open_session(device) as session,
        await session.load_fragment(pagerank) as fragment,
    ):
        rank = await fragment(sources, targets)
        off = np.abs(rank - surfed(sources, targets)).max()
        (loaded,) = fragment.fragments
        print(f"page {rank.argmax()} comes first; all sum up to {rank.sum():.6f}")
        print(f"off by less than 1e-12: {off < 1e-12}; {loaded.kernel_count} kernels")


anyio.run(main)
