"""What a benchmark file declares: fragments and kernels, and what they work on."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from accy_async.dtypes import DType
from accy_async.errors import InvalidType, InvalidValue
from accy_async.tuning.search import Variant
from accy_async.values import (
    enum,
    instances,
    integer,
    integers,
    member_of,
    number,
    optional,
    packed_bytes,
    text,
    to_tuple,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from accy_async.backends.capabilities import Capabilities
    from accy_async.compiler.preparation import FragmentCompilerOptions

__all__ = [
    "Benchmark",
    "FragmentBenchmark",
    "FragmentVariant",
    "KernelBenchmark",
    "Output",
    "ReadWrite",
    "fragment_benchmark",
]

Inputs = Sequence[Any] | Callable[[], Sequence[Any]]
"""Arrays, or what makes them when the benchmark is run."""

_BYTES = optional(integer(0, 2**63 - 1))
_FLOPS = optional(number(0.0))


def _line() -> str:
    """The file and line of who declares: the first frame outside this module."""
    frame = sys._getframe(1)  # noqa: SLF001 - the only way to a caller's line
    while frame.f_back is not None and (
        frame.f_globals.get("__name__") in (__name__, "attrs", "attr")
        or frame.f_code.co_filename.startswith("<attrs")
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def _inputs(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    name = f"{type(instance).__name__}.{attribute.name}"
    if not callable(value) and not isinstance(value, (list, tuple)):
        raise InvalidType(name, value, "a list of arrays, or a function that makes it")


def _candidates(
    instance: object, attribute: attrs.Attribute[Any], value: object
) -> None:
    name = f"{type(instance).__name__}.{attribute.name}"
    if not isinstance(value, Mapping):
        raise InvalidType(name, value, "a mapping from names to candidates")
    if not value:
        raise InvalidValue(name, value, "at least one candidate")
    for key, one in value.items():
        if not isinstance(key, str) or not key:
            raise InvalidType(name, key, "names of candidates")
        if not callable(one) and not isinstance(one, (Variant, FragmentVariant)):
            raise InvalidType(f"{name}[{key!r}]", one, "a function")


@attrs.frozen(kw_only=True)
class FragmentVariant:
    """A candidate of a fragment that is compiled in a way of its own.

    Attributes:
        program: a function of arrays, or a traced program.
        options: of the compiler.
    """

    program: Callable[..., Any] = attrs.field()
    options: FragmentCompilerOptions | None = None


@attrs.frozen(kw_only=True)
class FragmentBenchmark:
    """A tensor program, in one or several ways that give the same results.

    Attributes:
        name: how it is called in reports.
        candidates: functions of arrays by name, or `FragmentVariant` values; the first
            is what the others are compared with.
        inputs: the arguments, numpy arrays; or a function that makes them.
        bytes_moved: what a call reads and writes at least; inputs and results once
            each if left out.
        flops: its floating-point operations; counted in the program if left out.
        relative: by how much results may differ from the first candidate's.
        absolute: the same in absolute terms; either will do.
        kernels: whether each of the first candidate's kernels is measured as well,
            with its launch candidates.
        declared: file and line.
    """

    name: str = attrs.field(validator=text())
    candidates: Mapping[str, Callable[..., Any] | FragmentVariant] = attrs.field(
        validator=_candidates
    )
    inputs: Inputs = attrs.field(validator=_inputs)
    bytes_moved: int | None = attrs.field(default=None, validator=_BYTES)
    flops: float | None = attrs.field(default=None, validator=_FLOPS)
    relative: float = attrs.field(default=1e-4, validator=number(0.0))
    absolute: float = attrs.field(default=1e-6, validator=number(0.0))
    kernels: bool = attrs.field(default=True, validator=instances(bool))
    declared: str = attrs.field(factory=_line, eq=False, repr=False)

    def variant(
        self, name: str
    ) -> tuple[Callable[..., Any], FragmentCompilerOptions | None]:
        """A candidate's program, and how it is to be compiled."""
        candidate = self.candidates[name]
        if isinstance(candidate, FragmentVariant):
            return candidate.program, candidate.options
        return candidate, None


