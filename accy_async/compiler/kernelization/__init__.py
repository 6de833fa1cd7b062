"""From work items to kernels in the kernel form, with geometry and candidates."""

from accy_async.compiler.kernelization.kernelize import kernelize
from accy_async.compiler.kernelization.profile import (
    MathTier,
    TargetProfile,
    math_tier,
)
from accy_async.compiler.kernelization.work import (
    BufferOrigin,
    KernelizedWork,
    KernelStep,
    StepBuffer,
    WorkItem,
)

__all__ = [
    "BufferOrigin",
    "KernelStep",
    "KernelizedWork",
    "MathTier",
    "StepBuffer",
    "TargetProfile",
    "WorkItem",
    "kernelize",
    "math_tier",
]
