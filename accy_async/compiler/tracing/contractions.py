"""numpy's products of arrays, traced."""

from __future__ import annotations

from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from accy_async.compiler.semantic import EinsumSpec, Value
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.common import axes_of, call, plain, wrap
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.promotion import (
    as_array,
    broadcast_shape,
    lift,
    promote,
    shape_of,
)
from accy_async.compiler.tracing.registry import implements
from accy_async.compiler.tracing.state import current
from accy_async.compiler.tracing.ufuncs import SPECIAL

__all__: list[str] = []


@implements(np.einsum)
def _einsum(*operands: Any, **options: object) -> TracedArray:
    """With a specification; ``optimize`` is not followed, see `EinsumSpec`."""
    options.pop("optimize", None)
    plain("einsum", options)
    text, *arrays = operands
    if not isinstance(text, str):
        text, arrays = _lettered(operands)
    spec = _spelled(text.replace(" ", ""), [shape_of(array) for array in arrays])
    dtype = promote(arrays)
    spec, values = _stretched(spec, [lift(a, dtype) for a in arrays])
    return wrap(current().builder.einsum(values, spec))


def _lettered(operands: Sequence[Any]) -> tuple[str, list[Any]]:
    """Arrays, each with a list of numbers for its axes, by letters in their order."""
    given = list(operands)
    result = given.pop() if len(given) % 2 else None
    arrays, axes = given[::2], given[1::2]

    letters: dict[object, str] = {**dict(enumerate(ascii_letters)), ...: "..."}
    named = axes if result is None else [*axes, result]
    if not axes or not all(
        isinstance(one, (list, tuple)) and all(n in letters for n in one)
        for one in named
    ):
        raise refusal(
            "takes a specification such as 'mk,kn->mn' first, or arrays that each have "
            f"a list of numbers from 0 to {len(ascii_letters) - 1} after them",
            operation="einsum",
        )
    terms = ["".join(letters[n] for n in one) for one in named]
    text = ",".join(terms[: len(axes)])
    return text if result is None else f"{text}->{terms[-1]}", arrays


def _stretched(
    spec: EinsumSpec, values: Sequence[Value]
) -> tuple[EinsumSpec, list[Value]]:
    """Without axes of extent 1 for letters that are more in another operand."""
    terms = list(spec.operands)
    if [len(term) for term in terms] != [value.rank for value in values]:
        return spec, list(values)  # which the builder refuses
    pairs = [
        list(zip(term, value.shape, strict=True))
        for term, value in zip(terms, values, strict=True)
    ]
    longer = {letter for one in pairs for letter, extent in one if extent != 1}
    dropped = []
    for index, (one, value) in enumerate(zip(pairs, values, strict=True)):
        kept = {letter for letter, extent in one if extent != 1 or letter not in longer}
        terms[index] = "".join(c for c in terms[index] if c in kept)
        shape = [extent for letter, extent in one if letter in kept]
        dropped.append(current().builder.reshape(value, shape))
    return EinsumSpec(tuple(terms), spec.result), dropped


def _spelled(text: str, shapes: list[tuple[int, ...]]) -> EinsumSpec:
    """The specification with letters in the place of its dots."""
    left, arrow, right = text.partition("->")
    terms = left.split(",")
    if "..." in text and len(terms) == len(shapes):
        free = [c for c in reversed(ascii_letters) if c not in text]
        counts = [
            len(shape) - len(term.replace("...", "")) if "..." in term else 0
            for term, shape in zip(terms, shapes, strict=True)
        ]
        longest = max(counts)
        dots = "".join(free[:longest])
        terms = [
            term.replace("...", dots[longest - count :])
            for term, count in zip(terms, counts, strict=True)
        ]
        if arrow:
            right = right.replace("...", dots)
        else:
            plain = left.replace("...", "").replace(",", "")
            once = sorted(c for c in set(plain) if plain.count(c) == 1)
            arrow, right = "->", dots + "".join(once)
    return EinsumSpec.parse(",".join(terms) + arrow + right)


