"""A function of arrays, compiled for whatever device there is, and called.

The same source runs on a CPU and on a GPU: python examples/fragment_hello.py [cuda]
"""

import sys
from typing import Any

import anyio
import numpy as np

from accy_async import open_session

Array = Any  # numpy's, or what is traced in its place


def softmax(x: Array) -> Array:
    """Rows that sum up to 1, as numpy has it."""
    powers = np.exp(x - np.max(x, axis=-1, keepdims=True))
    return powers / np.sum(powers, axis=-1, keepdims=True)


async def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    x = np.random.default_rng(0).standard_normal((64, 1000), np.float32)
    async with (
        open_session(device) as session,
        await session.load_fragment(softmax) as fragment,
    ):
        # Compiled at the first call, for f32[64,1000]; later calls only run.
        y = await fragment(x)
        print(f"numpy in, numpy out: off by {np.abs(y - softmax(x)).max():.0e} at most")

        # Arrays of the device stay there, from one call to the next.
        once = await fragment(await session.upload(x))
        again = await session.download(await fragment(once))
        right = np.allclose(again, softmax(softmax(x)), atol=1e-6)
        print(f"twice on the device: {'right' if right else 'wrong'}")

        # As many calls at once as there are tasks.
        async with anyio.create_task_group() as tasks:
            for part in np.split(x, 8):
                tasks.start_soon(fragment, part)
        shapes = [str(one.plan.slots[0].shape) for one in fragment.fragments]
        print(f"compiled for {' and '.join(shapes)}")


anyio.run(main)
