"""The statements and expressions of a kernel as LLVM instructions.

What is the same on every device: uniform code and the bodies of regions are
written alike. How threads come about, where parameters come from and what a
failed assertion does is each target's own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from accy_async.compiler.emit import arithmetic
from accy_async.compiler.emit.approximate import FAST_FLAGS
from accy_async.compiler.emit.atomics import ATOMIC_WORDS
from accy_async.compiler.emit.metadata import Metadata
from accy_async.compiler.emit.writer import (
    FunctionWriter,
    literal,
    memory_type,
    value_type,
)
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
    Unary,
    UnaryOperation,
)
from accy_async.dtypes import DType

__all__ = ["KernelBody"]


class KernelBody(ABC):
    """Writes the statements of one kernel.

    Args:
        kernel: the kernel.
        externals: collects the declarations of what the code calls.
        metadata: the module's.
        converts_halves: whether the target converts between f16 and f32.

    Attributes:
        _values: what names stand for: parameters, lets, loop indices.
        _slots: the stack slots of variables.
        _arrays: each array's typed address, ``ptr %x``, and dtype.
    """

    def __init__(
        self,
        kernel: Kernel,
        externals: set[str],
        metadata: Metadata,
        *,
        converts_halves: bool,
    ) -> None:
        self._kernel = kernel
        self._writer = FunctionWriter(externals)
        self._metadata = metadata
        self._native_halves = converts_halves
        self._values: dict[str, str] = {}
        self._slots: dict[str, str] = {}
        self._arrays: dict[str, tuple[str, DType]] = {}
        self._builtins: dict[BuiltinKind, str] = {}
        self._shared = {array.name for array in kernel.shared}

    _scope = ""
    """Who else may combine what a thread combines, in LLVM's words; "" for all."""

    @abstractmethod
    def _assert(self, statement: Assert) -> None:
        """End the thread where the condition is false."""

    @abstractmethod
    def _region(self, region: Region) -> None:
        """Run the region's body for the threads that take part."""

    def _body(self, body: tuple[Statement, ...]) -> None:
        for statement in body:
            self._statement(statement)

    def _statement(self, statement: Statement) -> None:
        match statement:
            case Let():
                self._values[statement.name] = self._value(statement.value)
            case Declare():
                kind = value_type(statement.value.dtype)
                size = statement.value.dtype.size_bytes
                self._slots[statement.name] = self._writer.slot(kind, size)
                self._assign(statement.name, statement.value)
            case Assign():
                self._assign(statement.name, statement.value)
            case Store():
                self._store(statement)
            case Combine():
                self._combine(statement)
            case Assert():
                self._assert(statement)
            case If():
                self._if(statement)
            case For():
                self._for(statement)
            case Region():
                self._region(statement)
            case _:
                raise AssertionError(f"no emitter for {type(statement).__name__}")

    def _assign(self, name: str, value: Expression) -> None:
        kind, result = value_type(value.dtype), self._value(value)
        self._writer.act(f"store {kind} {result}, ptr {self._slots[name]}")

    def _store(self, statement: Store) -> None:
        dtype = self._arrays[statement.array][1]
        result = self._value(statement.value)
        self._write(dtype, result, self._element(statement.array, statement.index))

    def _combine(self, statement: Combine) -> None:
        dtype, result = statement.value.dtype, self._value(statement.value)
        word = ATOMIC_WORDS[statement.operation]
        if word in ("min", "max") and not dtype.is_signed:
            word = f"u{word}"
        element = self._element(statement.array, statement.index)
        self._writer.act(
            f"atomicrmw {word} {element}, {value_type(dtype)} {result} "
            f"{self._scope}monotonic, align {dtype.size_bytes}"
        )

    def _if(self, statement: If) -> None:
        writer = self._writer
        then, otherwise, end = map(writer.label, ("then", "else", "endif"))
        writer.branch(self._value(statement.condition), then, otherwise)
        for label, body in ((then, statement.then), (otherwise, statement.otherwise)):
            writer.start(label)
            self._body(body)
            writer.act(f"br label %{end}")
        writer.start(end)

    def _for(self, statement: For) -> None:
        """A loop over its exact number of rounds, so that no index can wrap."""
        writer, dtype = self._writer, statement.begin.dtype
        kind, sign = value_type(dtype), "s" if dtype.is_signed else "u"
        begin, end = self._value(statement.begin), self._value(statement.end)
        runs = writer.value(f"icmp {sign}lt {kind} {begin}, {end}")
        span = writer.value(f"sub {kind} {end}, {begin}")
        if statement.step > 1:
            last = writer.value(f"sub {kind} {span}, 1")
            whole = writer.value(f"udiv {kind} {last}, {statement.step}")
            span = writer.value(f"add {kind} {whole}, 1")
        rounds = writer.value(f"select i1 {runs}, {kind} {span}, {kind} 0")

        def body(count: str) -> None:
            scaled = writer.value(f"mul {kind} {count}, {statement.step}")
            index = writer.value(f"add {kind} {begin}, {scaled}")
            self._values[statement.name] = index
            self._body(statement.body)

        self._loop(kind, rounds, body, self._metadata.loop())

    def _loop(
        self, kind: str, rounds: str, body: Callable[[str], None], metadata: str
    ) -> None:
        """Run a body for 0 up to, not with, ``rounds``, an unsigned number."""
        writer = self._writer
        head, inside = writer.label("loop"), writer.label("body")
        latch, done = writer.label("next"), writer.label("end")
        before = writer.block
        writer.enter(head)
        following = writer.reserve()
        count = writer.phi(kind, "0", before, following, latch)
        writer.branch(writer.value(f"icmp ult {kind} {count}, {rounds}"), inside, done)
        writer.start(inside)
        body(count)
        writer.enter(latch)
        writer.define(following, f"add nuw {kind} {count}, 1")
        writer.act(f"br label %{head}, !llvm.loop {metadata}")
        writer.start(done)

    def _active(self, region: Region) -> str:
        """How many threads of the block take part, as an i32."""
        threads = self._kernel.threads
        if region.limit is None:
            return str(threads)
        writer, dtype = self._writer, region.limit.dtype
        limit = self._value(region.limit)
        wide = arithmetic.integer_as_i64(writer, dtype, limit)
        if dtype.is_signed:
            wide = writer.call("i64", "llvm.smax.i64", ("i64", wide), ("i64", "0"))
        wide = writer.call("i64", "llvm.umin.i64", ("i64", wide), ("i64", str(threads)))
        return writer.value(f"trunc i64 {wide} to i32")

    def _value(self, expression: Expression) -> str:
        writer = self._writer
        match expression:
            case Constant(scalar=scalar):
                return literal(scalar.dtype, scalar.slot, scalar.value)
            case Name(name=name, kind=dtype):
                return self._named(name, dtype)
            case Builtin(which=which):
                return self._builtins[which]
            case Load(array=array, index=index, kind=dtype):
                # What a block-shared array holds at first is arbitrary, but must be
                # one value: LLVM's undefined would spoil whatever depends on it.
                frozen = array in self._shared
                return self._read(dtype, self._element(array, index), frozen=frozen)
            case Unary(operation=operation, value=value):
                return self._unary(operation, value.dtype, self._value(value))
            case Binary(left=left, right=right):
                first, second = self._value(left), self._value(right)
                return self._binary(expression, first, second)
            case MultiplyAdd(left=left, right=right, addend=addend):
                kind = value_type(expression.dtype)
                parts = [(kind, self._value(part)) for part in (left, right, addend)]
                name = f"llvm.fmuladd.f{expression.dtype.bits}"
                return writer.call(kind, name, *parts)
            case Compare(comparison=comparison, left=left, right=right):
                first, second = self._value(left), self._value(right)
                return arithmetic.compare(writer, comparison, left.dtype, first, second)
            case Select(condition=condition, then=then, otherwise=otherwise):
                test, kind = self._value(condition), value_type(then.dtype)
                first, second = self._value(then), self._value(otherwise)
                return writer.value(
                    f"select i1 {test}, {kind} {first}, {kind} {second}"
                )
            case Cast(target=target, value=value):
                return arithmetic.cast(
                    writer,
                    value.dtype,
                    target,
                    self._value(value),
                    native=self._native_halves,
                )
            case Bitcast(target=target, value=value):
                return arithmetic.bitcast(
                    writer, value.dtype, target, self._value(value)
                )
            case _:
                raise AssertionError(f"no emitter for {type(expression).__name__}")

    def _binary(self, node: Binary, left: str, right: str) -> str:
        flags = FAST_FLAGS if self._kernel.is_approximate else ""
        return arithmetic.binary(self._writer, node, left, right, flags)

    def _unary(self, operation: UnaryOperation, dtype: DType, value: str) -> str:
        return arithmetic.unary(self._writer, operation, dtype, value)

    def _named(self, name: str, dtype: DType) -> str:
        if name in self._values:
            return self._values[name]
        return self._writer.value(f"load {value_type(dtype)}, ptr {self._slots[name]}")

    def _element(self, array: str, index: Expression) -> str:
        """The address of an element, with its pointer type."""
        base, dtype = self._arrays[array]
        writer = self._writer
        wide = arithmetic.integer_as_i64(writer, index.dtype, self._value(index))
        wide = self._as_index(wide, index)
        address = writer.value(
            f"getelementptr inbounds {memory_type(dtype)}, {base}, i64 {wide}"
        )
        return f"{base.rpartition(' ')[0]} {address}"

    def _as_index(self, wide: str, index: Expression) -> str:
        """The value of an index, an i64, in the form in which addresses use it."""
        del index
        return wide

    def _read(self, dtype: DType, address: str, *, frozen: bool = False) -> str:
        loaded = self._writer.value(
            f"load {memory_type(dtype)}, {address}, "
            f"align {dtype.size_bytes}{self._tag()}"
        )
        if frozen:
            loaded = self._writer.value(f"freeze {memory_type(dtype)} {loaded}")
        if dtype is DType.BOOL:
            return self._writer.value(f"icmp ne i8 {loaded}, 0")
        return loaded

    def _write(self, dtype: DType, value: str, address: str) -> None:
        if dtype is DType.BOOL:
            value = self._writer.value(f"zext i1 {value} to i8")
        self._writer.act(
            f"store {memory_type(dtype)} {value}, {address}, "
            f"align {dtype.size_bytes}{self._tag()}"
        )

    def _tag(self) -> str:
        """What every access to memory ends with."""
        return ""
