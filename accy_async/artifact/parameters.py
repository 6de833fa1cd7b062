"""What a kernel takes for a buffer, so that a wrong one is refused beforehand.

Code cannot be asked how far it reads. An entry that says so for each of its
buffers has them checked wherever it is prepared for launching: in a graph and in
a pipeline. (`Backend.launch` itself takes what it is given.)
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.geometry import Fixed, RuntimeCeilDiv
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import LaunchArgumentMismatch
from accy_async.values import enum, instances, one_of, optional

__all__ = ["KernelBuffer", "check_buffer_sizes"]


@attrs.frozen(kw_only=True)
class KernelBuffer:
    """One buffer of a kernel.

    Attributes:
        dtype: its element type.
        access: ``read_only``, ``write_only`` or ``read_write``.
        elements: how many elements the kernel may touch, from its runtime scalars
            (a `RuntimeCeilDiv` with divisor 1 is the scalar itself); None if that
            is not known.
    """

    dtype: DType = attrs.field(validator=enum(DType))
    access: str = attrs.field(
        validator=one_of(("read_only", "write_only", "read_write"))
    )
    elements: Fixed | RuntimeCeilDiv | None = attrs.field(
        default=None, validator=optional(instances(Fixed, RuntimeCeilDiv))
    )

    @property
    def is_written(self) -> bool:
        """True where the kernel writes it."""
        return self.access != "read_only"

    def byte_size(self, scalars: Sequence[ScalarArgument]) -> int:
        """Bytes that the kernel may touch; 0 if that is not known."""
        if self.elements is None:
            return 0
        return self.elements.resolve(scalars) * self.dtype.size_bytes


def check_buffer_sizes(
    where: str,
    parameters: Sequence[KernelBuffer],
    scalars: Sequence[ScalarArgument],
    byte_sizes: Sequence[int],
) -> None:
    """Refuse buffers that are smaller than what the kernel may touch.

    Args:
        where: the launch, for the message.
        parameters: the kernel's buffers; none where nothing is known of them.
        scalars: the launch's runtime scalars.
        byte_sizes: how large each buffer is.

    Raises:
        LaunchArgumentMismatch: one is too small.
    """
    for number, parameter in enumerate(parameters):
        wanted = parameter.byte_size(scalars)
        if byte_sizes[number] < wanted:
            raise LaunchArgumentMismatch(
                f"{where}: buffer {number} has {byte_sizes[number]} bytes, with "
                f"scalars {list(scalars)} the kernel takes at least {wanted} of "
                f"{parameter.dtype}"
            )
