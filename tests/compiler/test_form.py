"""The kernel form refuses what no emitter could give a meaning."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from accy_async.compiler.form import (
    Assert,
    Assign,
    Binary,
    BinaryOperation,
    Buffer,
    Combine,
    Constant,
    Declare,
    Expression,
    For,
    If,
    Kernel,
    KernelBuilder,
    Let,
    Load,
    Name,
    Region,
    Scalar,
    Select,
    SharedArray,
    Store,
    ThreadVariable,
    constant,
    exp,
    maximum,
    minimum,
    select,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue, OutOfRange

F16, F32, I8, I32, U32 = DType.F16, DType.F32, DType.I8, DType.I32, DType.U32
BOOL = DType.BOOL
ADD = BinaryOperation.ADD


def name(dtype: DType, called: str = "x") -> Expression:
    return Name(called, dtype)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: name(F32) + name(I32), "add: got 'f32 and i32'"),
        (lambda: name(F16) + name(F16), "add.*f16.*cast to f32 first"),
        (lambda: name(BOOL) + name(BOOL), "add.*bool"),
        (lambda: name(F32) % name(F32), "remainder.*f32"),
        (lambda: name(F32) << name(F32), "shift_left.*f32"),
        (lambda: name(F32) & name(F32), "and.*f32"),
        (lambda: name(BOOL) < name(BOOL), "less.*bool"),
        (lambda: name(DType.BF16).equals(name(DType.BF16)), "equals.*bf16"),
        (lambda: ~name(F32), "not.*f32"),
        (lambda: -name(BOOL), "negate.*bool"),
        (lambda: Combine(ADD, "a", name(U32), name(F32)), "Combine of a.*f32.*u32"),
        (lambda: exp(name(I32)), "exp.*i32"),
        (lambda: name(I32).cast(BOOL), r"cast.*i32 to bool.*differs\(0\)"),
        (lambda: name(DType.F64).cast(F16), "cast.*f64 to f16.*through f32"),
        (lambda: name(I32).bitcast(F16), "bitcast.*i32 to f16"),
        (lambda: name(BOOL).bitcast(I8), "bitcast.*bool to i8"),
        (lambda: select(name(I32), name(F32), 0.0), "condition of select.*i32"),
        (lambda: select(name(BOOL), name(F32), name(I32)), "select.*f32 and i32"),
        (lambda: Load("a", F32, name(F32)), "index of a.*f32"),
        (lambda: Store("a", name(BOOL), name(F32)), "index of a.*bool"),
        (lambda: If(name(U32), ()), "condition of if.*u32"),
        (lambda: Assert(name(U32), 1), "condition of assert.*u32"),
        (lambda: For("i", name(F32), name(F32), ()), "begin of for i.*f32"),
        (lambda: For("i", name(I32), name(U32), ()), "bounds of for i.*i32 and u32"),
        (lambda: For("i", name(I8), name(I8), (), 128), "step of for i.*128"),
        (lambda: Region((), name(F32)), "limit of region.*f32"),
        (lambda: name(F32) + "1", r"ScalarArgument\.f32.*'1'"),  # type: ignore[operator]
        (lambda: name(I32) + 1.5, r"ScalarArgument\.i32.*1\.5"),
        (lambda: Binary(BinaryOperation.ADD, name(I32), 1), r"Binary\.right"),  # type: ignore[arg-type]
        (lambda: Select(name(BOOL), None, name(I32)), r"Select\.then"),  # type: ignore[arg-type]
        (lambda: bool(name(BOOL)), "known only on the device"),
    ],
)
def test_ill_typed_parts_are_refused_when_built(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(InvalidType, match=message):
        make()


K = KernelBuilder("k", (256, 1, 1))
ARRAY = K.buffer("a", F32, "read_write")
VARIABLE = K.variable("v", constant(F32, 0.0))
X: Any = name(F32)
U: Any = name(U32)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: X**2, r"'\*\*', expected products, such as x \* x"),
        (lambda: 2**X, r"'\*\*'"),
        (lambda: X // 2, "'//', expected /"),
        (lambda: X @ X, "'@'"),
        (lambda: divmod(U, 2), "divmod"),
        (lambda: math.sqrt(X), r"float\(\).*only on the device"),
        (lambda: math.floor(X), r"math.floor\(\).*only on the device"),
        (lambda: round(X), "round"),
        (lambda: range(U), "Python integer"),
        (lambda: list(X), "iterating"),
        (lambda: max(X, 0.0), "truth value.*& and |"),
        (lambda: np.sqrt(X), r"'numpy.sqrt', expected sqrt\(...\) of the kernel form"),
        (lambda: np.add(X, X), "'numpy.add'"),
        (lambda: np.add.reduce(X), "'numpy.add'"),
        (lambda: np.float32(2) == X, r"'numpy.equal', expected x.equals"),
        (lambda: np.ones(3, np.float32) * X, r"ScalarArgument\.f32"),
        (lambda: X * np.ones(3, np.float32), r"ScalarArgument\.f32"),
        (lambda: sum(cast("Any", ARRAY)), "iterating"),
        (lambda: cast("Any", ARRAY) + 1, "'\\+'.*element of it, such as a"),
        (lambda: X + ARRAY, "operand: got ArrayHandle.*such as a"),
        (lambda: X + VARIABLE, r"operand: got VariableHandle.*v\.value"),
        (lambda: cast("Any", VARIABLE) + 1, r"'\+'.*v\.value"),
        (lambda: bool(VARIABLE), r"truth value.*v\.value"),
        (lambda: np.exp(cast("Any", VARIABLE)), r"'numpy.exp', expected exp"),
        (lambda: np.exp(cast("Any", ARRAY)), r"'numpy.exp', expected exp"),
        (
            lambda: exp(cast("Any", 2.0)),
            r"Unary\.value: got 2\.0.*constant\(dtype, n\)",
        ),
        (lambda: select(name(BOOL), 0.0, 1.0), r"select: got.*constant\(dtype, n\)"),
        (lambda: select(cast("Any", X == 1), X, X), r"x\.equals\(y\)"),
        (lambda: K.let("l", cast("Any", 3)), r"Let\.value: got 3.*constant"),
        (lambda: K.variable("w", cast("Any", 3)), r"Declare\.value: got 3.*constant"),
        (lambda: K.count("i", 0, 5.0).__enter__(), "bounds of count i.*constant"),
        (
            lambda: constant(cast("Any", 128), cast("Any", U32)),
            r"constant\.dtype: got 128.* a DType; write constant\(dtype, value\)",
        ),
    ],
)
def test_python_that_the_form_has_not_got_is_refused(
    make: Callable[[], object], message: str
) -> None:
    """With an error of ours, which says what to write instead."""
    with pytest.raises(InvalidType, match=message):
        make()


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (lambda: +X, X),
        (lambda: np.float32(2) * X, constant(F32, 2.0) * X),
        (lambda: np.float32(2) - X, constant(F32, 2.0) - X),
        (lambda: np.float32(2) < X, X > 2.0),
        (lambda: np.uint32(2) << U, constant(U32, 2) << U),
        (lambda: 2 % U, constant(U32, 2) % U),
        (lambda: 2 & U, constant(U32, 2) & U),
        (lambda: 2 | U, constant(U32, 2) | U),
        (lambda: 2 ^ U, constant(U32, 2) ^ U),
        (lambda: 2 << U, constant(U32, 2) << U),
        (lambda: 2 >> U, constant(U32, 2) >> U),
        (lambda: minimum(0.0, X), minimum(constant(F32, 0.0), X)),
        (lambda: maximum(X, 0.0), maximum(X, constant(F32, 0.0))),
        (lambda: select(X < 1, 0.0, X), select(X < 1, constant(F32, 0.0), X)),
    ],
)
def test_number_on_either_side_takes_the_other_operands_dtype(
    made: Callable[[], Expression], expected: Expression
) -> None:
    assert made() == expected


@pytest.mark.parametrize("limit", [128, np.uint32(128), constant(U32, 128)])
def test_limit_of_a_region_may_be_a_number(limit: Any) -> None:
    k = KernelBuilder("k", (256, 1, 1))
    with k.region(limit=limit):
        pass
    assert k.build().body == (Region((), constant(U32, 128)),)


@pytest.mark.parametrize("limit", [True, 2.5, "128", VARIABLE])
def test_limit_of_a_region_that_is_no_integer_is_refused(limit: Any) -> None:
    k = KernelBuilder("k", (256, 1, 1))
    with (
        pytest.raises(InvalidType, match=r"region\.limit.*constant\(DType\.U32, 128\)"),
        k.region(limit=limit),
    ):
        pass


def test_two_numbers_as_bounds_of_a_count_are_of_u32() -> None:
    k = KernelBuilder("k", (256, 1, 1))
    with k.count("step", 0, 8) as step:
        assert step.dtype is U32
    assert k.build().body == (For("step", constant(U32, 0), constant(U32, 8), (), 1),)
    with pytest.raises(OutOfRange), k.count("down", -1, 8):
        pass


def test_number_as_one_bound_of_a_count_takes_the_others_dtype() -> None:
    k = KernelBuilder("k", (256, 1, 1))
    n = k.scalar("n", DType.I64)
    with k.count("up", 0, n) as up, k.count("down", n, 100, 2) as down:
        assert (up.dtype, down.dtype) == (DType.I64, DType.I64)
    inner = For("down", n, constant(DType.I64, 100), (), 2)
    assert k.build().body == (For("up", constant(DType.I64, 0), n, (inner,)),)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: name(I8) + 128, r"ScalarArgument\.i8.*128"),
        (lambda: constant(U32, -1), r"ScalarArgument\.u32.*-1"),
        (lambda: name(F32) * 1e39, r"ScalarArgument\.f32.*1e\+39"),
    ],
)
def test_numbers_that_the_dtype_does_not_hold_are_refused(
    make: Callable[[], object], message: str
) -> None:
    with pytest.raises(OutOfRange, match=message):
        make()


ZERO, ONE = constant(I32, 0), constant(I32, 1)
TRUE = constant(BOOL, True)
THREAD = KernelBuilder.thread
STORE = Store("out", ZERO, ZERO)


def nested(depth: int) -> If | Let:
    return If(TRUE, (nested(depth - 1),)) if depth else Let("deep", ZERO)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ((STORE,), "Store.*uniform code.*a region"),
        ((Assert(TRUE, 1),), "Assert.*uniform code"),
        ((Region((Region(()),)),), "a region in a region"),
        ((Let("a", THREAD),), "Builtin.*thread.*uniform value"),
        ((Region((), THREAD),), "Builtin.*thread"),
        ((If((THREAD < 3), ()),), "Builtin.*thread"),
        ((For("i", THREAD, THREAD, ()),), "Builtin.*thread"),
        ((Let("a", name(I32, "kept")),), "Name.*kept"),
        ((Let("a", name(I32, "who")),), "Name.*who.*known here"),
        ((Region((Let("a", ZERO),)), Let("b", name(I32, "a"))), "Name.*'a'"),
        ((If(TRUE, (Let("a", ZERO),), (Let("b", name(I32, "a")),)),), "Name.*'a'"),
        ((Let("a", ZERO), Let("a", ZERO)), "'a'.*used once"),
        ((Let("n", ZERO),), "'n'.*used once"),
        ((For("out", ZERO, ONE, ()),), "'out'.*used once"),
        ((Let("a", name(F32, "n")),), "Name n.*f32.*i32"),
        ((Region((Store("source", ZERO, ZERO),)),), "source.*read_only.*written"),
        ((Let("a", Load("out", I32, ZERO)),), "out.*write_only.*read"),
        ((Let("a", Load("gone", I32, ZERO)),), "'gone'"),
        ((Let("a", Load("source", F32, ZERO)),), "Load from source.*f32.*i32"),
        ((Region((Store("tile", ZERO, ZERO),)),), "Store to tile.*i32.*f32"),
        ((Combine(ADD, "both", ZERO, ZERO),), "Combine.*uniform code.*a region"),
        (
            (Region((Combine(ADD, "both", ZERO, constant(U32, 0)),)),),
            "Combine to both.*u32.*i32",
        ),
        ((Region((Combine(ADD, "out", ZERO, ZERO),)),), "out.*write_only.*read"),
        ((Region((Combine(ADD, "source", ZERO, ZERO),)),), "source.*written"),
        ((Region((Combine(ADD, "tile", ZERO, ZERO),)),), "tile.*shared.*combined"),
        ((Assign("n", ZERO),), r"Assign\.name.*'n'"),
        ((Let("a", ZERO), Assign("a", ZERO)), r"Assign\.name.*'a'"),
        ((For("i", ZERO, ONE, (Assign("i", ZERO),)),), r"Assign\.name.*'i'"),
        ((Declare("v", ZERO), Region((Assign("v", ZERO),))), r"Assign\.name.*region"),
        ((Assign("kept", ZERO),), r"Assign\.name.*'kept'.*uniform"),
        ((Declare("v", ZERO), Assign("v", TRUE)), "Assign to v.*bool.*i32"),
        ((nested(33),), "33 nested bodies"),
    ],
)
def test_statements_that_cannot_stand_where_they_do_are_refused(
    body: tuple[object, ...], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        kernel(body=body)


def kernel(**changed: object) -> Kernel:
    fields: dict[str, object] = {
        "name": "k",
        "buffers": (
            Buffer("out", I32, "write_only"),
            Buffer("source", I32, "read_only"),
            Buffer("both", I32, "read_write"),
        ),
        "scalars": (Scalar("n", I32),),
        "threadgroup": (8, 1, 1),
        "body": (Region((STORE,)),),
        "shared": (SharedArray("tile", F32, 8),),
        "thread_variables": (ThreadVariable("kept", I32),),
    }
    return Kernel(**{**fields, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"name": "a b"}, r"Kernel\.name"),
        ({"threadgroup": (0, 1, 1)}, r"Kernel\.threadgroup"),
        ({"threadgroup": (1025, 1, 1)}, r"Kernel\.threadgroup"),
        ({"threadgroup": (8, 1)}, r"Kernel\.threadgroup"),
        ({"threadgroup": (8, 1, True)}, r"Kernel\.threadgroup"),
        ({"body": [STORE]}, r"Kernel\.body"),
        ({"body": ("store",)}, r"Kernel\.body"),
        ({"shared": (SharedArray("tile", F32, 12_289),)}, "49168 bytes"),
        ({"scalars": (Scalar("out", I32),)}, "'out'.*used once"),
        (
            {
                "thread_variables": tuple(
                    ThreadVariable(f"v{i}", I32) for i in range(161)
                )
            },
            r"Kernel\.thread_variables.*161",
        ),
        ({"scalars": tuple(Scalar(f"s{i}", I32) for i in range(254))}, "257.*256"),
    ],
)
def test_kernels_that_no_device_takes_are_refused(
    changed: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidValue, match=message):
        kernel(**changed)


def test_expressions_have_a_bounded_size_however_they_share() -> None:
    value = name(I32)
    with pytest.raises(InvalidValue, match="at most 256; name its parts with let"):
        for _ in range(9):
            value = value + value


def test_kernels_are_values_that_tell_constants_apart_by_their_bits() -> None:
    assert kernel() == kernel()
    assert hash(kernel()) == hash(kernel())
    assert constant(F32, 0.0) != constant(F32, -0.0)
    assert constant(F32, float("nan")) == constant(F32, float("nan"))
    assert constant(I32, 1) != constant(U32, 1)
    assert isinstance(constant(F32, 1), Constant)


def test_signature_says_what_the_kernel_takes() -> None:
    signature = kernel().signature
    assert signature.entry_name == "k"
    assert [(b.dtype, b.access) for b in signature.buffers] == [
        (I32, "write_only"),
        (I32, "read_only"),
        (I32, "read_write"),
    ]
    assert signature.scalars == (I32,)
    assert signature.threadgroup == (8, 1, 1)
    assert signature.shared_bytes == 32


def test_builder_refuses_an_otherwise_without_its_when() -> None:
    k = KernelBuilder("k", (8, 1, 1))
    with pytest.raises(InvalidValue, match="otherwise"), k.otherwise():
        pass
    with k.when(TRUE):
        pass
    with k.otherwise():
        k.let("a", ZERO)
    with pytest.raises(InvalidValue, match="otherwise"), k.otherwise():
        pass


def test_builder_refuses_to_build_inside_a_body_and_drops_a_failed_one() -> None:
    k = KernelBuilder("k", (8, 1, 1))
    with k.region(), pytest.raises(InvalidValue, match="open body"):
        k.build()
    with pytest.raises(KeyError), k.region():
        raise KeyError
    assert k.build().body == (Region(()),)