def fragment_benchmark(
    *,
    inputs: Inputs,
    name: str | None = None,
    also: Mapping[str, Callable[..., Any] | FragmentVariant] | None = None,
    bytes_moved: int | None = None,
    flops: float | None = None,
    relative: float = 1e-4,
    absolute: float = 1e-6,
    kernels: bool = True,
) -> Callable[[Callable[..., Any]], FragmentBenchmark]:
    """Declare the function below as a `FragmentBenchmark`.

    ::

        @fragment_benchmark(inputs=lambda: [np.ones((512, 512), np.float32)])
        def softmax(x):
            return tensor.softmax(x)

    Args:
        inputs: the function's arguments, or what makes them.
        name: the function's own if left out.
        also: other candidates, which are compared with it.
        bytes_moved: as for `FragmentBenchmark`, and so the rest.
        flops: the same.
        relative: the same.
        absolute: the same.
        kernels: the same.
    """

    def declare(function: Callable[..., Any]) -> FragmentBenchmark:
        called = getattr(function, "__name__", "fragment") if name is None else name
        return FragmentBenchmark(
            name=called,
            candidates={called: function, **(also or {})},
            inputs=inputs,
            bytes_moved=bytes_moved,
            flops=flops,
            relative=relative,
            absolute=absolute,
            kernels=kernels,
        )

    return declare


def _dtype(value: DType | str) -> DType:
    return member_of(DType, value)


@attrs.frozen
class Output:
    """A buffer argument that a kernel writes: its shape and dtype."""

    shape: tuple[int, ...] = attrs.field(
        converter=to_tuple, validator=integers(0, 2**63 - 1)
    )
    dtype: DType = attrs.field(
        default=DType.F32, converter=_dtype, validator=enum(DType)
    )

    def __attrs_post_init__(self) -> None:
        packed_bytes("Output.shape", self.shape, self.dtype.size_bytes)

    @property
    def byte_size(self) -> int:
        """Bytes in all."""
        return math.prod(self.shape) * self.dtype.size_bytes


def _array(value: Any) -> Any:  # noqa: ANN401 - what is no array is refused
    return np.asarray(value)


@attrs.frozen(eq=False)
class ReadWrite:
    """A buffer argument that a kernel reads and writes: what it holds before.

    Each launch that is measured begins with these contents.
    """

    array: NDArray[Any] = attrs.field(converter=_array)


KernelCandidate = Variant | Callable[["Capabilities"], Variant]
"""A kernel and its launch, or what makes them for a device; called on a thread."""


@attrs.frozen(kw_only=True)
class KernelBenchmark:
    """A kernel, in one or several ways that give the same results.

    Attributes:
        name: how it is called in reports.
        candidates: by name, functions that are given the device's `Capabilities` and
            make a `Variant`, or such values; the first is what the others are
            compared with.
        arguments: the kernel's buffers in order: numpy arrays that are read,
            `Output` and `ReadWrite` values; or a function that makes them.
        bytes_moved: what a launch reads and writes at least; every argument once, and
            twice where it is read and written, if left out.
        flops: its floating-point operations, which nobody but you knows.
        relative: by how much results may differ from the first candidate's.
        absolute: the same in absolute terms; either will do.
        declared: file and line.
    """

    name: str = attrs.field(validator=text())
    candidates: Mapping[str, KernelCandidate] = attrs.field(validator=_candidates)
    arguments: Inputs = attrs.field(validator=_inputs)
    bytes_moved: int | None = attrs.field(default=None, validator=_BYTES)
    flops: float | None = attrs.field(default=None, validator=_FLOPS)
    relative: float = attrs.field(default=1e-5, validator=number(0.0))
    absolute: float = attrs.field(default=0.0, validator=number(0.0))
    declared: str = attrs.field(factory=_line, eq=False, repr=False)


Benchmark = FragmentBenchmark | KernelBenchmark
