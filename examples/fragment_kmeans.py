"""k-means: points to their nearest centres, until no centre moves any more.

python examples/fragment_kmeans.py [cuda]
"""

import sys
from typing import Any

import anyio
import numpy as np

from accy_async import open_session
from accy_async.compiler import tensor

Array = Any  # numpy's, or what is traced in its place


def step(points: Array, centres: Array) -> Array:
    """Each point to its nearest centre, each centre to the mean of its points."""
    apart = points[:, None, :] - centres[None, :, :]
    nearest = np.argmin(np.sum(apart * apart, axis=-1), axis=1)
    count = centres.shape[0]
    totals = tensor.segment_sum(points, nearest, count)
    sizes = tensor.segment_sum(np.ones_like(points[:, 0]), nearest, count)
    moved = totals / np.maximum(sizes, 1)[:, None]
    moved = np.where(sizes[:, None] > 0, moved, centres)
    return moved, np.max(np.abs(moved - centres)), sizes


async def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rng = np.random.default_rng(1)
    homes = np.array([(0, 0), (4, 0), (0, 4), (4, 4)], np.float32)
    points = np.repeat(homes, 250, axis=0) + rng.normal(0, 0.5, (1000, 2))
    async with (
        open_session(device) as session,
        await session.load_fragment(step) as move,
    ):
        there = await session.upload(points.astype(np.float32))
        centres = await session.upload(homes + np.float32(1))
        steps, way = 0, 1.0
        while way > 1e-4:
            centres, moved, sizes = await move(there, centres)
            steps += 1
            # The only thing that is looked at in each step is one number.
            way = float((await session.download(moved)).item())
        found: Array = await session.download(centres)
        off = np.abs(found - homes).max()
        counts = (await session.download(sizes)).astype(int).tolist()
        print(f"after {steps} steps: {counts} points, centres off by {off:.2f} at most")


anyio.run(main)
