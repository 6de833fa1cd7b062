"""Kernels: a device-neutral form that every emitter reads.

A kernel is run by a grid of blocks, and a block by a fixed number of threads.
Its body is uniform control flow around *regions*. In a region every thread of a
block runs the same statements, in any order or all at once; between two regions
all threads meet at a barrier, after which each sees what the others wrote to
block-shared arrays and buffers before it. There are no barriers inside regions,
so none can be missed by a thread. Blocks run in any order and never see each
other's writes within one launch.

Rules on memory, which the author keeps and nothing checks:

* Within a region, a thread may read only elements that no other thread of the
  launch writes in that region, and no two threads write one element. What threads
  combine (`Combine`) they may all combine, by one operation, and do nothing else
  with in that launch. Different
  buffers of one launch may overlap or be the same memory as long as this holds
  for the memory: adding in place is fine, a shifted overlap is a race.
* A uniform load (outside regions) sees all writes of the regions before it and
  none of those after it.
* Block-shared arrays hold arbitrary values when a block starts; a thread
  variable holds zero.
* Indices stay within their arrays.

Because threads cannot combine values but through named elements, or as integers
whose order does not show, and floats are never reassociated, the order of every sum
is the one the kernel writes down: a result is the same to the bit on every device,
`operations` names the exceptions. Kernels that say to be approximate promise less,
see `Kernel`.
"""

from __future__ import annotations

import attrs

from accy_async.artifact.native.abi import MAX_ARGUMENTS
from accy_async.artifact.native.signature import BufferParameter, KernelSignature
from accy_async.compiler.form.expressions import IDENTIFIER
from accy_async.compiler.form.products import TileProduct, written_out
from accy_async.compiler.form.scopes import check_kernel_body
from accy_async.compiler.form.statements import Statement, every_statement
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue
from accy_async.values import instances, integer, one_of, text, tuple_of

__all__ = [
    "MAX_SHARED_BYTES",
    "MAX_THREADS",
    "MAX_THREAD_VARIABLES",
    "Buffer",
    "Kernel",
    "Scalar",
    "SharedArray",
    "ThreadVariable",
]

MAX_THREADS = 1024
"""Threads of a block: what every CUDA device takes."""
MAX_SHARED_BYTES = 48 * 1024
"""Block-shared bytes: what every CUDA device gives a block statically."""
MAX_THREAD_VARIABLES = 160

_name = text(pattern=IDENTIFIER, what="an identifier")


@attrs.frozen
class Buffer:
    """A buffer parameter: elements of a dtype in device memory."""

    name: str = attrs.field(validator=_name)
    dtype: DType = attrs.field(validator=instances(DType))
    access: str = attrs.field(
        validator=one_of(("read_only", "write_only", "read_write"))
    )


@attrs.frozen
class Scalar:
    """A scalar parameter, the same for all threads of a launch."""

    name: str = attrs.field(validator=_name)
    dtype: DType = attrs.field(validator=instances(DType))


@attrs.frozen
class SharedArray:
    """An array that the threads of one block share, ``length`` elements long."""

    name: str = attrs.field(validator=_name)
    dtype: DType = attrs.field(validator=instances(DType))
    length: int = attrs.field(validator=integer(1, MAX_SHARED_BYTES))


@attrs.frozen
class ThreadVariable:
    """A variable of each thread that lives across regions; zero at first."""

    name: str = attrs.field(validator=_name)
    dtype: DType = attrs.field(validator=instances(DType))


