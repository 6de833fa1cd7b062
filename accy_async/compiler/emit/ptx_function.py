"""One kernel as an LLVM function that every CUDA thread of the grid runs.

Uniform code is run by each thread for itself, with the same values. A region is
a branch around its body for the threads below its limit. Barriers stand outside
these branches, where `barriers` says that one is needed.
"""

from __future__ import annotations

from accy_async.compiler.emit.approximate import (
    approximate,
    approximate_quotient,
    approximate_root,
)
from accy_async.compiler.emit.barriers import plan_barriers
from accy_async.compiler.emit.body import KernelBody
from accy_async.compiler.emit.metadata import Metadata
from accy_async.compiler.emit.transcendental import TRANSCENDENTAL, transcendental
from accy_async.compiler.emit.writer import memory_type, value_type
from accy_async.compiler.form import (
    Assert,
    Binary,
    BinaryOperation,
    BuiltinKind,
    Kernel,
    Region,
    Statement,
    UnaryOperation,
)
from accy_async.dtypes import DType

__all__ = ["PtxFunction"]

_SHARED_ALIGNMENT = 16
_VECTOR_BYTES = 16
"""Of the largest access that a thread can make at once."""
_REGISTERS = {
    BuiltinKind.THREAD_X: "tid.x",
    BuiltinKind.THREAD_Y: "tid.y",
    BuiltinKind.THREAD_Z: "tid.z",
    BuiltinKind.BLOCK_X: "ctaid.x",
    BuiltinKind.BLOCK_Y: "ctaid.y",
    BuiltinKind.BLOCK_Z: "ctaid.z",
    BuiltinKind.GRID_X: "nctaid.x",
    BuiltinKind.GRID_Y: "nctaid.y",
    BuiltinKind.GRID_Z: "nctaid.z",
}


