"""Whole programs, written once for numpy and traced unchanged."""

from __future__ import annotations

from typing import Any

import numpy as np

from accy_async.compiler import tensor

__all__ = ["attention", "kmeans_step", "mlp_step", "pagerank", "transformer_block"]


def attention(x: Any, weights: Any, heads: int) -> Any:
    """Causal self-attention of ``[tokens, width]``."""
    tokens, width = x.shape
    size = width // heads
    query, key, value = (
        (x @ weights[name]).reshape(tokens, heads, size).transpose(1, 0, 2)
        for name in ("query", "key", "value")
    )
    scores = query @ key.swapaxes(-1, -2) / float(np.sqrt(size))
    allowed = np.arange(tokens)[:, None] >= np.arange(tokens)
    scores = np.where(allowed, scores, -1e30)
    mixed = tensor.softmax(scores) @ value
    return mixed.transpose(1, 0, 2).reshape(tokens, width) @ weights["out"]


def transformer_block(x: Any, weights: Any, heads: int = 2) -> Any:
    """Attention and a two-layer network, each on normalised rows, each added."""
    x = x + attention(tensor.rms_norm(x, weights["norm1"]), weights, heads)
    hidden = tensor.gelu(tensor.layer_norm(x, weights["norm2"]) @ weights["up"])
    return x + hidden @ weights["down"]


def mlp_step(weights: Any, x: Any, labels: Any, rate: float = 0.1) -> Any:
    """One step of gradient descent on the mean cross entropy; gradients by hand."""
    hidden = np.tanh(x @ weights["w1"] + weights["b1"])
    logits = hidden @ weights["w2"] + weights["b2"]
    loss = np.mean(tensor.row_sparse_cross_entropy(logits, labels))
    wrong = tensor.softmax(logits) - tensor.one_hot(
        labels, logits.shape[-1], logits.dtype
    )
    wrong = wrong / x.shape[0]
    back = (wrong @ weights["w2"].T) * (1 - hidden**2)
    gradients = {
        "w1": x.T @ back,
        "b1": np.sum(back, axis=0),
        "w2": hidden.T @ wrong,
        "b2": np.sum(wrong, axis=0),
    }
    updated = {name: weights[name] - rate * gradients[name] for name in gradients}
    return loss, gradients, updated


def kmeans_step(points: Any, centres: Any) -> Any:
    """Each point to its nearest centre, each centre to the mean of its points."""
    apart = points[:, None, :] - centres[None, :, :]
    nearest = np.argmin(np.sum(apart * apart, axis=-1), axis=1)
    count = centres.shape[0]
    totals = tensor.segment_sum(points, nearest, count)
    sizes = tensor.segment_sum(np.ones_like(points[:, 0]), nearest, count)
    moved = totals / np.maximum(sizes, 1)[:, None]
    return np.where(sizes[:, None] > 0, moved, centres), nearest


def pagerank(sources: Any, targets: Any, pages: int, steps: int = 30) -> Any:
    """Ranks of a graph's pages after some steps, from the ends of its links."""
    links = np.ones_like(sources, dtype=np.float64)
    degree = tensor.segment_sum(links, sources, pages)

    def step(rank: Any) -> Any:
        flow = np.take(rank / np.maximum(degree, 1), sources)
        lost = np.sum(np.where(degree == 0, rank, 0))
        arrived = tensor.segment_sum(flow, targets, pages)
        return 0.15 / pages + 0.85 * (arrived + lost / pages)

    return tensor.repeat(steps, step, np.full(pages, 1 / pages))
