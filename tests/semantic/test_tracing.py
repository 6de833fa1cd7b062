"""What tracing refuses, where it says so, and how programs of a function are kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.compiler import (
    Fragment,
    TracedArray,
    fragment,
    tensor,
    trace,
    trace_program,
)
from accy_async.compiler.semantic import Constant, ContextLimits, Loop, TensorType
from accy_async.dtypes import DType
from accy_async.errors import (
    InvalidProgram,
    InvalidType,
    LaunchArgumentMismatch,
    OutOfMemory,
)


def branch(x: Any) -> Any:
    if x[0] > 0:  # the line that messages show
        return x
    return -x


def test_control_flow_is_refused_with_its_line() -> None:
    with pytest.raises(InvalidProgram) as caught:
        trace(branch, "f32[3]")
    line = branch.__code__.co_firstlineno + 1
    assert str(caught.value) == (
        "a traced array has no values yet, so it is neither true nor false; use "
        "numpy.where, or accy_async.compiler.tensor.repeat and iterate for loops, at "
        f"test_tracing.py:{line} (if x[0] > 0:  # the line that messages show)"
    )


WANTED: list[tuple[Callable[[Any], object], str]] = [
    (lambda x: int(x[0]), r"int\(\) cannot take it; x.astype\(int\)"),
    (lambda x: float(x[0]), r"float\(\) cannot take it"),
    (lambda x: complex(x[0]), r"complex\(\) cannot take it"),
    (lambda x: [1, 2, 3][x[0]], "cannot be an index of Python's"),
    (lambda x: x[0].item(), r"it has no item\(\)"),
    (lambda x: x.tolist(), r"it has no tolist\(\)"),
    (lambda x: 1.0 in x, "'in' cannot be answered"),
    (lambda x: np.asarray(x), "cannot be made a numpy array; numpy.stack joins"),
    (lambda x: np.array([x[0], x[1]]), "cannot be made a numpy array"),
    (lambda x: np.sort(x), "numpy.sort is not traced"),
    (lambda x: np.sin(x), "numpy.sin is not traced"),
    (lambda x: x[x > 0], "a mask as an index gives an array whose shape"),
    (lambda x: np.where(x > 0), "where with a condition alone"),
    (lambda x: np.repeat(x, x.astype(int)), "the result's shape depends on values"),
    (lambda x: np.add.at(x, 0, 1), "numpy.add.at is not traced; scatter_add"),
    (lambda x: np.add(x, 1, where=x > 0), "where= is not traced; use numpy.where"),
    (lambda x: np.add(x, 1, out=np.ones(3)), "add: out= is a plain array"),
    (lambda x: np.sum(x, initial=3), "sum: initial= is not traced"),
    (lambda x: x + np.ones(4), r"add: shapes do not broadcast: f32\[3\], f64\[4\]"),
    (lambda x: x[5], r"index 5 is outside f32\[3\] axis 0 \(3\)"),
    (lambda x: x[[0, 5]], "an index is outside an axis of 3 elements"),
    (lambda x: x[0, 0], r"2 indices for f32\[3\]"),
    (lambda x: x[x], "indices are f32, expected integers"),
    (lambda x: x.reshape(2, -1), r"3 elements do not fill \[2, -1\]"),
    (lambda x: x.sum(axis=1), "sum: axis 1 of an array of 1 axes"),
    (lambda x: x.astype(int) ** x.astype(int), "integers take constant exponents"),
    (lambda x: x.astype(int) ** -1, "integers take constant exponents"),
    (lambda x: np.bitwise_and(x, x), r"bitwise_and: is not defined on f32\[3\]"),
    (lambda x: np.linalg.norm(x, ord=1), "of order 1 is not traced"),
    (lambda x: np.pad(x, 1, mode="edge"), "mode 'edge' is not traced"),
    (lambda x: x + "a", r"str <U1\[\] holds no numbers that are traced"),
    (lambda x: x * 1j, "complex complex128"),
    (lambda x: "text", "returned str 'text', expected arrays"),
    (lambda x: x.reshape(3, order="F"), "order 'F' is not traced"),
]


@pytest.mark.parametrize(("function", "message"), WANTED)
def test_what_needs_values_or_is_not_traced_is_refused(
    function: Callable[[Any], object], message: str
) -> None:
    with pytest.raises(InvalidProgram, match=message):
        trace(function, "f32[3]")


def test_in_place_changes_all_names_as_in_numpy() -> None:
    def function(x: Any) -> Any:
        y = x * 2
        z = y
        y += 1
        y *= np.float64(2)  # in place the dtype stays
        return z

    x = np.arange(3, dtype=np.float32)
    result = trace_program(function, x).evaluate(x)
    assert result.dtype == np.float32
    assert result.tolist() == function(x).tolist() == [2, 6, 10]


def argument_in_place(x: Any) -> Any:
    x += 1
    return x


def view_in_place(x: Any) -> Any:
    y = x * 2
    part = y[1:]
    part += 1
    return y


def viewed_in_place(x: Any) -> Any:
    y = x * 2
    part = y[1:]
    y += 1
    return part


def items_in_place(x: Any) -> Any:
    y = x * 2
    y[0] = 1
    return y


def grown_in_place(x: Any) -> Any:
    y = x * 2
    y += np.ones((2, 3))
    return y


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (argument_in_place, "numpy.add in place would change an argument, a view"),
        (view_in_place, "numpy.add in place would change an argument, a view"),
        (viewed_in_place, "numpy.add in place would change an argument, a view"),
        (items_in_place, "items of a traced array cannot be assigned"),
        (lambda x: x.at[0].set(1), "has no `at`; scatter and scatter_add of"),
        (grown_in_place, r"f64\[2,3\] does not fit into f32\[3\] in place"),
    ],
)
def test_in_place_is_refused_where_numpy_would_change_more(
    function: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(InvalidProgram, match=message):
        trace(function, "f32[3]")


def test_arguments_and_results_may_be_nested() -> None:
    def function(weights: Any, x: Any, scale: float, *, flags: Any) -> Any:
        hidden = np.maximum(x @ weights["w"] + weights["b"], 0)
        assert flags["train"]
        return {"out": hidden * scale, "parts": (hidden, [x, None])}

    program = trace_program(
        function,
        {"w": "f32[4,2]", "b": TensorType("f32", (2,))},
        np.zeros((3, 4), np.float32),
        2.0,
        flags={"train": True},
    )
    entry = program.module.entry
    assert entry.parameter_names == ("weights.b", "weights.w", "x")
    assert program.module.name == "function"
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.normal(size=(4, 2)).astype(np.float32),
        "b": np.ones(2, np.float32),
    }
    x = rng.normal(size=(3, 4)).astype(np.float32)
    result = program.evaluate(weights, x, 2.0, flags={"train": True})
    expected = function(weights, x, 2.0, flags={"train": True})
    np.testing.assert_allclose(result["out"], expected["out"], rtol=1e-6)
    assert result["parts"][1][1] is None
    assert isinstance(result["parts"], tuple)
    with pytest.raises(LaunchArgumentMismatch, match=r"traced for 2.0, got 3.0"):
        program.flatten(weights, x, 3.0, flags={"train": True})
    with pytest.raises(LaunchArgumentMismatch, match="nested otherwise"):
        program.flatten([x], x, 2.0, flags={"train": True})


def test_a_fragment_keeps_a_program_for_each_signature() -> None:
    calls = []

    @fragment
    def scaled(x: Any, factor: float = 2.0) -> Any:
        calls.append(factor)
        return x * factor

    assert isinstance(scaled, Fragment)
    first = scaled.trace("f32[3]")
    assert scaled.trace(TensorType("f32", (3,))) is first
    assert scaled.trace(np.zeros(3, np.float32)) is first
    assert scaled.trace("f32[3]", 3) is not scaled.trace("f32[3]", 3.0)
    assert scaled.trace("f32[4]") is not first
    assert len(calls) == 4
    assert scaled(np.ones(2)).tolist() == [2, 2]
    assert repr(scaled) == "<Fragment scaled: 4 programs>"
    with pytest.raises(InvalidType, match="hashable"):
        scaled.trace("f32[3]", {1, 2})


def test_fragments_become_part_of_one_another() -> None:
    @fragment(name="inner", limits=ContextLimits(operations=3))
    def inner(x: Any) -> Any:
        return np.exp(x) + 1

    @fragment
    def outer(x: Any) -> Any:
        return inner(inner(x))

    program = outer.trace("f32[3]")
    assert len(program.module.entry.operations) == 5
    with pytest.raises(OutOfMemory):
        fragment(limits=ContextLimits(operations=3))(outer.function).trace("f32[3]")


def test_numbers_beside_large_arrays_take_no_memory() -> None:
    """A constant of 2**40 equal elements is one of them."""
    module = trace(
        lambda x: np.where(x > 3, x * np.uint8(2) + np.ones(1, np.uint8), 7),
        f"u8[{2**40}]",
    )
    constants = [o.op for o in module.entry.operations if isinstance(o.op, Constant)]
    assert sorted(len(op.data) for op in constants) == [1] * 4


def test_numbers_are_weak_and_arrays_are_constants() -> None:
    table = np.arange(3, dtype=np.float32)
    program = trace_program(lambda x: (x + 1, x + 1.0, x * table, x + True), "f16[3]")
    assert [str(type) for type in program.module.entry.result_types] == [
        "f16[3]",
        "f16[3]",
        "f32[3]",
        "f16[3]",
    ]
    with pytest.raises(OverflowError):
        trace(lambda x: x + 300, "u8[3]")


def test_operations_know_the_line_they_come_from() -> None:
    def function(x: Any) -> Any:
        y = np.exp(x)
        return tensor.softmax(y)

    first = function.__code__.co_firstlineno
    locations = [e.location for e in trace(function, "f32[3]").entry.operations]
    assert locations == [f"test_tracing.py:{first + 1}", f"test_tracing.py:{first + 2}"]


def test_arrays_do_not_leave_their_trace() -> None:
    kept: list[Any] = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x

    trace(keep, "f32[3]")
    with pytest.raises(InvalidProgram, match="nothing is being traced"):
        kept[0] + 1
    with pytest.raises(InvalidProgram, match=r"f32\[3\], is used outside its trace"):
        trace(lambda x: x + kept[0], "f32[3]")


def test_an_array_says_what_is_known_of_it() -> None:
    seen: dict[str, object] = {}

    def function(x: Any, h: Any) -> Any:
        seen.update(
            shape=x.shape, dtype=x.dtype, ndim=x.ndim, size=x.size, length=len(x)
        )
        seen.update(repr=repr(x), half=h.dtype, transposed=x.T.shape)
        assert isinstance(x, TracedArray)
        return x.astype(h.dtype)

    module = trace(function, "f32[2,3]", "bf16[2]")
    assert module.entry.result_types[0].dtype is DType.BF16
    assert seen == {
        "shape": (2, 3),
        "dtype": np.dtype(np.float32),
        "ndim": 2,
        "size": 6,
        "length": 2,
        "repr": "TracedArray(f32[2,3])",
        "half": DType.BF16,
        "transposed": (3, 2),
    }


def power_method(a: Any, v: Any) -> Any:
    def step(u: Any) -> Any:
        w = a @ u
        return w / np.sqrt(np.sum(w * w))

    return tensor.repeat(20, step, v)


def test_loops_capture_what_their_bodies_read() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(size=(4, 4))
    a = a @ a.T
    v = np.ones(4)
    program = trace_program(power_method, a, v)
    (loop,) = [e.op for e in program.module.entry.operations if isinstance(e.op, Loop)]
    assert (loop.count, loop.carries, loop.body.arity) == (20, 1, 2)
    np.testing.assert_allclose(program.evaluate(a, v), power_method(a, v))


def test_loops_nest_and_end_early() -> None:
    def function(x: Any, limit: Any) -> Any:
        def inner(v: Any) -> Any:
            return v * 2 + x

        def outer(v: Any, n: Any) -> Any:
            grown = tensor.repeat(2, inner, v)
            return np.all(grown < limit), grown, n + 1

        return tensor.iterate(50, outer, x, np.int32(0))

    x, limit = np.ones(2, np.float32), np.float32(100)
    program = trace_program(function, x, np.float32(100))
    value, count = program.evaluate(x, limit)
    plain, plain_count = function(x, limit)
    assert value.tolist() == plain.tolist()
    assert int(count) == int(plain_count) == 3


def test_loop_bodies_must_keep_the_carries() -> None:
    def grows(x: Any) -> Any:
        return tensor.repeat(3, lambda v: np.concatenate([v, v]), x)

    with pytest.raises(
        InvalidProgram, match=r"gives \[f32\[6\]\], expected \[f32\[3\]"
    ):
        trace(grows, "f32[3]")
    with pytest.raises(InvalidProgram, match="gives 2 arrays for 1 carries"):
        trace(lambda x: tensor.repeat(3, lambda v: (v, v), x), "f32[3]")
    with pytest.raises(InvalidProgram, match="takes one carry at least"):
        trace(lambda x: tensor.repeat(3, lambda: ()), "f32[3]")


PLAIN: list[Callable[[Any, Any], Any]] = [
    lambda x, i: tensor.softmax(x),
    lambda x, i: tensor.log_softmax(x, 0),
    lambda x, i: tensor.row_sparse_cross_entropy(x, i),
    lambda x, i: tensor.scatter(x, i, 7.0),
    lambda x, i: tensor.scatter_add(x, i, x[:3], axis=0),
    lambda x, i: tensor.scatter_add(x, i, 1.0, axis=1),
    lambda x, i: tensor.segment_sum(x, i, 4),
    lambda x, i: tensor.one_hot(i, 4),
    lambda x, i: tensor.scan(x, "maximum", exclusive=True),
    lambda x, i: tensor.dot_general(x, x, ((1,), (1,)), ((0,), (0,))),
    lambda x, i: tensor.relu(x),
    lambda x, i: tensor.gelu(x),
    lambda x, i: tensor.silu(x),
    lambda x, i: tensor.layer_norm(x, np.ones(4, np.float32)),
    lambda x, i: tensor.rms_norm(x),
]


@pytest.mark.parametrize("function", PLAIN)
def test_the_namespace_takes_plain_arrays_too(
    function: Callable[[Any, Any], Any],
) -> None:
    """And gives for them what a trace gives."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(3, 4)).astype(np.float32)
    i = np.array([2, 0, 2], np.int32)
    plain = function(x, i)
    traced = trace_program(function, x, i).evaluate(x, i)
    assert (plain.dtype, plain.shape) == (traced.dtype, traced.shape)
    np.testing.assert_allclose(plain, traced, rtol=1e-6, atol=1e-7)


