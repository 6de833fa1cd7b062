"""The reference's rules for what makes and moves elements."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from accy_async.compiler.semantic.elementwise import Constant, Iota, Select
from accy_async.compiler.semantic.indexing import Gather, Scatter
from accy_async.compiler.semantic.kinds import ScatterKind
from accy_async.compiler.semantic.numbers import Array
from accy_async.compiler.semantic.reference_math import Case, Rule
from accy_async.compiler.semantic.shaping import (
    Broadcast,
    Concatenate,
    Pad,
    Reshape,
    Reverse,
    Slice,
    Transpose,
)

__all__ = ["SHAPE"]


def _constant(case: Case[Constant]) -> Array:
    return case.op.to_numpy()


def _iota(case: Case[Iota]) -> Array:
    extent = case.op.type.shape[case.op.axis]
    column = [1] * case.op.type.rank
    column[case.op.axis] = extent
    return np.broadcast_to(np.arange(extent).reshape(column), case.op.type.shape)


def _select(case: Case[Select]) -> Array:
    return np.where(*case.operands)


def _broadcast(case: Case[Broadcast]) -> Array:
    shape = [1] * len(case.op.shape)
    for axis, target in enumerate(case.op.axes):
        shape[target] = case.operands[0].shape[axis]
    return np.broadcast_to(case.operands[0].reshape(shape), case.op.shape)


def _reshape(case: Case[Reshape]) -> Array:
    return case.operands[0].reshape(case.op.shape)


def _transpose(case: Case[Transpose]) -> Array:
    return case.operands[0].transpose(case.op.permutation)


def _slice(case: Case[Slice]) -> Array:
    spans = zip(case.op.starts, case.op.limits, case.op.strides, strict=True)
    return case.operands[0][tuple(slice(*span) for span in spans)]


def _concatenate(case: Case[Concatenate]) -> Array:
    return np.concatenate(case.operands, axis=case.op.axis)


def _pad(case: Case[Pad]) -> Array:
    padded = np.full(case.entry.result.shape, case.operands[1], case.operands[0].dtype)
    inside = tuple(
        slice(low, low + extent)
        for low, extent in zip(case.op.low, case.operands[0].shape, strict=True)
    )
    padded[inside] = case.operands[0]
    return padded


def _reverse(case: Case[Reverse]) -> Array:
    return np.flip(case.operands[0], case.op.axes)


def _gather(case: Case[Gather]) -> Array:
    x, indices = case.operands
    if not indices.size:
        return np.zeros(case.entry.result.shape, x.dtype)
    last = x.shape[case.op.axis] - 1
    # Through Python's integers: a u64 may be more than an index of numpy holds.
    nearest = np.asarray(np.clip(indices.astype(object), 0, last), np.int64)
    return np.asarray(np.take(x, nearest, case.op.axis))


def _scatter(case: Case[Scatter]) -> Array:
    x, indices, updates = case.operands
    working = case.working
    result = np.array(x, working)
    rows = np.moveaxis(
        result, case.op.axis, 0
    )  # a view: writing to it writes the result
    places = indices.reshape(-1)
    inside = (places >= 0) & (places < x.shape[case.op.axis])
    before, after = x.shape[: case.op.axis], x.shape[case.op.axis + 1 :]
    flat = updates.reshape(*before, places.size, *after)
    given = np.moveaxis(flat, case.op.axis, 0)[inside].astype(working)
    at = places[inside].astype(np.int64)
    if case.op.kind is ScatterKind.ADD:
        np.add.at(rows, at, given)
    else:
        rows[at] = given
    return result


SHAPE: Mapping[type, Rule] = {
    Constant: _constant,
    Iota: _iota,
    Select: _select,
    Broadcast: _broadcast,
    Reshape: _reshape,
    Transpose: _transpose,
    Slice: _slice,
    Concatenate: _concatenate,
    Pad: _pad,
    Reverse: _reverse,
    Gather: _gather,
    Scatter: _scatter,
}
