"""Training a small network: each step is one call, and the weights stay on the device.

python examples/fragment_training.py [cuda]
"""

import sys
from typing import Any

import anyio
import numpy as np

from accy_async import open_session
from accy_async.compiler import tensor

Array = Any  # numpy's, or what is traced in its place

POINTS, CLASSES, HIDDEN, STEPS = 300, 3, 32, 200


def step(weights: Array, x: Array, labels: Array, rate: float = 0.5) -> Array:
    """One step of gradient descent on the mean cross entropy; gradients by hand."""
    hidden = np.tanh(x @ weights["w1"] + weights["b1"])
    logits = hidden @ weights["w2"] + weights["b2"]
    loss = np.mean(tensor.row_sparse_cross_entropy(logits, labels))
    hits = np.argmax(logits, axis=-1) == labels
    wrong = tensor.softmax(logits) - tensor.one_hot(labels, CLASSES, logits.dtype)
    wrong = wrong / x.shape[0]
    back = (wrong @ weights["w2"].T) * (1 - hidden**2)
    gradients = {
        "w1": x.T @ back,
        "b1": np.sum(back, axis=0),
        "w2": hidden.T @ wrong,
        "b2": np.sum(wrong, axis=0),
    }
    updated = {name: weights[name] - rate * gradients[name] for name in gradients}
    return loss, np.mean(hits.astype(np.float32)), updated


def spiral(rng: np.random.Generator) -> tuple[Array, Array]:
    """Points of three arms that wind around each other."""
    labels = np.repeat(np.arange(CLASSES, dtype=np.int32), POINTS // CLASSES)
    radius = np.tile(np.linspace(0.1, 1, POINTS // CLASSES), CLASSES)
    angle = labels * (2 * np.pi / CLASSES) + 3 * radius
    x = np.stack((radius * np.cos(angle), radius * np.sin(angle)), axis=1)
    return (x + rng.normal(0, 0.02, x.shape)).astype(np.float32), labels


async def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rng = np.random.default_rng(0)
    x, labels = spiral(rng)
    start = {
        "w1": rng.normal(0, 1, (2, HIDDEN)).astype(np.float32),
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": rng.normal(0, 0.3, (HIDDEN, CLASSES)).astype(np.float32),
        "b2": np.zeros(CLASSES, np.float32),
    }
    async with (
        open_session(device) as session,
        await session.load_fragment(step) as train,
    ):
        weights = {name: await session.upload(one) for name, one in start.items()}
        there, answers = await session.upload(x), await session.upload(labels)
        losses = []
        for _ in range(STEPS):
            loss, hits, weights = await train(weights, there, answers)
            losses.append(float((await session.download(loss)).item()))
        share = float((await session.download(hits)).item())
        expected, _, _ = step(start, x, labels)
        print(f"first loss as numpy's: {abs(losses[0] - float(expected)) < 1e-5}")
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, {share:.0%} right")


anyio.run(main)