@attrs.frozen
class Kernel:
    """One kernel, whole and checked.

    One that is *approximate* promises less of its floats: exp, log, tanh, quotients
    and roots of f32 may be some units off, sums may be reordered, and a product and a
    sum may round once. Infinities and NaNs keep their meaning.

    One that *takes neighbours* has threads that access a few elements of a buffer next
    to each other, the first of them at a multiple of as many: a device may then do so
    at once where the buffers begin at multiples of 16 bytes.

    Raises:
        InvalidType, InvalidValue: naming what is wrong: a name used twice or out
            of its scope, an access the buffer does not allow, a statement where
            it may not stand, a per-thread value where a uniform one is needed.
    """

    name: str = attrs.field(validator=_name)
    buffers: tuple[Buffer, ...] = attrs.field(
        validator=tuple_of(Buffer, expected="a tuple of Buffer")
    )
    scalars: tuple[Scalar, ...] = attrs.field(
        validator=tuple_of(Scalar, expected="a tuple of Scalar")
    )
    threadgroup: tuple[int, int, int] = attrs.field(
        validator=tuple_of(int, length=3, expected="three integers of at least 1")
    )
    body: tuple[Statement, ...] = attrs.field(
        validator=tuple_of(Statement, expected="a tuple of statements")
    )
    shared: tuple[SharedArray, ...] = attrs.field(
        default=(), validator=tuple_of(SharedArray, expected="a tuple of SharedArray")
    )
    thread_variables: tuple[ThreadVariable, ...] = attrs.field(
        default=(),
        validator=tuple_of(ThreadVariable, expected="a tuple of ThreadVariable"),
    )
    is_approximate: bool = attrs.field(default=False, validator=instances(bool))
    takes_neighbours: bool = attrs.field(default=False, validator=instances(bool))

    def __attrs_post_init__(self) -> None:
        if min(self.threadgroup) < 1 or self.threads > MAX_THREADS:
            raise InvalidValue(
                "Kernel.threadgroup",
                self.threadgroup,
                f"three integers of at least 1, {MAX_THREADS} threads at most",
            )
        arguments = len(self.buffers) + len(self.scalars)
        if arguments > MAX_ARGUMENTS:
            raise InvalidValue(
                "Kernel.buffers and scalars", arguments, f"at most {MAX_ARGUMENTS}"
            )
        if self.shared_bytes > MAX_SHARED_BYTES:
            raise InvalidValue(
                "Kernel.shared",
                f"{self.shared_bytes} bytes",
                f"at most {MAX_SHARED_BYTES} bytes",
            )
        if len(self.thread_variables) > MAX_THREAD_VARIABLES:
            raise InvalidValue(
                "Kernel.thread_variables",
                len(self.thread_variables),
                f"at most {MAX_THREAD_VARIABLES}",
            )
        check_kernel_body(
            self.body,
            arrays={
                **{b.name: (b.dtype, b.access) for b in self.buffers},
                **{s.name: (s.dtype, "shared") for s in self.shared},
            },
            uniform={s.name: s.dtype for s in self.scalars},
            thread={v.name: v.dtype for v in self.thread_variables},
            threads=self.threads,
            declared=[
                parameter.name
                for group in (
                    self.buffers,
                    self.shared,
                    self.scalars,
                    self.thread_variables,
                )
                for parameter in group
            ],
        )

    @property
    def threads(self) -> int:
        """Threads of one block."""
        x, y, z = self.threadgroup
        return x * y * z

    @property
    def shared_bytes(self) -> int:
        """Bytes of all block-shared arrays, each on a 16-byte boundary."""
        sizes = (array.dtype.size_bytes * array.length for array in self.shared)
        return sum(-(-size // 16) * 16 for size in sizes)

    @property
    def dynamic_shared_bytes(self) -> int:
        """Block-shared bytes that products of tiles take beside all arrays."""
        tiles = (
            statement.tile.shared_bytes
            for statement in every_statement(self.body)
            if isinstance(statement, TileProduct)
        )
        return max(tiles, default=0)

    def without_units(self) -> Kernel:
        """The same kernel for devices that have no units for products of tiles."""
        if not self.dynamic_shared_bytes:
            return self
        return attrs.evolve(self, body=written_out(self.body))

    @property
    def signature(self) -> KernelSignature:
        """What a native object says of the kernel."""
        return KernelSignature(
            entry_name=self.name,
            buffers=tuple(BufferParameter(b.dtype, b.access) for b in self.buffers),
            scalars=tuple(scalar.dtype for scalar in self.scalars),
            threadgroup=self.threadgroup,
            shared_bytes=self.shared_bytes,
        )
