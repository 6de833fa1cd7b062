"""The shape rule of every op, and what each refuses, in words that show the types."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from accy_async.compiler.semantic import (
    Builder,
    DotGeneral,
    EinsumSpec,
    TensorType,
    Value,
)
from accy_async.dtypes import DType
from tests.semantic.making import Make, build, typed

RULES: list[tuple[str, Make, str]] = [
    ("f32[2,3] f32[2,3]", lambda f, a, b: f.add(a, b), "f32[2,3]"),
    ("i8[4]", lambda f, a: f.mul(a, 3), "i8[4]"),
    ("f16[4]", lambda f, a: f.div(1.0, a), "f16[4]"),
    ("bf16[4]", lambda f, a: f.exp(a), "bf16[4]"),
    ("bool[4]", lambda f, a: f.logical_not(a), "bool[4]"),
    ("u8[4]", lambda f, a: f.logical_not(a), "u8[4]"),
    ("f32[2] f32[2]", lambda f, a, b: f.compare(a, b, "gt"), "bool[2]"),
    ("bool[2] bool[2]", lambda f, a, b: f.compare(a, b, "ne"), "bool[2]"),
    ("bool[2] f64[2]", lambda f, c, a: f.select(c, a, 0.0), "f64[2]"),
    ("f32[2]", lambda f, a: f.convert(a, "i1"), "bool[2]"),
    ("f32[2]", lambda f, a: f.convert(a, "f32"), "f32[2]"),
    ("f32[]", lambda f, a: f.iota(typed("i32", 2, 5), 1), "i32[2,5]"),
    ("f32[]", lambda f, a: f.constant([[1, 2]], typed("f32", 3, 2)), "f32[3,2]"),
    ("f32[3]", lambda f, a: f.broadcast(a, (2, 3)), "f32[2,3]"),
    ("f32[3]", lambda f, a: f.broadcast(a, (3, 2), [0]), "f32[3,2]"),
    ("f32[1,3]", lambda f, a: f.broadcast(a, (5, 3)), "f32[5,3]"),
    ("f32[]", lambda f, a: f.broadcast(a, (0, 3)), "f32[0,3]"),
    ("f32[2,3]", lambda f, a: f.reshape(a, (3, 2)), "f32[3,2]"),
    ("f32[0,3]", lambda f, a: f.reshape(a, (7, 0)), "f32[7,0]"),
    ("f32[2,3,4]", lambda f, a: f.transpose(a), "f32[4,3,2]"),
    ("f32[2,3,4]", lambda f, a: f.transpose(a, [1, 0, 2]), "f32[3,2,4]"),
    ("f32[7]", lambda f, a: f.slice(a, [1], [7], [4]), "f32[2]"),
    ("f32[7]", lambda f, a: f.slice(a, [3], [3]), "f32[0]"),
    ("f32[2] f32[3]", lambda f, a, b: f.concatenate([a, b]), "f32[5]"),
    ("f32[2,3]", lambda f, a: f.pad(a, [1, 0], [0, 2]), "f32[3,5]"),
    ("f32[2,3]", lambda f, a: f.reverse(a, [1]), "f32[2,3]"),
    ("f32[2,3,4]", lambda f, a: f.reduce(a, "sum", [0, 2]), "f32[3]"),
    ("f32[2,3]", lambda f, a: f.reduce(a, "maximum", -1, keepdims=True), "f32[2,1]"),
    ("f16[2,3]", lambda f, a: f.reduce(a, "mean"), "f16[]"),
    ("f32[0,3]", lambda f, a: f.reduce(a, "product", [0]), "f32[3]"),
    ("bool[2,3]", lambda f, a: f.reduce(a, "minimum", [1]), "bool[2]"),
    ("i32[2,3]", lambda f, a: f.scan(a, "sum", 0, exclusive=True), "i32[2,3]"),
    ("f32[2,3] f32[3,4]", lambda f, a, b: f.matmul(a, b), "f32[2,4]"),
    (
        "f16[5,2,3] f16[3,5,4]",
        lambda f, a, b: f.dot_general(a, b, [2], [0], [0], [1], result=DType.F32),
        "f32[5,2,4]",
    ),
    ("i32[2] i32[3]", lambda f, a, b: f.dot_general(a, b, [], []), "i32[2,3]"),
    ("f32[2,3] f32[3,4]", lambda f, a, b: f.einsum([a, b], "mk,kn->mn"), "f32[2,4]"),
    ("f32[2,3]", lambda f, a: f.einsum([a], "ij->ji"), "f32[3,2]"),
    ("f32[2,3] f32[3,4]", lambda f, a, b: f.einsum([a, b], "ij,jk"), "f32[2,4]"),
    (
        "f32[2,2] f32[2] f32[5]",
        lambda f, a, b, c: f.einsum([a, b, c], "ii,i,k->k"),
        "f32[5]",
    ),
    ("f32[9,4] i32[2,3]", lambda f, a, i: f.gather(a, i), "f32[2,3,4]"),
    ("f32[9,4] u8[]", lambda f, a, i: f.gather(a, i, 1), "f32[9]"),
    (
        "f32[9,4] i64[2] f32[2,4]",
        lambda f, a, i, u: f.scatter_add(a, i, u),
        "f32[9,4]",
    ),
    ("bool[9] i64[2] bool[2]", lambda f, a, i, u: f.scatter(a, i, u), "bool[9]"),
    ("f32[2,3]", lambda f, a: f.softmax(a, 0), "f32[2,3]"),
    ("f32[2,3]", lambda f, a: f.softmax(a, log=True), "f32[2,3]"),
    (
        "f32[2,5,9] i32[2,5]",
        lambda f, a, i: f.row_sparse_cross_entropy(a, i),
        "f32[2,5]",
    ),
    (
        "f32[2]",
        lambda f, a: f.kernel_call([a], [typed("u8", 3)], target="t")[0],
        "u8[3]",
    ),
]


@pytest.mark.parametrize(("types", "make", "result"), RULES)
def test_shape_rule(types: str, make: Make, result: str) -> None:
    assert str(build(types, make).type) == result


def test_types_are_written_and_read_back() -> None:
    for text in ("f32[2,3]", "bool[]", "bf16[0,7]", "u64[1]"):
        assert str(TensorType.parse(text)) == text
    assert TensorType.parse("i1[ 2, 3 ]") == typed("bool", 2, 3)
    assert typed("f16", 2, 3, 4).strides == (12, 4, 1)
    assert typed("bool", 3).byte_size == 3
    assert typed("f64").byte_size == 8


def test_what_changes_nothing_is_not_recorded() -> None:
    f = Builder().begin_function("main", [typed("f32", 2, 3)])
    (x,) = f.parameters
    same: Sequence[Value] = [
        f.convert(x, "f32"),
        f.reshape(x, (2, 3)),
        f.transpose(x, (0, 1)),
        f.broadcast(x, (2, 3)),
        f.slice(x, [0, 0], [2, 3]),
        f.pad(x, [0, 0], [0, 0]),
        f.concatenate([x]),
    ]
    assert all(value is x for value in same)
    assert f.operations == []


def test_einsum_steps_go_from_the_left() -> None:
    """Letters that nothing needs any more are summed at once."""
    spec = EinsumSpec.parse("ab,bc,cd,de->ae")
    assert [(s.lhs, s.rhs, s.result) for s in spec.steps()] == [
        ("ab", "bc", "ac"),
        ("ac", "cd", "ad"),
        ("ad", "de", "ae"),
    ]
    lone = EinsumSpec.parse("iij,jk,l->k")
    assert [lone.simplified(i) for i in range(3)] == ["j", "jk", ""]
    assert (lone.steps()[0].batch, lone.steps()[0].contracted) == ("", "j")
    assert str(EinsumSpec.parse("ba , ac")) == "ba,ac->bc"


def test_dot_general_names_the_free_axes() -> None:
    dot = DotGeneral(DType.F32, DType.F32, (2,), (0,), (0,), (1,))
    assert dot.free_axes(typed("f32", 5, 2, 3), typed("f32", 3, 5, 4)) == ((1,), (2,))
