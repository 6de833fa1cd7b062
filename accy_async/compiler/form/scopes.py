"""The whole-kernel check: names, scopes, accesses, and what stands where.

Types within an expression were checked when it was built; what is left needs
the kernel around it. Names are unique within a kernel, so that one name means
one thing in every message and in every emitter's output.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from accy_async.compiler.form.expressions import Builtin, Expression, Load, Name
from accy_async.compiler.form.products import TileProduct
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

__all__ = ["MAX_NESTING", "check_kernel_body"]

MAX_NESTING = 32
"""Bodies within bodies: what the checker and the emitters recurse into."""


def check_kernel_body(
    body: tuple[Statement, ...],
    *,
    arrays: Mapping[str, tuple[DType, str]],
    uniform: Mapping[str, DType],
    thread: Mapping[str, DType],
    threads: int,
    declared: Iterable[str],
) -> None:
    """Check a kernel's body against its parameters.

    Args:
        body: the kernel's statements.
        arrays: dtype and access of every buffer, and of every ``shared`` array.
        uniform: the scalar parameters.
        thread: the thread variables that live across regions.
        threads: of a block.
        declared: all of their names, repeated ones too.

    Raises:
        InvalidType, InvalidValue: as `Kernel` says.
    """
    checker = _Checker(arrays, thread, threads)
    for name in declared:
        checker.claim(name)
    checker.body(body, _Scope(uniform, (), in_region=False), 0)


class _Scope:
    """The names known at one place, and which of them may be assigned there."""

    def __init__(
        self,
        names: Mapping[str, DType],
        variables: Iterable[str],
        *,
        in_region: bool,
    ) -> None:
        self.names = dict(names)
        self.variables = set(variables)
        self.in_region = in_region

    def inner(self) -> _Scope:
        return _Scope(self.names, self.variables, in_region=self.in_region)


class _Checker:
    def __init__(
        self,
        arrays: Mapping[str, tuple[DType, str]],
        thread: Mapping[str, DType],
        threads: int,
    ) -> None:
        self._arrays = arrays
        self._thread = thread
        self._threads = threads
        self._claimed: set[str] = set()

    def claim(self, name: str) -> None:
        if name in self._claimed:
            raise InvalidValue("Kernel", name, "names that are used once in a kernel")
        self._claimed.add(name)

    def body(self, body: tuple[Statement, ...], scope: _Scope, depth: int) -> None:
        if depth > MAX_NESTING:
            raise InvalidValue(
                "Kernel.body", f"{depth} nested bodies", f"at most {MAX_NESTING}"
            )
        for statement in body:
            self._statement(statement, scope, depth)

    def _statement(self, statement: Statement, scope: _Scope, depth: int) -> None:
        match statement:
            case Let() | Declare():
                self._expression(statement.value, scope)
                self.claim(statement.name)
                scope.names[statement.name] = statement.value.dtype
                if isinstance(statement, Declare):
                    scope.variables.add(statement.name)
            case Assign():
                self._assign(statement, scope)
            case If():
                self._expression(statement.condition, scope)
                self.body(statement.then, scope.inner(), depth + 1)
                self.body(statement.otherwise, scope.inner(), depth + 1)
            case For():
                self._expression(statement.begin, scope)
                self._expression(statement.end, scope)
                self.claim(statement.name)
                inner = scope.inner()
                inner.names[statement.name] = statement.begin.dtype
                self.body(statement.body, inner, depth + 1)
            case Region():
                self._region(statement, scope, depth)
            case TileProduct():
                self._product(statement, scope)
            case Store() | Combine() | Assert():
                self._effect(statement, scope)
            case _:
                raise InvalidType(
                    "Kernel.body", statement, "a statement of the kernel form"
                )

    def _assign(self, statement: Assign, scope: _Scope) -> None:
        self._expression(statement.value, scope)
        name = statement.name
        if name not in scope.variables:
            where = "a region" if scope.in_region else "uniform code"
            raise InvalidValue(
                "Assign.name", name, f"a variable that {where} may assign here"
            )
        if scope.names[name] is not statement.value.dtype:
            raise InvalidType(
                f"Assign to {name}", statement.value.dtype, f"{scope.names[name]}"
            )

    def _region(self, region: Region, scope: _Scope, depth: int) -> None:
        if scope.in_region:
            raise InvalidValue("Region", "a region in a region", "regions side by side")
        if region.limit is not None:
            self._expression(region.limit, scope)
        names = {**scope.names, **self._thread}
        self.body(region.body, _Scope(names, self._thread, in_region=True), depth + 1)

    def _product(self, product: TileProduct, scope: _Scope) -> None:
        if scope.in_region:
            raise InvalidValue("TileProduct", "a region", "uniform code around it")
        if product.tile.threads != self._threads:
            raise InvalidValue(
                "TileProduct.tile",
                f"{product.tile.threads} threads",
                f"the block's {self._threads}",
            )
        for place in product.places:
            self._expression(place, scope)
        for operand in product.operands:
            dtype = self._array(operand.buffer, "write_only", "read")
            if dtype is not operand.dtype:
                raise InvalidType(
                    f"TileProduct of {operand.buffer}", operand.dtype, dtype
                )
        for name in product.sums:
            if self._thread.get(name) is not DType.F32:
                raise InvalidValue("TileProduct.sums", name, "thread variables of f32")
        if len(set(product.sums)) != len(product.sums):
            raise InvalidValue("TileProduct.sums", product.sums, "each name once")

    def _effect(self, statement: Store | Combine | Assert, scope: _Scope) -> None:
        kind = type(statement).__name__
        if not scope.in_region:
            raise InvalidValue(kind, "uniform code", "a region around it")
        if isinstance(statement, Assert):
            self._expression(statement.condition, scope)
            return
        self._expression(statement.index, scope)
        self._expression(statement.value, scope)
        dtype = self._array(statement.array, "read_only", "written")
        if isinstance(statement, Combine):
            self._array(statement.array, "write_only", "read")
            self._array(statement.array, "shared", "combined")
        if statement.value.dtype is not dtype:
            raise InvalidType(
                f"{kind} to {statement.array}", statement.value.dtype, dtype.value
            )

    def _array(self, name: str, refused: str, verb: str) -> DType:
        if name not in self._arrays:
            raise InvalidValue("Kernel", name, "a buffer or shared array of the kernel")
        dtype, access = self._arrays[name]
        if access == refused:
            raise InvalidValue(f"buffer {name}", access, f"a buffer that may be {verb}")
        return dtype

    def _expression(self, expression: Expression, scope: _Scope) -> None:
        for part in expression.walk():
            if isinstance(part, Name):
                if part.name not in scope.names:
                    raise InvalidValue("Name", part.name, "a name known here")
                if scope.names[part.name] is not part.dtype:
                    raise InvalidType(
                        f"Name {part.name}", part.dtype, f"{scope.names[part.name]}"
                    )
            elif isinstance(part, Load):
                dtype = self._array(part.array, "write_only", "read")
                if dtype is not part.dtype:
                    raise InvalidType(f"Load from {part.array}", part.dtype, f"{dtype}")
            elif (
                isinstance(part, Builtin)
                and not part.which.is_uniform
                and not scope.in_region
            ):
                raise InvalidValue(
                    "Builtin", part.which.value, "a uniform value outside regions"
                )
