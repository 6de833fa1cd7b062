"""What a command buffer has bound so far: what is bound already is not bound again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accy_async.backends.vulkan.kernels import DescriptorSet, VulkanKernel

__all__ = ["Bound"]


class Bound:
    """What the next launch of a command buffer finds bound.

    Attributes:
        kernel: whose pipeline, None before the first launch.
        descriptors: its set; None where the next launch has to bind one.
        scalars: its push constants; None where the next launch has to push them.
    """

    __slots__ = ("descriptors", "kernel", "scalars")

    def __init__(self) -> None:
        self.kernel: VulkanKernel | None = None
        self.descriptors: DescriptorSet | None = None
        self.scalars: bytes | None = None
