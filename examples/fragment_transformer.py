"""A transformer block: written for numpy, compiled for a device, compared.

python examples/fragment_transformer.py [cuda]
"""

import sys
from typing import Any

import anyio
import numpy as np

from accy_async import open_session
from accy_async.compiler import tensor

Array = Any  # numpy's, or what is traced in its place

TOKENS, WIDTH, HEADS = 16, 32, 4


def attention(x: Array, weights: Array) -> Array:
    """Each token looks at itself and those before it."""
    query, key, value = (
        (x @ weights[name]).reshape(TOKENS, HEADS, WIDTH // HEADS).transpose(1, 0, 2)
        for name in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(-1, -2) / float(np.sqrt(WIDTH // HEADS))
    allowed = np.arange(TOKENS)[:, None] >= np.arange(TOKENS)
    mixed = tensor.softmax(np.where(allowed, scores, -1e30)) @ value
    return mixed.transpose(1, 0, 2).reshape(TOKENS, WIDTH) @ weights["out"]


def block(x: Array, weights: Array) -> Array:
    """Attention, then a network of two layers; each is added to what it is given."""
    x = x + attention(tensor.rms_norm(x, weights["norm1"]), weights)
    hidden = tensor.gelu(tensor.layer_norm(x, weights["norm2"]) @ weights["up"])
    return x + hidden @ weights["down"]


def random_weights(rng: np.random.Generator) -> dict[str, Array]:
    shapes = dict.fromkeys(("query", "key", "value", "out"), (WIDTH, WIDTH))
    shapes |= {"up": (WIDTH, 4 * WIDTH), "down": (4 * WIDTH, WIDTH)}
    weights = {
        name: rng.standard_normal(shape, np.float32) / np.float32(np.sqrt(shape[0]))
        for name, shape in shapes.items()
    }
    return weights | {name: np.ones(WIDTH, np.float32) for name in ("norm1", "norm2")}


async def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal((TOKENS, WIDTH), np.float32), random_weights(rng)
    async with (
        open_session(device) as session,
        await session.load_fragment(block, x, weights) as fragment,
    ):
        # Weights go to the device once, and stay for all calls.
        there = {name: await session.upload(one) for name, one in weights.items()}
        y = await session.download(await fragment(await session.upload(x), there))
        right = np.allclose(y, block(x, weights), atol=1e-4)
        print(f"{'right' if right else 'wrong'}: {fragment.kernel_count} kernels")


anyio.run(main)
