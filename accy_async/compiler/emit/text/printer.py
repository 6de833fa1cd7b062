"""The statements of a kernel as C-like text; what is the same in every language.

Every thread runs the text by itself: uniform code with the same values, a region as
a branch for the threads below its limit, with the barriers of `barriers`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from accy_async.compiler.emit.atomics import ATOMIC_WORDS
from accy_async.compiler.emit.barriers import plan_barriers
from accy_async.compiler.emit.text.dialect import Dialect, unsigned
from accy_async.compiler.emit.text.names import Names
from accy_async.compiler.emit.text.operations import Operations, bare, nesting
from accy_async.compiler.form import (
    Assert,
    Assign,
    Binary,
    Bitcast,
    Builtin,
    BuiltinKind,
    Cast,
    Combine,
    Compare,
    Constant,
    Declare,
    Expression,
    For,
    If,
    Kernel,
    Let,
    Load,
    MultiplyAdd,
    Name,
    Region,
    Select,
    Statement,
    Store,
    TileProduct,
    Unary,
)
from accy_async.compiler.form.traversal import every_statement
from accy_async.dtypes import DType

__all__ = ["KernelPrinter", "has_assert"]

_MAX_NESTING = 32
"""Parentheses in parentheses. Clang, and so Metal, takes 256, all braces around them
among these."""


def has_assert(body: Iterable[Statement]) -> bool:
    """Whether a launch of the statements may end early."""
    return any(isinstance(statement, Assert) for statement in every_statement(body))


class KernelPrinter(ABC):
    """Prints the body of one kernel; a language adds what is around it.

    Attributes:
        stops: whether a thread whose assertion failed must go on to the barriers,
            doing nothing, because the language cannot end the launch.
    """

    stops = True

    def __init__(
        self, kernel: Kernel, dialect: Dialect, operations: Operations
    ) -> None:
        self.kernel = kernel
        self.dialect = dialect
        self.operations = operations
        self.names = Names()
        self.plan = plan_barriers(kernel)
        self.asserts = has_assert(kernel.body)
        self._arrays = {array.name: array.dtype for array in kernel.buffers}
        self._shared = {array.name for array in kernel.shared}
        self._arrays |= {array.name: array.dtype for array in kernel.shared}
        self._lines: list[str] = []
        self._depth = 1
        self._numbers = 0

    @abstractmethod
    def barrier(self) -> str:
        """The statement at which the threads of a block meet."""

    @abstractmethod
    def combine(self, word: str, place: str, value: str, kind: str) -> str:
        """The statement that combines a buffer's element with a value in one step.

        Args:
            word: the operation's, of `ATOMIC_WORDS`.
            place: the element.
            value: what it is combined with.
            kind: the type of both.
        """

    @abstractmethod
    def fail(self, code: int) -> list[str]:
        """The statements that report a failed assertion."""

    def body(self) -> list[str]:
        """The lines of the kernel's body, indented."""
        for variable in self.kernel.thread_variables:
            kind = self.operations.register(variable.dtype)
            name = self.names.of(variable.name)
            self.line(f"{kind} {name} = {kind}(0);")
        if self.asserts and self.stops:
            self.line("bool stopped = false;")
        self._body(self.kernel.body)
        return self._lines

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self._lines.append(f"{'    ' * self._depth}{text}")

    @contextmanager
    def block(self, head: str) -> Iterator[None]:
        """What stands in braces behind ``head``, which may be nothing."""
        self.line(f"{head} {{".lstrip())
        self._depth += 1
        yield
        self._depth -= 1
        self.line("}")

    def fresh(self, hint: str) -> str:
        """A name for a value of the printer's own."""
        self._numbers += 1
        return f"{hint}{self._numbers}"

    def _body(self, body: tuple[Statement, ...]) -> None:
        for place, statement in enumerate(body):
            if self.plan.stands_before(statement):
                self.line(self.barrier())
            self._statement(statement)
            rest = body[place + 1 :]
            if rest and self._may_stop_here(statement):
                with self.block("if (!stopped)"):
                    self._body(rest)
                return

    def _may_stop_here(self, statement: Statement) -> bool:
        """Whether what follows in the same body is skipped by a stopped thread."""
        within = every_statement((statement,))
        in_region = not any(isinstance(inner, Region) for inner in within)
        return self.stops and in_region and has_assert((statement,))

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let(name=name, value=value):
                kind, text = self.operations.register(value.dtype), self.value(value)
                self.line(f"const {kind} {self.names.of(name)} = {bare(text)};")
            case Declare(name=name, value=value):
                kind, text = self.operations.register(value.dtype), self.value(value)
                self.line(f"{kind} {self.names.of(name)} = {bare(text)};")
            case Assign(name=name, value=value):
                self.line(f"{self.names.of(name)} = {bare(self.value(value))};")
            case Store():
                self._store(statement)
            case Combine():
                self._combine(statement)
            case Assert(condition=condition, code=code):
                with self.block(f"if (!{self.value(condition)})"):
                    for line in self.fail(code):
                        self.line(line)
            case If():
                self._if(statement)
            case For():
                self._for(statement)
            case Region():
                self._region(statement)
            case TileProduct():
                self.tile_product(statement)
            case _:
                raise AssertionError(f"no printer for {type(statement).__name__}")

    def tile_product(self, statement: TileProduct) -> None:
        """Print a product of tiles, in languages that have units for it."""
        raise AssertionError(f"no units in {self.dialect.name} for {statement.tile}")

    def _store(self, statement: Store) -> None:
        place = self._element(statement.array, statement.index)
        dtype, text = self._arrays[statement.array], self.value(statement.value)
        shared = statement.array in self._shared
        element = self.dialect.element(dtype, shared=shared)
        if dtype is DType.BOOL:
            text = f"{self.operations.register(DType.U32)}({bare(text)})"
            dtype = DType.U32
        if element != self.dialect.register(dtype):
            text = f"{element}({bare(text)})"
        self.line(f"{place} = {bare(text)};")

    def _combine(self, statement: Combine) -> None:
        place = self._element(statement.array, statement.index)
        value = bare(self.value(statement.value))
        kind = self.operations.register(statement.value.dtype)
        self.line(self.combine(ATOMIC_WORDS[statement.operation], place, value, kind))

    def _if(self, statement: If) -> None:
        with self.block(f"if ({bare(self.value(statement.condition))})"):
            self._body(statement.then)
        if statement.otherwise:
            with self.block("else"):
                self._body(statement.otherwise)

    def _for(self, statement: For) -> None:
        """A loop of the exact number of rounds, whose index cannot wrap."""
        dtype, operations = statement.begin.dtype, self.operations
        kind, word = operations.register(dtype), operations.register(unsigned(dtype))
        name = self.names.of(statement.name)
        begin, end = bare(self.value(statement.begin)), self.value(statement.end)
        last = self.fresh("end")
        self.line(f"const {kind} {last} = {bare(end)};")
        going = "!stopped && " if self._may_stop_here(statement) else ""
        if statement.step == 1:
            head = f"{kind} {name} = {begin}; {going}{name} < {last}; ++{name}"
            with self.block(f"for ({head})"):
                self._body(statement.body)
            return
        first, rounds, count = map(self.fresh, ("begin", "rounds", "round"))
        step = f"{word}({statement.step})"
        self.line(f"const {kind} {first} = {begin};")
        span = f"{word}({last}) - {word}({first})"
        self.line(
            f"const {word} {rounds} = {first} < {last} ? "
            f"({span} - {word}(1)) / {step} + {word}(1) : {word}(0);"
        )
        head = f"{word} {count} = {word}(0); {going}{count} < {rounds}; ++{count}"
        with self.block(f"for ({head})"):
            index = f"{kind}({word}({first}) + {count} * {step})"
            self.line(f"const {kind} {name} = {index};")
            self._body(statement.body)

    def _region(self, region: Region) -> None:
        conditions = ["!stopped"] if self.stops and self.asserts else []
        limited = self._limited(region)
        within = self.plan.stands_within(region)
        if limited is not None and within:
            active = self.fresh("active")
            self.line(f"const bool {active} = {limited};")
            limited = active
        if limited is not None:
            conditions.append(limited)
        if within:
            self.line(self.barrier())
        with self.block(f"if ({' && '.join(conditions)})" if conditions else ""):
            self._body(region.body)

    def _limited(self, region: Region) -> str | None:
        """The condition that a region's limit makes; None where all take part."""
        limit = region.limit
        if limit is None:
            return None
        if isinstance(limit, Constant) and limit.scalar.value >= self.kernel.threads:
            return None
        thread = self.dialect.builtins[BuiltinKind.THREAD]
        text, kind = self.value(limit), self.operations.register(limit.dtype)
        if kind != self.dialect.register(DType.U32):
            thread = f"{kind}({thread})"
        return f"{thread} < {text}"

    def value(self, expression: Expression) -> str:
        """An expression; in parentheses unless it binds tighter than any operator.

        One that is nested too deeply is named, in a line before, and the name given.
        """
        text = self._spelled(expression)
        if nesting(text) <= _MAX_NESTING:
            return text
        name, kind = self.fresh("part"), self.operations.register(expression.dtype)
        self.line(f"const {kind} {name} = {bare(text)};")
        return name

    def _spelled(self, expression: Expression) -> str:
        operations = self.operations
        match expression:
            case Constant(scalar=scalar):
                return operations.constant(scalar)
            case Name(name=name):
                return self.names.of(name)
            case Builtin(which=which):
                return self.dialect.builtins[which]
            case Load():
                return self._load(expression)
            case Unary(operation=operation, value=value):
                return operations.unary(operation, value.dtype, self.value(value))
            case Binary(left=left, right=right):
                return operations.binary(
                    expression, self.value(left), self.value(right)
                )
            case MultiplyAdd(left=left, right=right, addend=addend):
                parts = (bare(self.value(part)) for part in (left, right, addend))
                return f"fma({', '.join(parts)})"
            case Compare(comparison=comparison, left=left, right=right):
                a, b = self.value(left), self.value(right)
                return operations.compare(comparison, left.dtype, a, b)
            case Select(condition=condition, then=then, otherwise=otherwise):
                test = self.value(condition)
                return f"({test} ? {self.value(then)} : {self.value(otherwise)})"
            case Cast(target=target, value=value):
                return operations.cast(value.dtype, target, self.value(value))
            case Bitcast(target=target, value=value):
                return operations.bitcast(value.dtype, target, self.value(value))
            case _:
                raise AssertionError(f"no printer for {type(expression).__name__}")

    def _load(self, load: Load) -> str:
        element = self._element(load.array, load.index)
        shared = load.array in self._shared
        if load.kind is DType.BOOL:
            return f"({self.operations.register(DType.U32)}({element}) != 0u)"
        kind = self.operations.register(load.kind)
        if self.dialect.element(load.kind, shared=shared) == kind:
            return element
        return f"{kind}({element})"

    def _element(self, array: str, index: Expression) -> str:
        return f"{self.array(array)}[{self._index(index)}]"

    def array(self, name: str) -> str:
        """What a buffer or shared array is called."""
        return self.names.of(name)

    def _index(self, index: Expression) -> str:
        if isinstance(index, Constant):
            value = int(index.scalar.value)
            return f"{value}{'u' if 0 <= value < 2**32 else ''}"
        text = bare(self.value(index))
        if self.dialect.wide_indices or index.dtype is DType.U32:
            return text
        return f"{self.operations.register(DType.U32)}({text})"
