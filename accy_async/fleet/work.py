"""What a fleet measures: a list of candidates as data, with what they work on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Self

import attrs
import numpy as np

from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.planned import PlannedKernel
from accy_async.backends.handles import BufferAccess, buffer_access
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidType, InvalidValue, LaunchArgumentMismatch
from accy_async.tuning.measuring import MeasureOptions
from accy_async.values import (
    enum,
    instances,
    integer,
    optional,
    text,
    to_integer,
    to_tuple,
    tuple_of,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

__all__ = ["FleetBuffer", "FleetCandidate", "FleetWork", "kernel_work"]


@attrs.frozen(kw_only=True)
class FleetBuffer:
    """One buffer argument, as every worker makes it for itself.

    `of`, `random` and `zeros` make one.

    Attributes:
        access: how the candidates use it.
        dtype: its elements, by which results are compared; None to compare bits.
        byte_size: how large it is.
        contents: what is in it to begin with; nothing for zeros.
        seed: of random contents, which each worker makes; None for none.
    """

    access: BufferAccess = attrs.field(
        converter=buffer_access, validator=enum(BufferAccess)
    )
    dtype: DType | None = attrs.field(default=None, validator=optional(enum(DType)))
    byte_size: int = attrs.field(validator=integer(1, 2**63 - 1))
    contents: bytes = attrs.field(
        default=b"", validator=instances(bytes), repr=lambda b: f"<{len(b)} bytes>"
    )
    seed: int | None = attrs.field(
        default=None, validator=optional(integer(0, 2**63 - 1))
    )

    def __attrs_post_init__(self) -> None:
        if self.contents and len(self.contents) != self.byte_size:
            raise InvalidValue(
                "FleetBuffer.contents",
                f"{len(self.contents)} bytes",
                f"none, or all {self.byte_size}",
            )
        if self.seed is not None and (self.contents or self.dtype in _NO_RANDOM):
            raise InvalidValue(
                "FleetBuffer.seed",
                self.seed,
                "None, or a dtype that numpy has, and no contents",
            )
        if self.dtype is not None and self.byte_size % self.dtype.size_bytes:
            raise InvalidValue(
                "FleetBuffer.byte_size", self.byte_size, f"whole {self.dtype} elements"
            )

    @classmethod
    def of(
        cls, values: ArrayLike, access: BufferAccess | str = BufferAccess.READ_ONLY
    ) -> Self:
        """A buffer with these values in it, which travel to every worker."""
        host = np.ascontiguousarray(values)
        return cls(
            access=access,
            dtype=DType.from_numpy(host.dtype),
            byte_size=host.nbytes,
            contents=host.tobytes(),
        )

    @classmethod
    def random(
        cls,
        dtype: DType,
        count: int,
        access: BufferAccess | str = BufferAccess.READ_ONLY,
        *,
        seed: int = 0,
    ) -> Self:
        """A buffer of random values, the same on every worker, made there.

        Floats are from 0 to 1, integers from 0 to 99.
        """
        size = _packed(dtype, count)
        return cls(access=access, dtype=dtype, byte_size=size, seed=seed)

    @classmethod
    def zeros(
        cls,
        dtype: DType,
        count: int,
        access: BufferAccess | str = BufferAccess.WRITE_ONLY,
    ) -> Self:
        """A buffer of zeros, as for what is only written."""
        return cls(access=access, dtype=dtype, byte_size=_packed(dtype, count))

    def values(self) -> NDArray[np.uint8]:
        """Its bytes; made anew where they are random."""
        if self.contents:
            return np.frombuffer(self.contents, np.uint8)
        if self.seed is None or self.dtype is None:
            return np.zeros(self.byte_size, np.uint8)
        random = np.random.default_rng(self.seed)
        count = self.byte_size // self.dtype.size_bytes
        if self.dtype.is_float:
            made = random.random(count).astype(self.dtype.numpy)
        else:
            most = 2 if self.dtype is DType.BOOL else 100
            made = random.integers(0, most, count).astype(self.dtype.numpy)
        return made.view(np.uint8)


_NO_RANDOM = (None, DType.BF16)


def _packed(dtype: DType, count: int) -> int:
    """The bytes of so many elements."""
    whole = to_integer(count)
    if not isinstance(dtype, DType):
        raise InvalidType("FleetBuffer.dtype", dtype, "a DType")
    if isinstance(whole, bool) or not isinstance(whole, int):
        raise InvalidType("FleetBuffer.count", count, "an integer of at least 1")
    return whole * dtype.size_bytes


@attrs.frozen(kw_only=True)
class FleetCandidate:
    """One way to do the work: a kernel's code and a geometry.

    Attributes:
        name: how it is called in outcomes; no two have the same.
        artifact: the code.
        geometry: what it is launched with.
        scalars: its scalar arguments.
    """

    name: str = attrs.field(validator=text())
    artifact: KernelArtifact = attrs.field(validator=instances(KernelArtifact))
    geometry: FixedLaunch = attrs.field(validator=instances(FixedLaunch))
    scalars: tuple[ScalarArgument, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(ScalarArgument, expected="ScalarArgument values"),
    )

    def __attrs_post_init__(self) -> None:
        expected = self.artifact.scalar_argument_count
        if len(self.scalars) != expected:
            raise LaunchArgumentMismatch(
                f"candidate {self.name!r}: {len(self.scalars)} scalars, kernel "
                f"{self.artifact.kernel_name!r} takes {expected}"
            )


@attrs.frozen(kw_only=True)
class FleetWork:
    """A list of candidates to measure, and how.

    Attributes:
        candidates: the first one that works is the baseline.
        buffers: what all of them take, in the order of their arguments.
        options: how they are measured. Where they are checked, by the buffers' dtypes
            if the check names none.

    Raises:
        InvalidValue: there is no candidate, or two have one name.
        LaunchArgumentMismatch: a candidate takes other buffers.
    """

    candidates: tuple[FleetCandidate, ...] = attrs.field(
        converter=to_tuple,
        validator=tuple_of(FleetCandidate, expected="FleetCandidate values"),
    )
    buffers: tuple[FleetBuffer, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(FleetBuffer, expected="FleetBuffers")
    )
    options: MeasureOptions = attrs.field(
        factory=MeasureOptions, validator=instances(MeasureOptions)
    )

    def __attrs_post_init__(self) -> None:
        if not self.candidates:
            raise InvalidValue("FleetWork.candidates", self.candidates, "at least one")
        names = self.names
        if len(set(names)) < len(names):
            raise InvalidValue("FleetWork.candidates", names, "names of their own")
        for one in self.candidates:
            expected = one.artifact.buffer_argument_count
            if len(self.buffers) != expected:
                raise LaunchArgumentMismatch(
                    f"candidate {one.name!r}: {len(self.buffers)} buffers, kernel "
                    f"{one.artifact.kernel_name!r} takes {expected}"
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The candidates' names."""
        return tuple(one.name for one in self.candidates)

    def candidate(self, name: str) -> FleetCandidate:
        """The candidate of that name; KeyError for none."""
        for one in self.candidates:
            if one.name == name:
                return one
        raise KeyError(name)

    @property
    def measured_as(self) -> MeasureOptions:
        """The options of each comparison of one candidate with the baseline.

        The confidence that no candidate is called different by chance is for all of
        them: each is compared with so much more of it.
        """
        options = self.options
        check, rules = options.check, options.rules
        if check is not None and not check.dtypes:
            dtypes = tuple(one.dtype for one in self.buffers)
            check = attrs.evolve(check, dtypes=dtypes)
        share = (1.0 - rules.confidence) / max(1, len(self.candidates) - 1)
        rules = attrs.evolve(rules, confidence=min(1.0 - share, 1.0 - 1e-6))
        return attrs.evolve(options, check=check, rules=rules)


def kernel_work(
    kernel: PlannedKernel,
    buffers: Sequence[FleetBuffer],
    scalars: Sequence[ScalarArgument] = (),
    options: MeasureOptions | None = None,
) -> FleetWork:
    """A planned kernel's launch candidates as a list, named by their numbers.

    Args:
        kernel: whose, as ``fragment.planned_kernel(i)`` gives it.
        buffers: its buffer arguments, the element count's among them.
        scalars: its scalar arguments.
        options: how they are measured.

    Raises:
        InvalidType: it is no planned kernel.
        LaunchArgumentMismatch: the arguments are not as many as it takes.
    """
    if not isinstance(kernel, PlannedKernel):
        raise InvalidType("kernel_work.kernel", kernel, "a PlannedKernel")
    return FleetWork(
        candidates=tuple(
            FleetCandidate(
                name=str(index),
                artifact=kernel.artifact,
                geometry=candidate.geometry,
                scalars=tuple(scalars),
            )
            for index, candidate in enumerate(kernel.launch_resources.candidates)
        ),
        buffers=tuple(buffers),
        options=options or MeasureOptions(),
    )
