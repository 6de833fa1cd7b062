"""One kernel as an LLVM function with the native calling convention.

The blocks of the call are a loop; a region is a loop over the threads of the
block. Because no thread of a region may read what another writes in it, that
loop's memory accesses are declared parallel, and LLVM vectorises it without
checking for overlap. Per-thread values that live across regions are arrays with
an element per thread. A barrier is the end of a loop.
"""

from __future__ import annotations

from collections.abc import Callable

from accy_async.compiler.emit.approximate import approximate
from accy_async.compiler.emit.body import KernelBody
from accy_async.compiler.emit.metadata import Metadata
from accy_async.compiler.emit.transcendental import TRANSCENDENTAL, transcendental
from accy_async.compiler.emit.wrapping import Wrapping
from accy_async.compiler.emit.writer import memory_type
from accy_async.compiler.form import (
    Assert,
    BuiltinKind,
    Expression,
    Kernel,
    Region,
    UnaryOperation,
)
from accy_async.dtypes import DType

__all__ = ["KernelFunction"]

# Offsets in ``struct launch`` of accy_async.artifact.native.abi.
_GRID, _BLOCK_BEGIN, _BLOCK_END = 0, 24, 32
_ALIGNMENT = 64


class KernelFunction(KernelBody):
    """Writes one kernel; `text` is the whole definition."""

    def __init__(
        self,
        kernel: Kernel,
        externals: set[str],
        metadata: Metadata,
        *,
        converts_halves: bool,
        multiplies_and_adds: bool,
    ) -> None:
        super().__init__(kernel, externals, metadata, converts_halves=converts_halves)
        self._multiplies_and_adds = multiplies_and_adds
        self._per_thread: dict[str, str] = {}
        self._group: str | None = None
        self._wrapping = Wrapping(kernel)
        self._zero: str | None = None

    def text(self) -> str:
        """The function's definition."""
        self._parameters()
        self._make_zero()
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
            self._arrays[buffer.name] = (f"ptr {address}", buffer.dtype)
        for index, scalar in enumerate(kernel.scalars, len(kernel.buffers)):
            slot = self._at("%arguments", 8 * index)
            self._values[scalar.name] = self._read(scalar.dtype, f"ptr {slot}")
        for array in kernel.shared:
            kind = f"[{array.length} x {memory_type(array.dtype)}]"
            slot = writer.slot(kind, _ALIGNMENT)
            self._arrays[array.name] = (f"ptr {slot}", array.dtype)
        for variable in kernel.thread_variables:
            kind = f"[{kernel.threads} x {memory_type(variable.dtype)}]"
            self._per_thread[variable.name] = writer.slot(kind, _ALIGNMENT)

    def _make_zero(self) -> None:
        """A 0 of which LLVM does not know that it is one."""
        slot = self._writer.slot("i64", 8)
        self._writer.act(f"store volatile i64 0, ptr {slot}, align 8")
        self._zero = self._writer.value(f"load volatile i64, ptr {slot}, align 8")

    def _as_index(self, wide: str, index: Expression) -> str:
        """The index; hidden from the vectoriser if it may wrap (see `Wrapping`).

        It still makes vectors of what is computed, and gathers.
        """
        if not self._wrapping.wraps(index):
            return wide
        return self._writer.value(f"xor i64 {wide}, {self._zero}")

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

    def _assign(self, name: str, value: Expression) -> None:
        if name not in self._per_thread:
            super()._assign(name, value)
            return
        result = self._value(value)
        self._write(value.dtype, result, self._thread_slot(name, value.dtype))

    def _assert(self, statement: Assert) -> None:
        holds, fails = self._writer.label("holds"), self._writer.label("fails")
        self._writer.branch(self._value(statement.condition), holds, fails)
        self._writer.start(fails)
        self._writer.act(f"ret i32 {statement.code}")
        self._writer.start(holds)

    def _region(self, region: Region) -> None:
        self._threads(self._active(region), lambda: self._body(region.body))

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

    def _unary(self, operation: UnaryOperation, dtype: DType, value: str) -> str:
        if self._multiplies_and_adds and operation in TRANSCENDENTAL:
            if self._kernel.is_approximate and dtype is DType.F32:
                return approximate(self._writer, operation, value, on_gpu=False)
            return transcendental(self._writer, operation, dtype, value)
        return super()._unary(operation, dtype, value)

    def _named(self, name: str, dtype: DType) -> str:
        if name in self._per_thread:
            return self._read(dtype, self._thread_slot(name, dtype))
        return super()._named(name, dtype)

    def _clear_thread_variables(self) -> None:
        def clear() -> None:
            for variable in self._kernel.thread_variables:
                address = self._thread_slot(variable.name, variable.dtype)
                self._writer.act(
                    f"store {memory_type(variable.dtype)} zeroinitializer, "
                    f"{address}{self._tag()}"
                )

        if self._kernel.thread_variables:
            self._threads(str(self._kernel.threads), clear)

    def _thread_slot(self, name: str, dtype: DType) -> str:
        thread = self._builtins[BuiltinKind.THREAD]
        wide = self._writer.value(f"zext i32 {thread} to i64")
        address = self._writer.value(
            f"getelementptr inbounds {memory_type(dtype)}, "
            f"ptr {self._per_thread[name]}, i64 {wide}"
        )
        return f"ptr {address}"

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
