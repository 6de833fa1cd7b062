"""What each op refuses, in words that show the types."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from accy_async.compiler.semantic import (
    Builder,
    Constant,
    FunctionBuilder,
    Gather,
    KernelCall,
    Reduce,
    TensorType,
    Value,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidProgram, InvalidType, InvalidValue
from tests.semantic.making import Make, typed

REFUSALS: list[tuple[str, Make, str]] = [
    (
        "f32[2,3] f32[3]",
        lambda f, a, b: f.add(a, b),
        "add: operand shapes differ: lhs f32[2,3], rhs f32[3]",
    ),
    (
        "f32[2] f64[2]",
        lambda f, a, b: f.mul(a, b),
        "multiply: operand dtypes differ: lhs f32[2], rhs f64[2]",
    ),
    (
        "f32[2] f64[3]",
        lambda f, a, b: f.sub(a, b),
        "subtract: operand types differ: lhs f32[2], rhs f64[3]",
    ),
    ("bool[2]", lambda f, a: f.add(a, a), "add: is not defined on bool: bool[2]"),
    ("i32[2]", lambda f, a: f.exp(a), "exp: is not defined on i32: i32[2]"),
    ("f32[2]", lambda f, a: f.logical_not(a), "not: is not defined on f32: f32[2]"),
    (
        "f32[2]",
        lambda f, a: f.remainder(a, a),
        "remainder: is not defined on f32: f32[2]",
    ),
    (
        "bool[2]",
        lambda f, a: f.compare(a, a, "lt"),
        "compare: lt is not defined on bool: bool[2]",
    ),
    (
        "f32[2] f32[2]",
        lambda f, a, b: f.select(a, a, b),
        "select: the condition is f32[2], expected bool",
    ),
    (
        "bool[] f32[2]",
        lambda f, c, a: f.select(c, a, a),
        "select: shapes differ: condition bool[], on_true and on_false f32[2]",
    ),
    (
        "f32[]",
        lambda f, a: f.iota(typed("i8", 200)),
        "iota: i8 does not hold 199: i8[200]",
    ),
    (
        "f32[]",
        lambda f, a: f.iota(typed("i32", 2), 1),
        "iota: axis 1 is not one of result i32[2]'s 1",
    ),
    (
        "f32[2]",
        lambda f, a: f.broadcast(a, (2, 3)),
        "broadcast: operand f32[2] axis 0 (2) does not extend to result f32[2,3] "
        "axis 1 (3)",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.broadcast(a, (3, 2), [1, 0]),
        "broadcast: axes [1,0] do not rise; transpose first",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.broadcast(a, (3,)),
        "broadcast: operand f32[2,3] has more axes than [3]",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.broadcast(a, (2, 3), [0]),
        "broadcast: axes [0] name 1 axes of operand f32[2,3], which has 2",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.reshape(a, (4, 2)),
        "reshape: operand f32[2,3] has 6 elements, result f32[4,2] 8",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.transpose(a, [0, 0]),
        "transpose: [0,0] is no permutation of operand f32[2,3]'s 2 axes",
    ),
    (
        "f32[7]",
        lambda f, a: f.slice(a, [2], [8]),
        "slice: 2:8:1 does not lie in operand f32[7] axis 0 (7)",
    ),
    (
        "f32[7]",
        lambda f, a: f.slice(a, [2], [4], [0]),
        "slice: 2:4:0 does not lie in operand f32[7] axis 0 (7)",
    ),
    (
        "f32[7]",
        lambda f, a: f.slice(a, [2, 1], [4]),
        "slice: 2 starts, 1 limits and 1 strides for operand f32[7] of 1 axes",
    ),
    (
        "f32[2,3] f32[2,4]",
        lambda f, a, b: f.concatenate([a, b], 0),
        "concatenate: operand 0 is f32[2,3], operand 1 f32[2,4]: they may differ in "
        "axis 0 only",
    ),
    (
        "f32[2]",
        lambda f, a: f.pad(a, [-1], [0]),
        "pad: low [-1] and high [0] must not be below 0; slice instead",
    ),
    (
        "f32[2] f64[]",
        lambda f, a, v: f.pad(a, [1], [0], v),
        "pad: pads f32[2] with f64[], expected f32[]",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.reverse(a, [1, 1]),
        "reverse: axes [1,1] of operand f32[2,3] repeat",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.reduce(a, "sum", [2]),
        "reduce: axis 2 is not one of operand f32[2,3]'s 2",
    ),
    (
        "f32[2,0]",
        lambda f, a: f.reduce(a, "maximum", [1]),
        "reduce: maximum of no elements: operand f32[2,0] axis 1 (0)",
    ),
    (
        "i32[2]",
        lambda f, a: f.reduce(a, "mean"),
        "reduce: mean is not defined on i32: i32[2]",
    ),
    (
        "bool[2]",
        lambda f, a: f.reduce(a, "sum"),
        "reduce: sum is not defined on bool: bool[2]",
    ),
    (
        "f64[2]",
        lambda f, a: f.reduce(a, "sum", accumulate=DType.F32),
        "reduce: f64 is not accumulated in f32",
    ),
    (
        "f16[2]",
        lambda f, a: f.scan(a, "sum", accumulate=DType.BF16),
        "scan: f16 is not accumulated in bf16",
    ),
    (
        "i32[2]",
        lambda f, a: f.scan(a, "sum", accumulate=DType.F64),
        "scan: i32 is not accumulated in f64",
    ),
    (
        "f32[]",
        lambda f, a: f.scan(a, "sum", 0),
        "scan: axis 0 is not one of operand f32[]'s 0",
    ),
    (
        "f32[2,3] f32[4,5]",
        lambda f, a, b: f.dot_general(a, b, [1], [0]),
        "dot_general: contracting extents differ: lhs f32[2,3] axis 1 (3), "
        "rhs f32[4,5] axis 0 (4)",
    ),
    (
        "f32[2,3] f32[4,3]",
        lambda f, a, b: f.dot_general(a, b, [1], [1], [0], [0]),
        "dot_general: batch extents differ: lhs f32[2,3] axis 0 (2), rhs f32[4,3] "
        "axis 0 (4)",
    ),
    (
        "f32[2,3] f32[3]",
        lambda f, a, b: f.dot_general(a, b, [0, 1], [0]),
        "dot_general: contracting axes differ in number: lhs f32[2,3] [0,1], "
        "rhs f32[3] [0]",
    ),
    (
        "f32[2,3] f32[3,3]",
        lambda f, a, b: f.dot_general(a, b, [1], [0], [1], [1]),
        "dot_general: axes [1,1] of lhs f32[2,3] repeat",
    ),
    (
        "f32[3] f16[3]",
        lambda f, a, b: f.dot_general(a, b, [0], [0]),
        "dot_general: operand dtypes differ: f32[3], f16[3]",
    ),
    (
        "f16[3] f16[3]",
        lambda f, a, b: f.dot_general(a, b, [0], [0], result=DType.F64),
        "dot_general: the result is f64, expected the operands' f16 or the "
        "accumulator's f32",
    ),
    (
        "f32[2,3] f32[4,5]",
        lambda f, a, b: f.einsum([a, b], "mk,kn->mn"),
        "einsum: specification 'mk,kn->mn': 'k' is operand 0 [2,3] axis 1 (3) and "
        "operand 1 [4,5] axis 0 (4)",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.einsum([a], "ijk->i"),
        "einsum: specification 'ijk->i': 'ijk' names 3 axes, operand 0 [2,3] has 2",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.einsum([a], "ij,jk->ik"),
        "einsum: specification 'ij,jk->ik': names 2 operands, got 1",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.einsum([a], "ij->ii"),
        "einsum: specification 'ij->ii': the result repeats 'i'",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.einsum([a], "ij->k"),
        "einsum: specification 'ij->k': no operand has the result's 'k'",
    ),
    (
        "f32[2,3]",
        lambda f, a: f.einsum([a], "i1->i"),
        "einsum: specification 'i1->i': '1' is no letter from a to z or A to Z",
    ),
    ("f32[]", lambda f, a: f.einsum([], "->"), "einsum: takes at least one operand"),
    (
        "f32[2] f32[3]",
        lambda f, a, i: f.gather(a, i),
        "gather: the indices are f32[3], expected integers",
    ),
    (
        "f32[0] i32[3]",
        lambda f, a, i: f.gather(a, i),
        "gather: operand f32[0] axis 0 has no elements",
    ),
    (
        "f32[9,4] i32[2] f32[3,4]",
        lambda f, a, i, u: f.scatter(a, i, u),
        "scatter: operand f32[9,4] at indices i32[2] along axis 0 takes updates "
        "f32[2,4], got f32[3,4]",
    ),
    (
        "bool[9] i32[2] bool[2]",
        lambda f, a, i, u: f.scatter_add(a, i, u),
        "scatter_add: is not defined on bool: bool[9]",
    ),
    ("i32[2]", lambda f, a: f.softmax(a), "softmax: is not defined on i32: i32[2]"),
    (
        "f32[2,9] i32[9]",
        lambda f, a, i: f.row_sparse_cross_entropy(a, i),
        "row_sparse_cross_entropy: logits f32[2,9] take labels of all but their last "
        "axis, got i32[9]",
    ),
    (
        "f32[2,9] f32[2]",
        lambda f, a, i: f.row_sparse_cross_entropy(a, i),
        "row_sparse_cross_entropy: the labels are f32[2], expected integers",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call([a], [], target="t")[0],
        "kernel_call: 't' has no result",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call([a], [a.type], target="t", operand_effects=[])[0],
        "kernel_call: 't' has 0 operand effects for 1 operands",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call(
            [a], [a.type], target="t", operand_effects=["write"]
        )[0],
        "kernel_call: operand 0 f32[2] is written (write) and no result aliases it",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call(
            [a], [typed("f32", 3)], target="t", result_aliases=[0]
        )[0],
        "kernel_call: result 0 f32[3] aliases operand 0 f32[2]",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call([a], [a.type], target="t", result_aliases=[1])[0],
        "kernel_call: result 0 aliases operand 1 of 1",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call(
            [a], [a.type] * 2, target="t", result_aliases=[0, 0]
        )[0],
        "kernel_call: results 0 and 1 both alias operand 0",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call([a], [a.type], target="t", result_aliases=[])[0],
        "kernel_call: 't' has 0 result aliases for 1 results",
    ),
]


@pytest.mark.parametrize(("types", "make", "message"), REFUSALS)
def test_refusal(types: str, make: Make, message: str) -> None:
    """With the op and the types, and nothing added to the program."""
    parameters = [TensorType.parse(text) for text in types.split()]
    f = Builder().begin_function("main", parameters)
    with pytest.raises(InvalidProgram) as caught:
        make(f, *f.parameters)
    assert str(caught.value) == message
    last = f.operations[-1].op if f.operations else None
    assert last is None or isinstance(last, Constant)


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda f, a: f.add(a, 1.5), InvalidType),
        (lambda f, a: f.add(a, 300), InvalidValue),
        (lambda f, a: f.add(a, True), InvalidType),
        (lambda f, a: f.add(1, 2), InvalidProgram),
        (lambda f, a: f.add(a, "x"), InvalidType),
        (lambda f, a: f.constant("x"), InvalidValue),
        (lambda f, a: f.constant([1, 2, 3], typed("i8", 2)), InvalidProgram),
        (lambda f, a: f.constant([1000], typed("i8", 1)), InvalidValue),
        (lambda f, a: f.constant([0.5], typed("i8", 1)), InvalidType),
        (lambda f, a: f.constant([1.0, 1e6], typed("f16", 2)), OverflowError),
        (lambda f, a: f.constant([1.0, 3.4e38], typed("bf16", 2)), OverflowError),
        (lambda f, a: f.constant(1e6, typed("f16", 2)), OverflowError),
        (lambda f, a: f.convert(a, "i7"), InvalidValue),
    ],
)
def test_numbers_that_a_dtype_does_not_hold_are_refused(
    make: Callable[[FunctionBuilder, Value], object], error: type[Exception]
) -> None:
    f = Builder().begin_function("main", [typed("i8", 2)])
    with pytest.raises(error):
        make(f, f.parameter(0))
    assert f.operations == []


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: TensorType("f31", (2,)), "TensorType.dtype: got 'f31'"),
        (lambda: TensorType("f32", (-1,)), "TensorType.shape: got (-1,)"),
        (lambda: TensorType("f32", (True,)), "TensorType.shape: got (True,)"),
        (lambda: TensorType("f32", (1.0,)), "TensorType.shape: got (1.0,)"),
        (lambda: TensorType("f32", "12"), "TensorType.shape: got '12'"),
        (lambda: TensorType("f32", (2**62, 2)), "TensorType.shape"),
        (lambda: TensorType.parse("f32"), "TensorType.parse: got 'f32'"),
        (lambda: TensorType.parse("f32[a]"), "TensorType.parse: got 'f32[a]'"),
        (lambda: Constant(typed("f32", 2), b"123"), "Constant.data: got '3 bytes'"),
        (lambda: Gather(-1), "Gather.axis: got -1"),
        (lambda: Reduce("average", (0,), DType.F32), "Reduce.kind: got 'average'"),
        (lambda: KernelCall("", 1, (), (), ()), "KernelCall.target: got ''"),
    ],
)
def test_values_are_checked_when_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked
        make()
    assert message in str(caught.value)
