"""Functions and modules: valid when made, canonical when built, named by content."""

from __future__ import annotations

import pickle
from collections.abc import Callable

import attrs
import pytest

from accy_async.compiler.semantic import (
    Binary,
    BinaryKind,
    Builder,
    Constant,
    ContextLimits,
    Function,
    FunctionBuilder,
    Module,
    Operation,
    TensorType,
    Value,
    canonical,
)
from accy_async.errors import InvalidProgram, InvalidType, InvalidValue, OutOfMemory

F8 = TensorType("f32", (8,))
SCALAR = TensorType("f32")


def begin(*types: TensorType, limits: ContextLimits | None = None) -> FunctionBuilder:
    builder = Builder("test", limits or ContextLimits.STANDARD)
    return builder.begin_function("main", types)


def test_text_of_a_module() -> None:
    builder = Builder("mlp")
    f = builder.begin_function(
        "mlp",
        [builder.tensor("f32", (8, 4)), builder.tensor("f32", (4, 2))],
        parameter_names=("x", "w"),
    )
    x, w = f.parameters
    f.return_([f.tanh(f.dot_general(x, w, [1], [0]))])
    f.finish()
    assert str(builder.finish()) == (
        "module mlp {\n"
        "  func mlp(%x: f32[8,4], %w: f32[4,2]) -> (f32[8,2]) {\n"
        "    %2: f32[8,2] = dot_general %x, %w contracting=[1]x[0] accumulate=f32\n"
        "    %3: f32[8,2] = tanh %2\n"
        "    return %3\n"
        "  }\n"
        "}"
    )


def test_built_functions_are_canonical() -> None:
    """Unused operations are dropped, equal ones merged, the rest ordered."""
    f = begin(F8)
    (x,) = f.parameters
    f.exp(x)
    a = f.add(x, 1.0)
    b = f.mul(x, 2.0)
    c = f.add(x, 1.0)
    f.return_([f.sub(b, c), a])
    function = f.finish()
    assert [entry.op.opcode for entry in function.operations] == [
        "constant",
        "multiply",
        "constant",
        "add",
        "subtract",
    ]
    assert canonical(function) is function
    assert function.results[1].index == 4


def test_fingerprint_ignores_names_and_order_of_writing() -> None:
    """It names what is computed, and nothing else."""

    def build(name: str, parameter: str, *, late: bool, factor: float = 2.0) -> int:
        f = Builder(name).begin_function(name, [F8], parameter_names=[parameter])
        (x,) = f.parameters
        if late:
            a = f.add(x, 1.0)
            b = f.mul(x, factor)
        else:
            b = f.mul(x, factor)
            a = f.add(x, 1.0)
        f.return_([f.sub(a, b)])
        return f.finish().fingerprint()

    first = build("one", "x", late=True)
    assert first == build("two", "y", late=False)
    assert first != build("one", "x", late=True, factor=3.0)
    # Fixed for ever: stored artifacts are found by it.
    assert f"{first:016x}" == "a549ba2b7f21cf44"


def test_long_chains_need_no_recursion() -> None:
    f = begin(F8)
    value = f.parameter(0)
    for _ in range(5000):
        value = f.exp(value)
    f.return_([value])
    function = f.finish()
    assert len(function.operations) == 5000
    assert function.fingerprint() == canonical(function).fingerprint()


def test_kernel_calls_stay_in_order() -> None:
    """What is not pure is kept, unused or twice."""
    f = begin(F8)
    (x,) = f.parameters
    for target in ("b", "a", "a"):
        f.kernel_call([x], [F8], target=target)
    f.return_([x])
    function = f.finish()
    assert [str(entry.op.attributes())[:3] for entry in function.operations] == [
        '"b"',
        '"a"',
        '"a"',
    ]


def test_producers_and_users() -> None:
    f = begin(F8)
    (x,) = f.parameters
    y = f.mul(x, x)
    f.return_([f.exp(y)])
    function = f.finish()
    square, exp = function.operations
    assert function.users() == {x: (square,), y: (exp,), exp.result: ()}
    assert function.producers() == {y: square, exp.result: exp}
    assert function.value_count == 3


ADD = Binary(BinaryKind.ADD)


