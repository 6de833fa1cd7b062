"""From work items to kernels in the kernel form, with geometry and candidates.

`kernelize` is the entrance; `WorkItem` and `KernelizedWork` are what goes in and comes
out, `TargetProfile` what it is made for. Inside, a kernel is put together in an
`assembly` from `places` (where an element lies) and `elements` (what it is), by the
module of its kind:

* `elementwise`: elementwise work and gathers;
* `rows`: reductions, row pipelines, losses, with `rowplan` (what is computed when),
  `rowlayout` (who does it), `rowelements` and `rowcode` (the code);
* `dot_general`: contractions, with `products` (their elements), `dot_cpu` and `dot_gpu`
  (tilings), `vectorproducts` (those that are sums);
* `scans` with `scancode`; `scatters`.

`schedules` has the layouts that there are to choose from.
"""

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
