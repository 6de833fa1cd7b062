"""Writing kernels in Python.

::

    k = KernelBuilder("accy_add_f32", threadgroup=(256, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    a = k.buffer("a", DType.F32, "read_only")
    b = k.buffer("b", DType.F32, "read_only")
    n = k.scalar("n", DType.U32)
    base = k.let("base", k.block_x.cast(DType.U64) * 256)
    with k.region(limit=n.cast(DType.I64) - base.cast(DType.I64)):
        i = base + k.thread.cast(DType.U64)
        out[i] = a[i] + b[i]
    kernel = k.build()

Statements are recorded in the order they are written. ``a[i]`` loads at that
place and names the loaded value; a variable's ``value`` is read where the
statement that uses it runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import numpy as np

from accy_async.compiler.form.expressions import (
    Builtin,
    BuiltinKind,
    Expression,
    Load,
    Name,
    Operand,
    constant,
    operands,
)
from accy_async.compiler.form.kernel import (
    Buffer,
    Kernel,
    Scalar,
    SharedArray,
    ThreadVariable,
)
from accy_async.compiler.form.operations import BinaryOperation
from accy_async.compiler.form.operators import refused_ufunc
from accy_async.compiler.form.refusals import (
    NO_PYTHON_NUMBER,
    OPERATORS,
    NoOperand,
    refuses,
)
from accy_async.compiler.form.statements import (
    Assert,
    Assign,
    Combine,
    Declare,
    For,
    If,
    Let,
    Region,
    Statement,
    Store,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue

__all__ = ["ArrayHandle", "KernelBuilder", "VariableHandle"]


_ELEMENT = "an element of it, such as a[i]"
_VALUE = "v.value to read the variable, v.set(...) to assign to it"


@refuses({**OPERATORS, **NO_PYTHON_NUMBER}, _ELEMENT)
@attrs.frozen(eq=False)
class ArrayHandle(NoOperand):
    """A buffer or shared array while its kernel is built.

    ``a[i]`` loads an element there and then, ``a[i] = x`` stores one.
    """

    meant = _ELEMENT

    name: str
    dtype: DType
    _builder: KernelBuilder = attrs.field(repr=False)

    def __getitem__(self, index: Operand) -> Expression:
        return self._builder.let(None, self.at(index))

    def __setitem__(self, index: Operand, value: Operand) -> None:
        self._builder.append(
            Store(self.name, constant(DType.U64, index), constant(self.dtype, value))
        )

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> Expression:
        raise refused_ufunc(type(self).__name__, ufunc)

    def at(self, index: Operand) -> Expression:
        """The load as an expression, made where the statement using it runs."""
        return Load(self.name, self.dtype, constant(DType.U64, index))

    def combine(
        self, operation: BinaryOperation, index: Operand, value: Operand
    ) -> None:
        """Combine an element with a value, as other threads may do; see `Combine`."""
        at, given = constant(DType.U64, index), constant(self.dtype, value)
        self._builder.append(Combine(operation, self.name, at, given))


@refuses(
    {**OPERATORS, **NO_PYTHON_NUMBER, "__bool__": "its truth value in Python"},
    _VALUE,
)
@attrs.frozen(eq=False)
class VariableHandle(NoOperand):
    """A variable while its kernel is built."""

    meant = _VALUE

    name: str
    dtype: DType
    _builder: KernelBuilder = attrs.field(repr=False)

    @property
    def value(self) -> Expression:
        """What it holds where the statement using this runs."""
        return Name(self.name, self.dtype)

    def __array_ufunc__(
        self, ufunc: np.ufunc, method: str, *inputs: object, **options: object
    ) -> Expression:
        raise refused_ufunc(type(self).__name__, ufunc)

    def set(self, value: Operand) -> None:
        """Assign a new value."""
        self._builder.append(Assign(self.name, constant(self.dtype, value)))


class KernelBuilder:
    """Records one kernel; `build` checks it and hands it over.

    Args:
        name: the kernel's.
        threadgroup: the threads of a block.
        is_approximate: whether it may be computed as `Kernel` says.

    Attributes:
        takes_neighbours: whether its threads do what `Kernel` says; False at first.
    """

    thread = Builtin(BuiltinKind.THREAD)
    thread_x = Builtin(BuiltinKind.THREAD_X)
    thread_y = Builtin(BuiltinKind.THREAD_Y)
    thread_z = Builtin(BuiltinKind.THREAD_Z)
    block_x = Builtin(BuiltinKind.BLOCK_X)
    block_y = Builtin(BuiltinKind.BLOCK_Y)
    block_z = Builtin(BuiltinKind.BLOCK_Z)
    grid_x = Builtin(BuiltinKind.GRID_X)
    grid_y = Builtin(BuiltinKind.GRID_Y)
    grid_z = Builtin(BuiltinKind.GRID_Z)

    def __init__(
        self,
        name: str,
        threadgroup: tuple[int, int, int],
        *,
        is_approximate: bool = False,
    ) -> None:
        self.name = name
        self.is_approximate = is_approximate
        self.takes_neighbours = False
        self.threadgroup = threadgroup
        self._buffers: list[Buffer] = []
        self._scalars: list[Scalar] = []
        self._shared: list[SharedArray] = []
        self._thread_variables: list[ThreadVariable] = []
        self._bodies: list[list[Statement]] = [[]]
        self._names = 0

    def buffer(self, name: str, dtype: DType, access: str) -> ArrayHandle:
        """The next buffer parameter."""
        self._buffers.append(Buffer(name, dtype, access))
        return ArrayHandle(name, dtype, self)

    def scalar(self, name: str, dtype: DType) -> Expression:
        """The next scalar parameter."""
        self._scalars.append(Scalar(name, dtype))
        return Name(name, dtype)

    def shared(self, name: str, dtype: DType, length: int) -> ArrayHandle:
        """A block-shared array of ``length`` elements."""
        self._shared.append(SharedArray(name, dtype, length))
        return ArrayHandle(name, dtype, self)

    def thread_variable(self, name: str, dtype: DType) -> VariableHandle:
        """A variable of each thread that lives across regions; zero at first."""
        self._thread_variables.append(ThreadVariable(name, dtype))
        return VariableHandle(name, dtype, self)

    def append(self, statement: Statement) -> None:
        """Record a statement at the current place."""
        self._bodies[-1].append(statement)

    def let(self, name: str | None, value: Expression) -> Expression:
        """Evaluate here and name the value; None makes up a name."""
        statement = Let(self._fresh() if name is None else name, value)
        self.append(statement)
        return Name(statement.name, value.dtype)

    def variable(self, name: str, initial: Expression) -> VariableHandle:
        """A variable of the current body, uniform or per thread as that is."""
        self.append(Declare(name, initial))
        return VariableHandle(name, initial.dtype, self)

    def require(self, condition: Expression, code: int) -> None:
        """End the launch with the status ``code`` unless the condition holds."""
        self.append(Assert(condition, code))

    @contextmanager
    def region(self, limit: Expression | int | None = None) -> Iterator[None]:
        """What the threads below ``limit`` do until the next barrier."""
        below = _limit(limit)
        with self._body() as body:
            yield
        self.append(Region(tuple(body), below))

    @contextmanager
    def when(self, condition: Expression) -> Iterator[None]:
        """Statements that run where the condition holds."""
        with self._body() as body:
            yield
        self.append(If(condition, tuple(body)))

    @contextmanager
    def otherwise(self) -> Iterator[None]:
        """Statements that run where the condition of the `when` above is false."""
        before = self._bodies[-1]
        if not before or not isinstance(before[-1], If) or before[-1].otherwise:
            raise InvalidValue("otherwise", "no when above it", "a when right above it")
        branch = before.pop()
        assert isinstance(branch, If)
        with self._body() as body:
            yield
        self.append(If(branch.condition, branch.then, tuple(body)))

    @contextmanager
    def count(
        self, name: str, begin: Operand, end: Operand, step: int = 1
    ) -> Iterator[Expression]:
        """Statements that run for every index from begin up to, not with, end.

        A number as one bound takes the other's dtype, which is the index's; of two
        integers it is u32.
        """
        if _is_integer(begin) and _is_integer(end):
            begin = constant(DType.U32, begin)
        begin, end = operands(f"bounds of count {name}", begin, end)
        with self._body() as body:
            yield Name(name, begin.dtype)
        self.append(For(name, begin, end, tuple(body), step))

    def build(self) -> Kernel:
        """The kernel recorded so far.

        Raises:
            InvalidType, InvalidValue: as `Kernel` says.
        """
        if len(self._bodies) != 1:
            raise InvalidValue("build", "an open body", "a call after its with block")
        return Kernel(
            name=self.name,
            buffers=tuple(self._buffers),
            scalars=tuple(self._scalars),
            threadgroup=self.threadgroup,
            body=tuple(self._bodies[0]),
            shared=tuple(self._shared),
            thread_variables=tuple(self._thread_variables),
            is_approximate=self.is_approximate,
            takes_neighbours=self.takes_neighbours,
        )

    @contextmanager
    def _body(self) -> Iterator[list[Statement]]:
        body: list[Statement] = []
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.pop()

    def _fresh(self) -> str:
        self._names += 1
        return f"_{self._names}"


def _is_integer(value: object) -> bool:
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def _limit(limit: object) -> Expression | None:
    if limit is None or isinstance(limit, Expression):
        return limit
    if isinstance(limit, (int, np.integer)) and not isinstance(limit, bool):
        return constant(DType.U32, int(limit))
    raise InvalidType(
        "region.limit",
        limit,
        "an int, or a uniform integer such as constant(DType.U32, 128)",
    )
