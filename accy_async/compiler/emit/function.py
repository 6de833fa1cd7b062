"""One kernel as an LLVM function with the native calling convention.

The blocks of the call are a loop; a region is a loop over the threads of the
block. Because no thread of a region may read what another writes in it, that
loop's memory accesses are declared parallel, and LLVM vectorises it without
checking for overlap. Per-thread values that live across regions are arrays with
an element per thread. A barrier is the end of a loop.
"""

from __future__ import annotations

from collections.abc import Callable

from accy_async.compiler.emit import arithmetic
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
    Compare,
    Constant,
    Declare,
    Expression,
    For,
    If,
    Kernel,
    Let,
    Load,
    Name,
    Region,
    Select,
    Statement,
    Store,
    Unary,
)
from accy_async.dtypes import DType

__all__ = ["KernelFunction"]

# Offsets in ``struct launch`` of accy_async.artifact.native.abi.
_GRID, _BLOCK_BEGIN, _BLOCK_END = 0, 24, 32
_ALIGNMENT = 64


class KernelFunction:
    """Writes one kernel; `text` is the whole definition."""

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
        self._per_thread: dict[str, str] = {}
        self._shared = {array.name for array in kernel.shared}
        self._group: str | None = None

    def text(self) -> str:
        """The function's definition."""
        self._parameters()
        self._blocks()
        head = (
            f"define i32 @{self._kernel.name}"
            "(ptr noundef readonly %arguments, ptr noundef readonly %launch) #0 {"
        )
        return f"{head}\n{self._writer.text()}\n}}"

    def _parameters(self) -> None:
        writer, kernel = self._writer, self._kernel
        for index, buffer in enumerate(kernel.buffers):
            slot = self._at("%arguments", 8 * index)
            address = writer.value(f"load ptr, ptr {slot}, align 8")
            self._arrays[buffer.name] = (address, buffer.dtype)
        for index, scalar in enumerate(kernel.scalars, len(kernel.buffers)):
            slot = self._at("%arguments", 8 * index)
            self._values[scalar.name] = self._read(scalar.dtype, slot)
        for array in kernel.shared:
            kind = f"[{array.length} x {memory_type(array.dtype)}]"
            self._arrays[array.name] = (writer.slot(kind, _ALIGNMENT), array.dtype)
        for variable in kernel.thread_variables:
            kind = f"[{kernel.threads} x {memory_type(variable.dtype)}]"
            self._per_thread[variable.name] = writer.slot(kind, _ALIGNMENT)

    def _blocks(self) -> None:
        """The loop over the call's blocks, which counts their ids along."""
        writer = self._writer
        ids = (BuiltinKind.BLOCK_X, BuiltinKind.BLOCK_Y, BuiltinKind.BLOCK_Z)
        sizes = (BuiltinKind.GRID_X, BuiltinKind.GRID_Y, BuiltinKind.GRID_Z)
        for axis, which in enumerate(sizes):
            address = self._at("%launch", _GRID + 4 * axis)
            self._builtins[which] = writer.value(f"load i32, ptr {address}, align 4")
        begin = self._launch_i64(_BLOCK_BEGIN)
        end = self._launch_i64(_BLOCK_END)
        first, rest = [], begin
        for which in sizes[:2]:
            # A grid has at least one block along each axis; 0 must not trap.
            size = writer.value(f"zext i32 {self._builtins[which]} to i64")
            size = writer.call("i64", "llvm.umax.i64", ("i64", size), ("i64", "1"))
            first.append(writer.value(f"urem i64 {rest}, {size}"))
            rest = writer.value(f"udiv i64 {rest}, {size}")
        first.append(rest)
        first = [writer.value(f"trunc i64 {value} to i32") for value in first]
        head, body = writer.label("blocks"), writer.label("block")
        latch, done = writer.label("block.next"), writer.label("done")
        before = writer.block
        writer.enter(head)
        following = writer.reserve()
        block = writer.phi("i64", begin, before, following, latch)
        next_ids = [writer.reserve() for _ in ids]
        for which, start, later in zip(ids, first, next_ids, strict=True):
            self._builtins[which] = writer.phi("i32", start, before, later, latch)
        writer.branch(writer.value(f"icmp ult i64 {block}, {end}"), body, done)
        writer.start(body)
        self._clear_thread_variables()
        self._body(self._kernel.body)
        writer.enter(latch)
        writer.define(following, f"add nuw i64 {block}, 1")
        self._count_ids(ids, sizes, next_ids)
        writer.act(f"br label %{head}, !llvm.loop {self._metadata.loop()}")
        writer.start(done)
        writer.act("ret i32 0")

    def _count_ids(
        self,
        ids: tuple[BuiltinKind, ...],
        sizes: tuple[BuiltinKind, ...],
        next_ids: list[str],
    ) -> None:
        op = self._writer.value
        carry = "1"
        for axis in (0, 1):
            raised = op(f"add i32 {self._builtins[ids[axis]]}, {carry}")
            wraps = op(f"icmp eq i32 {raised}, {self._builtins[sizes[axis]]}")
            self._writer.define(
                next_ids[axis], f"select i1 {wraps}, i32 0, i32 {raised}"
            )
            carry = op(f"zext i1 {wraps} to i32")
        self._writer.define(next_ids[2], f"add i32 {self._builtins[ids[2]]}, {carry}")

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
        if name in self._per_thread:
            self._write(value.dtype, result, self._thread_slot(name, value.dtype))
        else:
            self._writer.act(f"store {kind} {result}, ptr {self._slots[name]}")

    def _store(self, statement: Store) -> None:
        dtype = self._arrays[statement.array][1]
        result = self._value(statement.value)
        self._write(dtype, result, self._element(statement.array, statement.index))

    def _assert(self, statement: Assert) -> None:
        holds, fails = self._writer.label("holds"), self._writer.label("fails")
        self._writer.branch(self._value(statement.condition), holds, fails)
        self._writer.start(fails)
        self._writer.act(f"ret i32 {statement.code}")
        self._writer.start(holds)

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

    def _region(self, region: Region) -> None:
        threads = self._kernel.threads
        active = str(threads)
        if region.limit is not None:
            writer, dtype = self._writer, region.limit.dtype
            limit = self._value(region.limit)
            wide = arithmetic.integer_as_i64(writer, dtype, limit)
            if dtype.is_signed:
                wide = writer.call("i64", "llvm.smax.i64", ("i64", wide), ("i64", "0"))
            bound = ("i64", str(threads))
            wide = writer.call("i64", "llvm.umin.i64", ("i64", wide), bound)
            active = writer.value(f"trunc i64 {wide} to i32")
        self._threads(active, lambda: self._body(region.body))

    def _threads(self, active: str, body: Callable[[], None]) -> None:
        """Run a body for the threads below ``active``, row by row of the block."""
        size_x, size_y, size_z = self._kernel.threadgroup
        rows = size_y * size_z
        if rows == 1:
            self._row("0", "0", active, body)
            return
        writer = self._writer

        def row(index: str) -> None:
            first = writer.value(f"mul nuw nsw i32 {index}, {size_x}")
            left = writer.value(f"sub nsw i32 {active}, {first}")
            left = writer.call("i32", "llvm.smax.i32", ("i32", left), ("i32", "0"))
            bound = ("i32", str(size_x))
            left = writer.call("i32", "llvm.smin.i32", ("i32", left), bound)
            self._row(index, first, left, body)

        self._loop("i32", str(rows), row, self._metadata.loop())

    def _row(self, row: str, first: str, active: str, body: Callable[[], None]) -> None:
        writer, size_y = self._writer, self._kernel.threadgroup[1]
        y = writer.value(f"urem i32 {row}, {size_y}")
        z = writer.value(f"udiv i32 {row}, {size_y}")
        self._group = self._metadata.access_group()

        def thread(x: str) -> None:
            linear = x
            if first != "0":
                linear = writer.value(f"add nuw nsw i32 {first}, {x}")
            self._builtins[BuiltinKind.THREAD] = linear
            self._builtins[BuiltinKind.THREAD_X] = x
            self._builtins[BuiltinKind.THREAD_Y] = y
            self._builtins[BuiltinKind.THREAD_Z] = z
            body()

        self._loop("i32", active, thread, self._metadata.parallel_loop(self._group))
        self._group = None

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
                return arithmetic.unary(
                    writer, operation, value.dtype, self._value(value)
                )
            case Binary(left=left, right=right):
                first, second = self._value(left), self._value(right)
                return arithmetic.binary(writer, expression, first, second)
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

    def _named(self, name: str, dtype: DType) -> str:
        if name in self._values:
            return self._values[name]
        if name in self._per_thread:
            return self._read(dtype, self._thread_slot(name, dtype))
        return self._writer.value(f"load {value_type(dtype)}, ptr {self._slots[name]}")

    def _clear_thread_variables(self) -> None:
        def clear() -> None:
            for variable in self._kernel.thread_variables:
                address = self._thread_slot(variable.name, variable.dtype)
                self._writer.act(
                    f"store {memory_type(variable.dtype)} zeroinitializer, "
                    f"ptr {address}{self._tag()}"
                )

        if self._kernel.thread_variables:
            self._threads(str(self._kernel.threads), clear)

    def _thread_slot(self, name: str, dtype: DType) -> str:
        thread = self._builtins[BuiltinKind.THREAD]
        wide = self._writer.value(f"zext i32 {thread} to i64")
        return self._writer.value(
            f"getelementptr inbounds {memory_type(dtype)}, "
            f"ptr {self._per_thread[name]}, i64 {wide}"
        )

    def _element(self, array: str, index: Expression) -> str:
        address, dtype = self._arrays[array]
        writer = self._writer
        wide = arithmetic.integer_as_i64(writer, index.dtype, self._value(index))
        return writer.value(
            f"getelementptr inbounds {memory_type(dtype)}, ptr {address}, i64 {wide}"
        )

    def _read(self, dtype: DType, address: str, *, frozen: bool = False) -> str:
        loaded = self._writer.value(
            f"load {memory_type(dtype)}, ptr {address}, "
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
            f"store {memory_type(dtype)} {value}, ptr {address}, "
            f"align {dtype.size_bytes}{self._tag()}"
        )

    def _at(self, base: str, offset: int) -> str:
        return self._writer.value(
            f"getelementptr inbounds i8, ptr {base}, i64 {offset}"
        )

    def _launch_i64(self, offset: int) -> str:
        return self._writer.value(
            f"load i64, ptr {self._at('%launch', offset)}, align 8"
        )

    def _tag(self) -> str:
        """Marks an access as one of the parallel loop around it."""
        return f", !llvm.access.group {self._group}" if self._group else ""