@pytest.mark.parametrize(
    ("parameters", "operations", "results", "message"),
    [
        ((Value(1, F8),), (), (), "function f: parameter 0 is %1: f32[8]"),
        (
            (Value(0, F8),),
            (Operation(ADD, (Value(0, F8), Value(2, F8)), (Value(1, F8),)),),
            (),
            "add: function f, operation 0: operand %2: f32[8]: it is made later or "
            "never",
        ),
        (
            (Value(0, F8),),
            (Operation(ADD, (Value(0, F8), Value(0, SCALAR)), (Value(1, F8),)),),
            (),
            "add: function f, operation 0: operand %0: f32[]: it is %0: f32[8]",
        ),
        (
            (Value(0, F8),),
            (Operation(ADD, (Value(0, F8),) * 2, (Value(1, SCALAR),)),),
            (),
            "add: function f, operation 0: results (f32[]), the op gives (f32[8])",
        ),
        (
            (Value(0, F8),),
            (Operation(ADD, (Value(0, F8),) * 2, (Value(2, F8),)),),
            (),
            "add: function f, operation 0: result %2: f32[8], expected index 1",
        ),
        (
            (Value(0, F8),),
            (Operation(ADD, (Value(0, F8),) * 3, (Value(1, F8),)),),
            (),
            "add: takes 2 operands, got 3",
        ),
        (
            (),
            (),
            (Value(0, F8),),
            "function f: result 0, %0: f32[8], is none of its values",
        ),
    ],
)
def test_functions_made_by_hand_are_verified(
    parameters: tuple[Value, ...],
    operations: tuple[Operation, ...],
    results: tuple[Value, ...],
    message: str,
) -> None:
    with pytest.raises(InvalidProgram) as caught:
        Function("f", parameters, operations, results)
    assert str(caught.value) == message


def test_modules_refuse_no_function_and_two_of_one_name() -> None:
    function = Function("f", (Value(0, F8),), (), (Value(0, F8),))
    with pytest.raises(InvalidProgram, match=r"module m has no function$"):
        Module("m", ())
    with pytest.raises(InvalidProgram, match="module m has two functions f"):
        Module("m", (function, function))
    module = Module("m", (function, attrs.evolve(function, name="g")))
    assert module.function("g").name == "g"
    assert module.entry.name == "f"
    with pytest.raises(InvalidProgram, match=r"has no function 'h': f, g"):
        module.function("h")


def test_programs_and_their_errors_may_be_pickled() -> None:
    f = begin(F8)
    f.return_(f.loop(2, [f.parameter(0)], lambda b, v: [b.mul(v, 2.0)]))
    function = f.finish()
    copy = pickle.loads(pickle.dumps(function))
    assert copy == function
    assert copy.fingerprint() == function.fingerprint()
    error = InvalidProgram("it is not", operation="add")
    copied = pickle.loads(pickle.dumps(error))
    assert (str(copied), copied.operation) == ("add: it is not", "add")


