"""Training a small network on Fisher's irises: each step is one call, the weights stay.

python examples/fragment_training.py [cuda]
"""

import sys
from pathlib import Path
from typing import Any

import anyio
import numpy as np

from accy_async import open_session
from accy_async.compiler import tensor

Array = Any  # numpy's, or what is traced in its place

IRIS = Path(__file__).parent / "data" / "iris.csv"
CLASSES, HIDDEN, STEPS, HELD_BACK = 3, 16, 200, 50


def logits(weights: Array, x: Array) -> tuple[Array, Array]:
    """The hidden layer, and what it says of each class."""
    hidden = np.tanh(x @ weights["w1"] + weights["b1"])
    return hidden, hidden @ weights["w2"] + weights["b2"]


def step(weights: Array, x: Array, labels: Array, rate: float = 0.3) -> Array:
    """One step of gradient descent on the mean cross entropy; gradients by hand."""
    hidden, said = logits(weights, x)
    loss = np.mean(tensor.row_sparse_cross_entropy(said, labels))
    wrong = tensor.softmax(said) - tensor.one_hot(labels, CLASSES, said.dtype)
    wrong = wrong / x.shape[0]
    back = (wrong @ weights["w2"].T) * (1 - hidden**2)
    gradients = {
        "w1": x.T @ back,
        "b1": np.sum(back, axis=0),
        "w2": hidden.T @ wrong,
        "b2": np.sum(wrong, axis=0),
    }
    return loss, {name: weights[name] - rate * gradients[name] for name in gradients}


def accuracy(weights: Array, x: Array, labels: Array) -> Array:
    """The share of the rows of which the right class is said."""
    right = np.argmax(logits(weights, x)[1], axis=-1) == labels
    return np.mean(right.astype(np.float32))


def irises(rng: np.random.Generator) -> list[tuple[Array, Array]]:
    """Flowers to learn from and flowers held back, in units of the former's spread."""
    table = np.loadtxt(IRIS, str, delimiter=",", skiprows=1)
    table = table[rng.permutation(len(table))]
    x = table[:, :4].astype(np.float32)
    _, species = np.unique(table[:, 4], return_inverse=True)
    seen = x[HELD_BACK:]
    x, labels = (x - seen.mean(axis=0)) / seen.std(axis=0), species.astype(np.int32)
    return [(x[rows], labels[rows]) for rows in (np.s_[HELD_BACK:], np.s_[:HELD_BACK])]


async def main() -> None:
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    rng = np.random.default_rng(0)
    seen, unseen = irises(rng)
    start = {
        "w1": rng.normal(0, 0.5, (4, HIDDEN)).astype(np.float32),
        "b1": np.zeros(HIDDEN, np.float32),
        "w2": rng.normal(0, 0.3, (HIDDEN, CLASSES)).astype(np.float32),
        "b2": np.zeros(CLASSES, np.float32),
    }
    async with (
        open_session(device) as session,
        await session.load_fragment(step) as train,
        await session.load_fragment(accuracy) as judge,
    ):
        weights = {name: await session.upload(one) for name, one in start.items()}
        there = [await session.upload(array) for array in seen]
        expected, losses, numpys = start, [], []
        for _ in range(STEPS):
            loss, weights = await train(weights, *there)
            losses.append(float((await session.download(loss)).item()))
            loss, expected = step(expected, *seen)
            numpys.append(float(loss))
        shares = [
            float((await session.download(await judge(weights, *one))).item())
            for one in (seen, unseen)
        ]
        off = np.abs(np.subtract(losses, numpys))
        assert min(shares) > 0.9, f"learnt badly: {shares}"
        print(f"first loss as numpy's: {off[0] < 1e-5}")
        print(f"losses of {STEPS} steps as numpy's: {off.max() < 1e-4}")
        print(f"loss {losses[0]:.2f} -> {losses[-1]:.2f}, {shares[0]:.0%} right")
        print(f"of {HELD_BACK} flowers never seen, {shares[1]:.0%} right")


anyio.run(main)