def test_the_namespace_computes_what_it_says() -> None:
    x = np.arange(6, dtype=np.float64).reshape(3, 2)
    i = np.array([2, 0, 2])
    assert tensor.segment_sum(x, i, 3).tolist() == [[2, 3], [0, 0], [4, 6]]
    assert tensor.scatter(x, [-1], -1.0).tolist() == [[0, 1], [2, 3], [-1, -1]]
    assert tensor.one_hot(i, 3, np.int8).tolist() == [[0, 0, 1], [1, 0, 0], [0, 0, 1]]
    assert tensor.scan(x[:, 0], exclusive=True, reverse=True).tolist() == [6, 4, 0]
    np.testing.assert_allclose(tensor.sigmoid(np.array([0.0, 1e3])), [0.5, 1])


def test_kernel_calls_are_written_into_the_program() -> None:
    def function(x: Any) -> Any:
        y = tensor.kernel_call(
            "my.update",
            x,
            results=["f32[3]"],
            version=2,
            operand_effects=["read_write"],
            result_aliases=[0],
        )
        first, second = tensor.kernel_call("my.two", y, results=[y.type, "i32[]"])
        return first, second

    text = str(trace(function, "f32[3]", name="calls"))
    assert (
        '%1: f32[3] = kernel_call %x "my.update" version=2 effects=[read_write] '
        "aliases=[0]"
    ) in text
    assert '%2: f32[3], %3: i32[] = kernel_call %1 "my.two" version=1' in text
    with pytest.raises(InvalidProgram, match="no meaning outside a traced function"):
        tensor.kernel_call("my.two", np.ones(3), results=["f32[3]"])