@pytest.mark.parametrize(
    "make",
    [
        lambda f, x: f.return_(x),
        lambda f, x: f.reshape(x, 8),
        lambda f, x: f.broadcast(x, None),
        lambda f, x: f.loop(2, [x], lambda f, x: None),
        lambda f, x: f.loop(2, [x], lambda f, x: x),
        lambda f, x: Builder("m").tensor("f32", 8),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_list_is_refused_by_name(make: Callable[..., object]) -> None:
    f = begin(F8)
    with pytest.raises(InvalidType, match=r"expected a (list|sequence) of"):
        make(f, *f.parameters)
    f.return_(f.parameters)  # nothing was recorded, and it goes on
    assert not f.finish().operations


def test_the_builder_refuses_calls_out_of_order() -> None:
    builder = Builder("m")
    with pytest.raises(InvalidProgram, match="has no function"):
        builder.finish()
    f = builder.begin_function("f", [F8], [F8])
    with pytest.raises(InvalidProgram, match="function f is not finished"):
        builder.begin_function("g", [])
    with pytest.raises(InvalidProgram, match="function f is not finished"):
        builder.finish()
    with pytest.raises(InvalidProgram, match="does not return"):
        f.finish()
    total = f.reduce(f.parameter(0), "sum")
    with pytest.raises(
        InvalidProgram, match=r"returns \(f32\[\]\), announced were \(f32\[8\]\)"
    ):
        f.return_([total])
    f.return_([f.parameter(0)])
    with pytest.raises(InvalidProgram, match="has returned already"):
        f.return_([f.parameter(0)])
    f.finish()
    with pytest.raises(InvalidProgram, match="function f is finished"):
        f.exp(f.parameter(0))
    with pytest.raises(InvalidProgram, match="function f is finished"):
        f.finish()
    builder.finish()
    with pytest.raises(InvalidProgram, match="module m is finished"):
        builder.finish()
    with pytest.raises(InvalidProgram, match="module m is finished"):
        builder.begin_function("g", [])


def test_names_are_checked_before_anything_is_written() -> None:
    with pytest.raises(InvalidValue, match=r"Builder.name: got 'a b'"):
        Builder("a b")
    builder = Builder("m")
    with pytest.raises(InvalidValue, match=r"Function.name: got ''"):
        builder.begin_function("", [F8])
    with pytest.raises(InvalidValue, match="expected 1 names"):
        builder.begin_function("f", [F8], parameter_names=["x", "y"])
    with pytest.raises(InvalidValue, match="names that do not repeat"):
        builder.begin_function("f", [F8, F8], parameter_names=["x", "x"])
    builder.begin_function("f", [F8], parameter_names=["x"])


def test_values_of_another_function_are_refused() -> None:
    f, g = begin(F8), begin(F8)
    with pytest.raises(InvalidProgram, match="no value of function main"):
        f.exp(g.parameter(0))
    with pytest.raises(InvalidProgram, match="captures"):
        f.loop(2, [f.parameter(0)], lambda b, x: [b.mul(x, f.parameter(0))])
    with pytest.raises(InvalidProgram, match="1 parameters, no number 1"):
        f.parameter(1)


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"operations": 2}, "operations: 3, the limit is 2 (ContextLimits.operations)"),
        (
            {"operands": 1},
            "operands of multiply: 2, the limit is 1 (ContextLimits.operands)",
        ),
        (
            {"constant_bytes": 7},
            "bytes of constants: 8, the limit is 7 (ContextLimits.constant_bytes)",
        ),
        (
            {"rank": 1},
            "broadcast: f32[2,8] has 2 axes, the limit is 1 (ContextLimits.rank)",
        ),
        (
            {"tensor_bytes": 32},
            "broadcast: f32[2,8] takes 64 bytes, the limit is 32 "
            "(ContextLimits.tensor_bytes)",
        ),
    ],
)
def test_limits_refuse_what_is_too_large(limits: dict[str, int], message: str) -> None:
    """With OutOfMemory, where it is added; what was there before stays usable."""
    f = begin(F8, limits=ContextLimits(**limits))
    (x,) = f.parameters

    def program() -> None:
        f.broadcast(f.add(f.mul(x, 2.0), f.mul(x, 3.0)), (2, 8))

    with pytest.raises(OutOfMemory) as caught:
        program()
    assert str(caught.value) == message
    f.return_([x])
    f.finish()


def test_limits_of_functions_parameters_and_loops() -> None:
    builder = Builder("m", ContextLimits(functions=1, parameters=1, loop_depth=1))
    with pytest.raises(OutOfMemory, match=r"parameters of f: 2, the limit is 1"):
        builder.begin_function("f", [F8, F8])
    f = builder.begin_function("f", [F8])
    (x,) = f.parameters

    def inner(b: FunctionBuilder, v: Value) -> tuple[Value, ...]:
        return b.loop(2, [v], lambda c, w: [c.exp(w)])

    with pytest.raises(OutOfMemory, match="loops within loops: 2, the limit is 1"):
        f.loop(2, [x], inner)
    f.return_(f.loop(2, [x], lambda b, v: [b.exp(v)]))
    f.finish()
    with pytest.raises(OutOfMemory, match="functions: 2, the limit is 1"):
        builder.begin_function("g", [F8])
    with pytest.raises(OutOfMemory, match=r"a tensor: f32\[1,1,1\] has 3 axes"):
        Builder("m", ContextLimits(rank=2)).tensor("f32", (1, 1, 1))


def test_a_loop_gives_its_carries() -> None:
    f = begin(F8, F8)
    x, y = f.parameters
    results = f.loop(
        4, [x, f.reduce(y, "sum")], lambda b, v, s, k: [b.mul(v, k), s], captures=[y]
    )
    assert [value.type for value in results] == [F8, SCALAR]
    with pytest.raises(InvalidProgram) as caught:
        f.loop(4, [x], lambda b, v: [b.reduce(v, "sum")])
    assert str(caught.value) == "loop: the body gives [f32[]], expected [f32[8]]"
    with pytest.raises(InvalidProgram, match=r"expected \[f32\[8\],bool\[\]\]"):
        f.loop(4, [x], lambda b, v: [v], conditional=True)


def test_a_splat_has_one_form() -> None:
    dense = Constant.of([2.0] * 8, F8)
    assert dense == Constant.of(2.0, F8)
    assert dense.is_splat
    assert not Constant.of(range(8), F8).is_splat
    assert Constant(TensorType("f32", (0,)), b"") == Constant.of(
        1.0, TensorType("f32", (0,))
    )
