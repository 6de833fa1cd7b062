"""Rewriting, expanding and writing programs, loops and all."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from accy_async.compiler.semantic import (
    COMPOSITES,
    Binary,
    BinaryKind,
    Builder,
    Function,
    FunctionBuilder,
    Loop,
    Module,
    Operation,
    TensorType,
    Unary,
    UnaryKind,
    Value,
    evaluate,
    expand,
    expand_operation,
    rewrite,
    rewrite_module,
)
from accy_async.errors import InvalidProgram, InvalidValue
from tests.semantic.samples import function_of

F8 = TensorType("f32", (8,))


def looped() -> Function:
    """A softmax within a loop that also divides."""
    f = Builder().begin_function("main", [F8, F8], parameter_names=["x", "scale"])
    x, scale = f.parameters

    def body(b: FunctionBuilder, v: Value, s: Value) -> Sequence[Value]:
        return [b.div(b.softmax(v), s)]

    f.location = lambda: "model.py:7"
    f.return_(f.loop(3, [x], body, captures=[scale]))
    return f.finish()


def multiply_instead(
    f: FunctionBuilder, entry: Operation, operands: tuple[Value, ...]
) -> Sequence[Value] | None:
    match entry.op:
        case Binary(kind=BinaryKind.DIVIDE):
            return [f.mul(operands[0], f.div(1.0, operands[1]))]
        case _:
            return None


def test_rules_reach_loop_bodies_and_keep_locations() -> None:
    function = looped()
    changed = rewrite(function, multiply_instead)
    (entry,) = changed.operations
    assert isinstance(entry.op, Loop)
    names = [inner.op.opcode for inner in entry.op.body.operations]
    assert names == ["softmax", "constant", "divide", "multiply"]
    assert entry.location == "model.py:7"
    assert entry.op.body.operations[0].location == "model.py:7"
    assert changed.parameter_names == function.parameter_names
    assert changed.fingerprint() != function.fingerprint()
    x = np.linspace(0, 1, 8, dtype=np.float32)
    scale = np.full(8, 2, np.float32)
    np.testing.assert_allclose(
        evaluate(changed, [x, scale])[0], evaluate(function, [x, scale])[0], rtol=1e-6
    )


def test_expansion_reaches_loop_bodies() -> None:
    function = looped()
    simple = expand(function)
    (entry,) = simple.operations
    assert isinstance(entry.op, Loop)
    assert "softmax" not in str(simple)
    x, scale = np.arange(8, dtype=np.float32), np.ones(8, np.float32)
    np.testing.assert_allclose(
        evaluate(simple, [x, scale])[0], evaluate(function, [x, scale])[0], rtol=1e-6
    )
    assert expand(function, ["mean"]) == function


def test_only_composites_are_expanded() -> None:
    with pytest.raises(InvalidValue, match="expected some of softmax"):
        expand(looped(), ["sotfmax"])
    f = Builder().begin_function("main", [F8])
    with pytest.raises(InvalidValue, match="op: got 'exp'"):
        expand_operation(f, Unary(UnaryKind.EXP), f.parameters)
    assert set(COMPOSITES) == {"softmax", "row_sparse_cross_entropy", "mean", "einsum"}


def test_cross_entropy_of_narrow_labels_and_no_elements() -> None:
    """A label type too narrow to count the classes is widened first."""
    rng = np.random.default_rng(0)
    loss = function_of(
        "f32[3,300] i8[3]", lambda f, x, i: f.row_sparse_cross_entropy(x, i)
    )
    arguments = [
        rng.normal(size=(3, 300)).astype(np.float32),
        np.array([0, 127, -1], np.int8),
    ]
    np.testing.assert_allclose(
        evaluate(expand(loss), arguments)[0], evaluate(loss, arguments)[0], rtol=1e-6
    )
    empty = function_of("f32[0,3] f32[3,0]", lambda f, a, b: f.softmax(f.matmul(b, a)))
    nothing = function_of("f32[2,0]", lambda f, a: f.softmax(a))
    arrays = [np.zeros((0, 3), np.float32), np.zeros((3, 0), np.float32)]
    assert evaluate(expand(empty), arrays)[0].tolist() == [[1 / np.float32(3)] * 3] * 3
    assert evaluate(expand(nothing), [np.zeros((2, 0), np.float32)])[0].shape == (2, 0)


def test_a_rule_that_gives_another_type_is_refused() -> None:
    function = function_of("f32[8]", lambda f, a: f.exp(a))
    with pytest.raises(InvalidProgram, match=r"returns \(bool\[8\]\), announced were"):
        rewrite(function, lambda f, e, o: [f.compare(o[0], 0.0, "lt")])


def test_modules_are_rewritten_function_by_function() -> None:
    one = function_of("f32[8]", lambda f, a: f.div(a, 3.0))
    module = rewrite_module(Module("m", (one,)), multiply_instead)
    assert module.name == "m"
    assert module.entry == rewrite(one, multiply_instead)
    assert module.fingerprint() != Module("m", (one,)).fingerprint()
    assert repr(module) == "<Module m: 1 functions>"
    assert repr(one).startswith("<Function main: 2 operations, fingerprint ")


def test_everything_has_a_text() -> None:
    f = Builder().begin_function("main", [F8, TensorType("i32", (2,))])
    x, i = f.parameters
    values = [
        f.constant([1, 2], TensorType("bf16", (2,))),
        f.constant(range(9), TensorType("i8", (9,))),
        f.constant([], TensorType("f32", (0,))),
        f.constant(True, TensorType("bool", (3,))),
        f.iota(F8),
        f.slice(x, [0], [8], [2]),
        f.slice(x, [1], [3]),
        f.pad(x, [1], [0]),
        f.reverse(x, [0]),
        f.broadcast(x, (2, 8)),
        f.concatenate([x, x]),
        f.convert(x, "i32"),
        f.compare(x, x, "ge"),
        f.scan(x, "minimum", exclusive=True, reverse=True),
        f.scatter_add(x, i, f.gather(x, i)),
        f.softmax(x, log=True),
        f.loop(
            2,
            [x],
            lambda b, v: [v, b.constant(True, TensorType("bool"))],
            conditional=True,
        )[0],
    ]
    f.return_(values)
    lines = str(f.finish()).splitlines()
    assert [line.strip().split(" = ")[-1] for line in lines[1:-2]] == [
        "constant [1.0,2.0]",
        "constant dense(9 bytes)",
        "constant []",
        "constant True",
        "iota axis=0",
        "slice %p0 [0:8:2]",
        "slice %p0 [1:3]",
        "constant 0.0",
        "pad %p0, %9 low=[1] high=[0]",
        "reverse %p0 axes=[0]",
        "broadcast %p0 shape=[2,8] axes=[1]",
        "concatenate %p0, %p0 axis=0",
        "convert %p0",
        "compare %p0, %p0 ge",
        "scan %p0 minimum axis=0 accumulate=f32 exclusive=true reverse=true",
        "gather %p0, %p1 axis=0",
        "scatter_add %p0, %p1, %17 axis=0",
        "log_softmax %p0 axis=0",
        "loop %p0 count=2 carries=1 conditional "
        "func main.body(%p0: f32[8]) -> (f32[8], bool[]) {",
        "constant True",
        "return %p0, %1",
        "}",
    ]


def test_loops_made_by_hand_are_checked() -> None:
    body = function_of("f32[8]", lambda f, a: f.exp(a))
    x = Value(0, F8)
    for loop, operands, message in (
        (Loop(1, 2, body), (x,), "loop: 2 carries, 1 operands"),
        (
            Loop(1, 1, body),
            (Value(0, TensorType("f32")),),
            r"the body takes \[f32\[8\]\], the operands are \[f32\[\]\]",
        ),
    ):
        parameter = operands[0]
        with pytest.raises(InvalidProgram, match=message) as caught:
            Function(
                "f",
                (parameter,),
                (Operation(loop, operands, (Value(1, parameter.type),)),),
                (),
            )
        assert caught.value.__notes__ == ["function f, operation 0"]


def test_equal_loops_are_merged_unless_they_call_kernels() -> None:
    def build(*, calls: bool) -> int:
        f = Builder().begin_function("main", [F8])
        (x,) = f.parameters

        def body(b: FunctionBuilder, v: Value) -> Sequence[Value]:
            return b.kernel_call([v], [F8], target="t") if calls else [b.exp(v)]

        f.return_([*f.loop(2, [x], body), *f.loop(2, [x], body)])
        return len(f.finish().operations)

    assert build(calls=False) == 1
    assert build(calls=True) == 2
