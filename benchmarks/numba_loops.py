"""The loops of `fragments` in Numba, as one would write them by hand."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any

import numpy as np

__all__ = ["loops"]

Array = np.ndarray[Any, Any]


def chain(a: Array, b: Array) -> Array:
    out = np.empty_like(a)
    for i in range(a.size):
        out[i] = math.sqrt(abs((a[i] + b[i]) * (a[i] - b[i])))
    return out


def exp(a: Array) -> Array:
    out = np.empty_like(a)
    for i in range(a.size):
        out[i] = math.exp(a[i])
    return out


def total(a: Array) -> np.generic:
    found = np.float32(0)
    for i in range(a.size):
        found += a[i]
    return found


def row_sums(a: Array) -> Array:
    out = np.zeros(a.shape[0], np.float32)
    for i in range(a.shape[0]):
        found = np.float32(0)
        for j in range(a.shape[1]):
            found += a[i, j]
        out[i] = found
    return out


def column_sums(a: Array) -> Array:
    out = np.zeros(a.shape[1], np.float32)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            out[j] += a[i, j]
    return out


def softmax(a: Array) -> Array:
    out = np.empty_like(a)
    for i in range(a.shape[0]):
        most = a[i, 0]
        for j in range(1, a.shape[1]):
            most = max(most, a[i, j])
        found = np.float32(0)
        for j in range(a.shape[1]):
            out[i, j] = math.exp(a[i, j] - most)
            found += out[i, j]
        for j in range(a.shape[1]):
            out[i, j] /= found
    return out


def layer_norm(a: Array) -> Array:
    out, count = np.empty_like(a), np.float32(a.shape[1])
    for i in range(a.shape[0]):
        found = np.float32(0)
        for j in range(a.shape[1]):
            found += a[i, j]
        mean, squares = found / count, np.float32(0)
        for j in range(a.shape[1]):
            squares += (a[i, j] - mean) * (a[i, j] - mean)
        root = np.float32(math.sqrt(squares / count + np.float32(1e-5)))
        for j in range(a.shape[1]):
            out[i, j] = (a[i, j] - mean) / root
    return out


def cumulative(a: Array) -> Array:
    out, found = np.empty_like(a), np.float32(0)
    for i in range(a.size):
        found += a[i]
        out[i] = found
    return out


_BY_NAME: dict[str, Callable[..., Any]] = {
    function.__name__: function
    for function in (
        *(chain, exp, total, row_sums, column_sums),
        *(softmax, layer_norm, cumulative),
    )
}


def loops(name: str) -> dict[str, Callable[..., Any]]:
    """The loop of that name, compiled on its first call; none without Numba."""
    if not name:
        return {}
    try:
        njit = importlib.import_module("numba").njit
    except ImportError:
        return {}
    function = _BY_NAME[name]
    return {"numba": njit(function), "numba fast": njit(function, fastmath=True)}