class PtxFunction(KernelBody):
    """Writes one kernel; `text` is the definition, `globals` what it refers to.

    Args:
        kernel: the kernel.
        externals: collects the declarations of what the code calls.
        metadata: the module's.
        number: of the kernel's attributes in the module.
    """

    _scope = 'syncscope("device") '

    def __init__(
        self, kernel: Kernel, externals: set[str], metadata: Metadata, *, number: int
    ) -> None:
        super().__init__(kernel, externals, metadata, converts_halves=True)
        self._plan = plan_barriers(kernel)
        self._number = number
        self._externals = externals
        self.globals: list[str] = []

    def text(self) -> str:
        """The function's definition."""
        parameters = self._parameters()
        self._ids()
        for variable in self._kernel.thread_variables:
            kind = value_type(variable.dtype)
            slot = self._writer.slot(kind, variable.dtype.size_bytes)
            self._writer.act(f"store {kind} zeroinitializer, ptr {slot}")
            self._slots[variable.name] = slot
        if self._kernel.takes_neighbours:
            self._both_ways()
        else:
            self._body(self._kernel.body)
            self._writer.act("ret void")
        name, number = self._kernel.name, self._number
        head = f"define ptx_kernel void @{name}({', '.join(parameters)}) #{number} {{"
        return f"{head}\n{self._writer.text()}\n}}"

    def _both_ways(self) -> None:
        """The body for buffers that begin at multiples of 16 bytes, and for others.

        Whose memory a buffer is, and so where it begins, is known when it is launched.
        """
        writer, given = self._writer, dict(self._arrays)
        buffers = [buffer.name for buffer in self._kernel.buffers]
        aligned = dict(given)
        bits = "0"
        for name in buffers:
            base, dtype = given[name]
            address = writer.value(f"ptrtoint {base} to i64")
            bits = writer.value(f"or i64 {bits}, {address}")
            masked = writer.call(
                "ptr addrspace(1)",
                "llvm.ptrmask.p1.i64",
                ("ptr addrspace(1)", base.rpartition(" ")[2]),
                ("i64", str(-_VECTOR_BYTES)),
            )
            aligned[name] = f"ptr addrspace(1) {masked}", dtype
        low = writer.value(f"and i64 {bits}, {_VECTOR_BYTES - 1}")
        together, apart = writer.label("together"), writer.label("apart")
        writer.branch(writer.value(f"icmp eq i64 {low}, 0"), together, apart)
        for label, arrays in ((together, aligned), (apart, given)):
            writer.start(label)
            self._arrays = dict(arrays)
            self._body(self._kernel.body)
            if label == together:
                # No code at all, but nothing before it is shared with the other way.
                writer.act('call void asm sideeffect "", ""()')
            writer.act("ret void")

    def _parameters(self) -> list[str]:
        kernel, parameters = self._kernel, []
        for index, buffer in enumerate(kernel.buffers):
            address, size = f"%b{index}", buffer.dtype.size_bytes
            parameters.append(f"ptr addrspace(1) align {size} {address}")
            self._arrays[buffer.name] = f"ptr addrspace(1) {address}", buffer.dtype
        for index, scalar in enumerate(kernel.scalars):
            given = f"%a{index}"
            parameters.append(f"{memory_type(scalar.dtype)} {given}")
            if scalar.dtype is DType.BOOL:
                given = self._writer.value(f"icmp ne i8 {given}, 0")
            self._values[scalar.name] = given
        for index, array in enumerate(kernel.shared):
            # A dollar is in no name of the kernel form.
            name = f"@{kernel.name}$shared{index}"
            self.globals.append(
                f"{name} = internal addrspace(3) global "
                f"[{array.length} x {memory_type(array.dtype)}] poison, "
                f"align {max(_SHARED_ALIGNMENT, array.dtype.size_bytes)}"
            )
            self._arrays[array.name] = f"ptr addrspace(3) {name}", array.dtype
        return parameters

    def _ids(self) -> None:
        """Read where the thread is; LLVM drops what is not used."""
        writer = self._writer
        for which, register in _REGISTERS.items():
            name = f"llvm.nvvm.read.ptx.sreg.{register}"
            self._builtins[which] = writer.call("i32", name)
        size_x, size_y, _ = self._kernel.threadgroup
        if self._kernel.threads == size_x:
            self._builtins[BuiltinKind.THREAD] = self._builtins[BuiltinKind.THREAD_X]
            return
        x, y, z = (
            self._builtins[which]
            for which in (
                BuiltinKind.THREAD_X,
                BuiltinKind.THREAD_Y,
                BuiltinKind.THREAD_Z,
            )
        )
        rows = writer.value(f"mul nuw nsw i32 {z}, {size_y}")
        row = writer.value(f"add nuw nsw i32 {rows}, {y}")
        first = writer.value(f"mul nuw nsw i32 {row}, {size_x}")
        linear = writer.value(f"add nuw nsw i32 {first}, {x}")
        self._builtins[BuiltinKind.THREAD] = linear

    def _statement(self, statement: Statement) -> None:
        if self._plan.stands_before(statement):
            self._barrier()
        super()._statement(statement)

    def _region(self, region: Region) -> None:
        writer = self._writer
        everybody = str(self._kernel.threads)
        active = self._active(region)
        if self._plan.is_of_a_warp(region):
            self._externals.add("declare void @llvm.nvvm.bar.warp.sync(i32)")
            writer.act("call void @llvm.nvvm.bar.warp.sync(i32 -1)")
        elif self._plan.stands_within(region):
            self._barrier()
        if active == everybody:
            self._body(region.body)
            return
        inside, after = writer.label("region"), writer.label("after")
        thread = self._builtins[BuiltinKind.THREAD]
        writer.branch(writer.value(f"icmp ult i32 {thread}, {active}"), inside, after)
        writer.start(inside)
        self._body(region.body)
        writer.enter(after)

    def _barrier(self) -> None:
        self._externals.add("declare void @llvm.nvvm.barrier0()")
        self._writer.act("call void @llvm.nvvm.barrier0()")

    def _assert(self, statement: Assert) -> None:
        writer, name = self._writer, self._kernel.name
        holds, fails = writer.label("holds"), writer.label("fails")
        writer.branch(self._value(statement.condition), holds, fails)
        writer.start(fails)
        message = self._text(f"code {statement.code}")
        place, function = self._text("accy_async kernel"), self._text(name)
        self._externals.add(
            "declare void @__assertfail(ptr, ptr, i32, ptr, i64) noreturn"
        )
        writer.act(
            f"call void @__assertfail(ptr {message}, ptr {place}, "
            f"i32 {statement.code}, ptr {function}, i64 1)"
        )
        writer.act("unreachable")
        writer.start(holds)

    def _text(self, text: str) -> str:
        """The generic address of a text in the device's memory."""
        name = f"@{self._kernel.name}$text{len(self.globals)}"
        self.globals.append(
            f"{name} = internal addrspace(1) constant [{len(text) + 1} x i8] "
            f'c"{text}\\00", align 1'
        )
        return f"addrspacecast (ptr addrspace(1) {name} to ptr)"

    def _binary(self, node: Binary, left: str, right: str) -> str:
        is_quotient = node.operation is BinaryOperation.DIVIDE
        if self._kernel.is_approximate and is_quotient and node.dtype is DType.F32:
            return approximate_quotient(self._writer, left, right)
        return super()._binary(node, left, right)

    def _unary(self, operation: UnaryOperation, dtype: DType, value: str) -> str:
        is_fast = self._kernel.is_approximate and dtype is DType.F32
        if is_fast and operation is UnaryOperation.SQRT:
            return approximate_root(self._writer, value)
        if operation in TRANSCENDENTAL:
            if is_fast:
                return approximate(self._writer, operation, value, on_gpu=True)
            return transcendental(self._writer, operation, dtype, value)
        return super()._unary(operation, dtype, value)
