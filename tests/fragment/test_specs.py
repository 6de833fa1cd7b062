"""What fragments refuse: mistyped types, and arguments that the function lacks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest

from accy_async import DType, Session, open_session
from accy_async.backends import RecordingBackend
from accy_async.compiler.semantic import TensorType
from accy_async.compiler.tracing import trace_program
from accy_async.errors import (
    InvalidBuffer,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
)
from accy_async.fragment import LoadedFragment

pytestmark = pytest.mark.anyio

X = np.ones((8, 4), np.float32)


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with open_session("cpu") as opened:
        yield opened


def plus_one(x: Any) -> Any:
    return x + 1


def scaled(x: Any, factor: Any = 2.0, *, bias: Any = None) -> Any:
    return x * factor if bias is None else x * factor + bias


class Shaped:
    """What has a dtype, and a shape that is none."""

    shape = 4
    dtype = np.dtype(np.float32)


@pytest.mark.parametrize(
    ("wrong", "error", "where"),
    [
        ("f32[8,", InvalidValue, "x"),
        ("f32(8,4)", InvalidValue, "x"),
        ("f32", InvalidValue, "x"),
        ("relu", InvalidValue, "x"),
        ((8, 4), InvalidType, "x"),
        ([1.0, 2.0], InvalidType, "x"),
        ([[1.0], [2.0]], InvalidType, "x.0"),
        (DType.F32, InvalidType, "x"),
        (np.float32, InvalidType, "x"),
        (np.dtype(np.float32), InvalidType, "x"),
        (TensorType, InvalidType, "x"),
        (object(), InvalidType, "x"),
        ({1, 2}, InvalidType, "x"),
        (b"f32[8]", InvalidType, "x"),
        (Shaped(), InvalidType, "x"),
        (["f32[8]", "relu"], InvalidValue, "x.1"),
        ({"w": {"b": (8, 4)}}, InvalidType, "x.w.b"),
    ],
)
async def test_what_is_no_type_is_refused_by_its_argument(
    wrong: object, error: type[InvalidValue], where: str
) -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        for specs, named in (((wrong,), {}), ((), {"x": wrong})):
            made: Any
            for made in (session.load_fragment, session.compile_fragment):
                with pytest.raises(error) as caught:
                    await made(plus_one, *specs, **named)
                assert type(caught.value) is error
                assert caught.value.field == f"plus_one's argument {where}"
                assert "a type like 'f32[8,4]'" in caught.value.expected
        assert backend.load_count == 0


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("q32[8]", "argument x: got 'q32.8.', expected a type of .*, f32"),
        (f"f32[{1 << 62}]", "bytes"),
        (np.array(["a"]), "argument x, an array of <U1.*float32"),
    ],
    ids=["dtype", "size", "elements"],
)
async def test_a_type_of_what_cannot_be_says_what_can(
    session: Session, wrong: object, message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        await session.load_fragment(plus_one, wrong)


async def test_types_are_texts_values_arrays_and_what_is_nested_of_them(
    session: Session,
) -> None:
    def both(parts: Any, rest: Any, bias: Any) -> Any:
        assert bias is None
        return parts[0] + parts[1]["b"] * rest[0] * rest[1]

    given: tuple[object, ...] = ("f32[8,4]", TensorType("f32", (8, 4)), X)
    for spec in given:
        types = ((spec, {"b": X}), [X, 3], None)
        async with await session.load_fragment(both, *types) as loaded:
            assert isinstance(loaded, LoadedFragment)
            result = await loaded((X, {"b": X}), [X, 3], None)
            np.testing.assert_array_equal(result, X * 4)


async def test_a_call_may_have_constants_that_are_no_types(session: Session) -> None:
    def named(x: Any, name: str, axes: tuple[int, ...]) -> Any:
        return getattr(np, name)(x, axis=axes)

    async with await session.load_fragment(named) as function:
        np.testing.assert_array_equal(await function(X, "sum", (0, 1)), np.float32(32))
    program = trace_program(named, "f32[8,4]", "sum", (0,))
    async with await session.load_fragment(program) as loaded:
        np.testing.assert_array_equal(await loaded(X, "sum", (0,)), np.full(4, 8))


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "message"),
    [
        (plus_one, (), {}, r"plus_one takes 1 argument \(x\), 0 were given: missing"),
        (plus_one, (X, X), {}, r"plus_one takes 1 argument \(x\), 2 were given"),
        (plus_one, (X,), {"y": X}, r"1 was given, and by name y: .*unexpected.*'y'"),
        (scaled, (), {}, r"takes 1 to 3 arguments \(x, factor, bias\), 0 were given"),
        (scaled, (X, 1, 2), {}, r"3 were given: too many positional"),
        (lambda x, *more: x, (), {}, r"takes at least 1 argument \(x, \*more\)"),
    ],
)
async def test_arguments_that_the_function_lacks_are_named(
    session: Session,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    message: str,
) -> None:
    with pytest.raises(LaunchArgumentMismatch, match=message):
        trace_program(function, *args, **kwargs)
    with pytest.raises(LaunchArgumentMismatch, match=message):
        await session.compile_fragment(function, *args, **kwargs)
    async with await session.load_fragment(function) as loaded:
        with pytest.raises(LaunchArgumentMismatch, match=message):
            await loaded(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "traced for 1 argument by place; 0 were given$"),
        ((X, X), {}, "traced for 1 argument by place; 2 were given$"),
        ((), {"x": X}, "by place; 0 were given, and by name x$"),
        ((X,), {"y": X}, "by place; 1 was given, and by name y$"),
        ((X.tolist(),), {}, r"argument 0: a list of 8, expected an array of f32\[8, 4"),
        (({"a": X},), {}, "argument 0: a dict of 1, expected an array"),
    ],
)
async def test_a_loaded_fragment_says_what_it_was_traced_for(
    session: Session, args: tuple[Any, ...], kwargs: dict[str, Any], message: str
) -> None:
    async with await session.load_fragment(plus_one, "f32[8,4]") as loaded:
        with pytest.raises(LaunchArgumentMismatch, match=message) as caught:
            await loaded(*args, **kwargs)
        assert len(str(caught.value)) < 120


async def test_what_is_nested_otherwise_is_named_without_its_elements(
    session: Session,
) -> None:
    def sum_of(parts: Any, *, bias: Any) -> Any:
        return parts["a"][0] + bias

    types: Any = {"a": ["f32[8,4]"]}
    async with await session.load_fragment(sum_of, types, bias="f32[4]") as loaded:
        for parts, message in (
            (X, "argument 0 is .*: an array or a constant, expected a dict of a$"),
            ({"b": [X]}, "argument 0 is .*: a dict of b, expected a dict of a$"),
            ({"a": (X,)}, "argument 0.a is .*: a tuple of 1, expected a list of 1$"),
            ({"a": [None]}, "argument 0.a.0 is .*: None, expected an array"),
            ({"a": [X.tolist()]}, "argument 0.a.0 is .*: a list of 8, expected an arr"),
        ):
            with pytest.raises(LaunchArgumentMismatch, match=message):
                await loaded(parts, bias=X[0])
        with pytest.raises(LaunchArgumentMismatch, match="argument bias is nested"):
            await loaded({"a": [X]}, bias=[X[0]])
        with pytest.raises(LaunchArgumentMismatch, match="and by name bias; 1 was gi"):
            await loaded({"a": [X]})


async def test_a_constant_that_cannot_be_hashed_is_named_alone(
    session: Session,
) -> None:
    async with await session.load_fragment(scaled) as function:
        with pytest.raises(InvalidType, match=r"got \{1\}, expected arrays, and hash"):
            await function(X, {1})


async def test_an_array_of_another_device_is_refused_by_both_names(
    session: Session,
) -> None:
    async with (
        open_session("recording") as other,
        await session.load_fragment(plus_one) as function,
    ):
        theirs = await other.upload(X)
        with pytest.raises(
            InvalidBuffer,
            match=r"argument 0: .* is of backend .*recording.*, this.*cpu",
        ):
            await function(theirs)
