"""Kernels in CUDA C++, for NVRTC or nvcc.

The interface is that of the PTX emitter: a kernel is an ``extern "C"`` function of its
own name, whose parameters are the buffers' addresses and then the scalars, each of its
own size. Float operations are written with their rounding (``__fadd_rn``), so that no
option of the compiler fuses or relaxes them; only ``--ftz`` must stay off, as it is by
default. exp, log and tanh are CUDA's. Where all kernels are approximate, operations are
plain, and exp and log are those of the special function units. A failed assertion calls
``__assertfail``, which CUDA's compilers know without a declaration and their ``assert``
calls too: the driver prints the code, and the context is lost.

The text includes nothing, so NVRTC needs no headers for it.

Source: CUDA C++ Programming Guide, 19 (mathematical functions); CUDA Math API.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from accy_async.compiler.emit.text import tensor_cores
from accy_async.compiler.emit.text.dialect import CUDA, FAST_CUDA, Dialect
from accy_async.compiler.emit.text.keywords import are_approximate, check_cpp_kernels
from accy_async.compiler.emit.text.neighbours import store_pairs
from accy_async.compiler.emit.text.operations import Operations
from accy_async.compiler.emit.text.printer import KernelPrinter
from accy_async.compiler.form import Expression, Kernel, Statement, Store, TileProduct
from accy_async.dtypes import DType

__all__ = ["emit_cuda"]

_HEAD = """\
typedef signed char int8;
typedef unsigned char uint8;
typedef short int16;
typedef unsigned short uint16;
typedef unsigned int uint;
typedef long long int64;
typedef unsigned long long uint64;"""


def emit_cuda(kernels: Sequence[Kernel]) -> str:
    """Kernels as one text.

    Args:
        kernels: at least one, each with a name of its own.

    Returns:
        The text, the same for the same arguments.

    Raises:
        InvalidValue: no kernel, two of one name, or a name that C++ keeps.
    """
    check_cpp_kernels(kernels, "CUDA C++")
    dialect = FAST_CUDA if are_approximate(kernels) else CUDA
    operations = Operations(dialect)
    parts = [_CudaPrinter(kernel, dialect, operations).text() for kernel in kernels]
    head = [_HEAD]
    if any(kernel.dynamic_shared_bytes for kernel in kernels):
        head.append(tensor_cores.text(kernels))
    return "\n\n".join([*head, *operations.helpers.text(), *parts]) + "\n"


class _CudaPrinter(KernelPrinter):
    stops = False

    def __init__(
        self, kernel: Kernel, dialect: Dialect, operations: Operations
    ) -> None:
        super().__init__(kernel, dialect, operations)
        self._pairs = store_pairs(kernel)
        self._seconds = {id(store) for store in self._pairs.values()}

    def text(self) -> str:
        kernel = self.kernel
        parameters = ", ".join(self._parameters())
        lines = [
            f'extern "C" __global__ void __launch_bounds__({kernel.threads})',
            f"{kernel.name}({parameters}) {{",
        ]
        for array in kernel.shared:
            kind, name = CUDA.element(array.dtype), self.names.of(array.name)
            lines.append(f"    __shared__ __align__(16) {kind} {name}[{array.length}];")
        lines.append(f"    const uint thread_index = {self._linear()};")
        for scalar in kernel.scalars:
            if self._is_narrow(scalar.dtype):
                kind = self.operations.register(scalar.dtype)
                name = self.names.of(scalar.name)
                value = f"{name}given"
                if scalar.dtype is DType.BOOL:
                    value = f"{value} != 0"
                lines.append(f"    const {kind} {name} = {value};")
        return "\n".join([*lines, *self.body(), "}"])

    def _statement(self, statement: Statement) -> None:
        if id(statement) in self._seconds:
            return
        second = self._pairs.get(id(statement))
        if second is None:
            super()._statement(statement)
            return
        assert isinstance(statement, Store)
        name = self.array(statement.array)
        with self.block(f"if ((uint64({name}) & 15u) == 0u)"):
            self._store_pair(statement, second)
        with self.block("else"):
            super()._statement(statement)
            super()._statement(second)

    def _store_pair(self, one: Store, two: Store) -> None:
        """Both elements in one access; see `neighbours`."""
        place = self._element(one.array, one.index)
        dtype = one.value.dtype
        first, second = (self._word(store.value) for store in (one, two))
        kind, bits = ("uint", 16) if dtype.size_bytes == 2 else ("uint64", 32)
        both = f"{kind}({first}) | {kind}({second}) << {bits}"
        self.line(f"*({kind} *)&{place} = {both};")

    def _word(self, value: Expression) -> str:
        """An element's bits as an unsigned number."""
        text = self.value(value)
        if value.dtype is DType.F32:
            return f"__float_as_uint({text})"
        return f"uint16({text})" if value.dtype.size_bytes == 2 else f"uint({text})"

    def tile_product(self, statement: TileProduct) -> None:
        values = [self.value(place) for place in statement.places]
        sums = [self.names.of(name) for name in statement.sums]
        operands = [self.array(operand.buffer) for operand in statement.operands]
        for line in tensor_cores.call(statement, operands, values, sums):
            self.line(line)

    def barrier(self) -> str:
        return "__syncthreads();"

    def combine(self, word: str, place: str, value: str, kind: str) -> str:
        return f"atomic{word.title()}(&{place}, {value});"

    def fail(self, code: int) -> list[str]:
        place = f'"accy_async kernel", {code}, "{self.kernel.name}", 1'
        return [f'__assertfail("code {code}", {place});']

    def _parameters(self) -> Iterator[str]:
        for buffer in self.kernel.buffers:
            constant = "const " if buffer.access == "read_only" else ""
            kind, name = CUDA.element(buffer.dtype), self.names.of(buffer.name)
            yield f"{constant}{kind} *{name}"
        for scalar in self.kernel.scalars:
            kind, name = CUDA.element(scalar.dtype), self.names.of(scalar.name)
            yield (
                f"{kind} {name}given"
                if self._is_narrow(scalar.dtype)
                else f"{kind} {name}"
            )

    def _is_narrow(self, dtype: DType) -> bool:
        return CUDA.element(dtype) != CUDA.register(dtype)

    def _linear(self) -> str:
        x, y, _ = self.kernel.threadgroup
        if self.kernel.threads == x:
            return "threadIdx.x"
        return f"threadIdx.x + {x}u * (threadIdx.y + {y}u * threadIdx.z)"