def _matmul(a: object, b: object) -> TracedArray:
    """numpy.matmul: leading axes are broadcast, axes of vectors added and dropped."""
    lhs_shape, rhs_shape = shape_of(a), shape_of(b)
    if not lhs_shape or not rhs_shape:
        raise refusal("takes arrays of one axis at least", operation="matmul")
    dtype = promote([a, b])
    builder = current().builder
    lhs, rhs = lift(a, dtype), lift(b, dtype)
    if lhs.rank == 1:
        lhs = builder.reshape(lhs, (1, *lhs.shape))
    if rhs.rank == 1:
        rhs = builder.reshape(rhs, (*rhs.shape, 1))
    if rhs.rank == 2:
        result = builder.dot_general(lhs, rhs, [lhs.rank - 1], [0])
    else:
        result = _batched(lhs, rhs)
    kept = result.shape
    if len(rhs_shape) == 1:
        kept = kept[:-1]
    if len(lhs_shape) == 1:
        kept = (
            *kept[: len(kept) - (len(rhs_shape) != 1) - 1],
            *kept[len(kept) - (len(rhs_shape) != 1) :],
        )
    return wrap(builder.reshape(result, kept))


def _batched(lhs: Value, rhs: Value) -> Value:
    builder = current().builder
    outer = broadcast_shape(
        "matmul", [np.broadcast_to(0, v.shape[:-2]) for v in (lhs, rhs)]
    )
    lhs = builder.broadcast(lhs, (*outer, *lhs.shape[-2:]))
    rhs = builder.broadcast(rhs, (*outer, *rhs.shape[-2:]))
    batch = range(len(outer))
    last = len(outer)
    return builder.dot_general(lhs, rhs, [last + 1], [last], batch, batch)


SPECIAL[np.matmul] = _matmul


@implements(np.dot)
def _dot(a: object, b: object, out: object = None) -> TracedArray:
    plain("dot", {"out": out})
    if not shape_of(a) or not shape_of(b):
        # numpy makes arrays of both first, so that no number is weak here.
        result: TracedArray = call(np.multiply, as_array(a), as_array(b))
        return result
    rank = len(shape_of(b))
    return _contract(a, b, [len(shape_of(a)) - 1], [max(rank - 2, 0)])


@implements(np.inner)
def _inner(a: object, b: object) -> TracedArray:
    if not shape_of(a) or not shape_of(b):
        # numpy makes arrays of both first, so that no number is weak here.
        result: TracedArray = call(np.multiply, as_array(a), as_array(b))
        return result
    return _contract(a, b, [len(shape_of(a)) - 1], [len(shape_of(b)) - 1])


@implements(np.outer)
def _outer(a: object, b: object, out: object = None) -> TracedArray:
    plain("outer", {"out": out})
    x, y = (as_array(v).reshape(-1) for v in (a, b))
    result: TracedArray = call(np.multiply, x.reshape(-1, 1), y)
    return result


@implements(np.vdot)
def _vdot(a: object, b: object) -> TracedArray:
    return _dot(as_array(a).reshape(-1), as_array(b).reshape(-1))


@implements(np.tensordot)
def _tensordot(a: object, b: object, axes: Any = 2) -> TracedArray:  # noqa: ANN401
    rank = len(shape_of(a))
    if isinstance(axes, (int, np.integer)):
        left, right = range(rank - int(axes), rank), range(int(axes))
    else:
        left, right = axes
    return _contract(
        a,
        b,
        axes_of(_listed(left), rank, "tensordot"),
        axes_of(_listed(right), len(shape_of(b)), "tensordot"),
    )


def _listed(axes: Any) -> list[int]:  # noqa: ANN401 - an int, or a sequence of them
    return [int(axes)] if isinstance(axes, (int, np.integer)) else list(axes)


def _contract(
    a: object, b: object, left: Sequence[int], right: Sequence[int]
) -> TracedArray:
    dtype = promote([a, b])
    return wrap(
        current().builder.dot_general(lift(a, dtype), lift(b, dtype), left, right)
    )
