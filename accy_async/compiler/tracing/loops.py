"""Loops of a program, written as Python functions of the carries."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from accy_async.compiler.semantic import FunctionBuilder, Value
from accy_async.compiler.semantic.recorder import Context
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.places import refusal
from accy_async.compiler.tracing.promotion import as_array, lift
from accy_async.compiler.tracing.state import Trace, current, is_tracing
from accy_async.dtypes import DType

__all__ = ["iterate", "repeat"]

# Any: an array for one carry, a tuple of them for more.
Body = Callable[..., Any]


def repeat(count: int, body: Body, *carries: object) -> Any:  # noqa: ANN401
    """The carries after ``body`` was applied ``count`` times.

    Args:
        count: how often, known when the program is traced.
        body: takes the carries and gives as many, of the same types. It may read
            traced arrays from outside. It is called twice while it is traced, and
            must do the same both times.
        carries: what they are at first.

    Returns:
        One array for one carry, else a tuple.

    Raises:
        InvalidProgram: the body gives others than the carries' types.
    """
    return _loop(count, body, carries, conditional=False)


def iterate(limit: int, body: Body, *carries: object) -> Any:  # noqa: ANN401
    """As `repeat`, until the body says so, and at most ``limit`` times.

    The body gives a truth value more, first: whether to go on. It runs at least
    once, unless the limit is 0.
    """
    return _loop(limit, body, carries, conditional=True)


def _loop(
    count: int, body: Body, carries: tuple[object, ...], *, conditional: bool
) -> Any:  # noqa: ANN401
    if not carries:
        raise refusal("takes one carry at least", operation="loop")
    if not is_tracing():
        return _plainly(count, body, carries, conditional=conditional)
    outer = current()
    first = [as_array(carry) for carry in carries]
    initial = [array.value for array in first]
    captures = _captures(outer, body, initial, conditional=conditional)

    def build(f: FunctionBuilder, *parameters: Value) -> Sequence[Value]:
        given = dict(zip(captures, parameters[len(initial) :], strict=True))
        inner = Trace(f, outer, given)
        return _traced(inner, body, parameters[: len(initial)], conditional=conditional)

    results = outer.builder.loop(
        count,
        initial,
        build,
        captures=[outer.own(trace, value) for trace, value in captures],
        conditional=conditional,
    )
    arrays = tuple(TracedArray(outer, value) for value in results)
    return arrays if len(arrays) > 1 else arrays[0]


def _captures(
    outer: Trace, body: Body, initial: list[Value], *, conditional: bool
) -> list[tuple[Trace, Value]]:
    """What the body reads of the traces around it, found by tracing it in vain."""
    scratch = FunctionBuilder(
        Context(outer.builder.context.limits),
        f"{outer.builder.name}.body",
        [value.type for value in initial],
        None,
        (),
        lambda _: None,
    )
    scratch.context.depth = outer.builder.context.depth
    with scratch.context.deeper():
        inner = Trace(scratch, outer)
        _traced(inner, body, scratch.parameters, conditional=conditional)
    return list(inner.captures)


def _traced(
    inner: Trace, body: Body, parameters: Sequence[Value], *, conditional: bool
) -> list[Value]:
    """The body's results, the flag that says whether to go on last."""
    with inner.active():
        given = body(*(TracedArray(inner, v, fresh=False) for v in parameters))
        results = list(given) if isinstance(given, (tuple, list)) else [given]
        if len(results) != len(parameters) + conditional:
            raise refusal(
                f"the body gives {len(results)} arrays for {len(parameters)} carries"
                + " and whether to go on" * conditional,
                operation="loop",
            )
        flag = [lift(results.pop(0), DType.BOOL)] if conditional else []
        carried = [
            lift(result, parameter.dtype) if np.isscalar(result) else lift(result)
            for result, parameter in zip(results, parameters, strict=True)
        ]
    return [*carried, *flag]


def _plainly(
    count: int, body: Body, carries: tuple[object, ...], *, conditional: bool
) -> Any:  # noqa: ANN401
    """The same loop on numpy's arrays."""
    state = carries
    for _ in range(count):
        given = body(*state)
        results = tuple(given) if isinstance(given, (tuple, list)) else (given,)
        go_on, state = (results[0], results[1:]) if conditional else (True, results)
        if not go_on:
            break
    return state if len(state) > 1 else state[0]
