"""Where kernels of the kernel form run, so that each test of them is written once.

A test names its places with `on` or `with_dtypes`, is given one as ``place``, and
runs its kernels by it. Where a place is not to be had, the test is skipped, saying why.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from typing import Any

import attrs
import pytest

from accy_async.compiler.emit.text import VulkanFeature, VulkanTarget
from accy_async.compiler.form import Kernel
from accy_async.compiler.nvrtc import nvrtc_version
from accy_async.dtypes import DType
from accy_async.errors import BackendUnavailable
from tests.compiler.harness import Array, CpuRunner, Grid, KernelRunner
from tests.gpu.harness import GpuRunner
from tests.text.host import COMPILER, HostRunner
from tests.vulkan import harness as vulkan
from tests.vulkan.harness import VulkanRunner

__all__ = [
    "CPU",
    "EVERYWHERE",
    "GPU",
    "GPU_TEXT",
    "HOST_CUDA",
    "HOST_MSL",
    "VULKAN",
    "Place",
    "cpu",
    "on",
    "with_dtypes",
]


@attrs.frozen(eq=False)
class Place:
    """Where kernels run, and what comes between.

    Attributes:
        name: Stands in the names of tests.
        make: Makes kernels ready.
        missing: Why none can run here; empty where they can.
        marks: What tests there are marked with.
        lacks: Dtypes that kernels there cannot have.
        examples: How many random kernels a test tries: few where compiling is slow.
        keeps: Whether subnormals of a float are promised to be what they are, and not
            taken for zeros.
    """

    name: str
    make: Callable[[Sequence[Kernel]], KernelRunner]
    missing: Callable[[], str] = str
    marks: tuple[pytest.MarkDecorator, ...] = ()
    lacks: frozenset[DType] = frozenset()
    examples: int = 25
    keeps: Callable[[DType], bool] = lambda dtype: True

    def compiled(self, *kernels: Kernel) -> closing[KernelRunner]:
        """Kernels ready to run, for a ``with``."""
        if reason := self.missing():
            pytest.skip(reason)
        return closing(self.make(kernels))

    def run_once(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[object] = (),
        grid: Grid | int = 1,
    ) -> int:
        """Run one kernel once; its status."""
        with self.compiled(kernel) as runner:
            return runner.run(kernel.name, buffers, scalars, grid)


@functools.cache
def _nvrtc_missing() -> str:
    try:
        nvrtc_version()
    except BackendUnavailable as error:
        return str(error)
    return ""


def _vulkan_missing() -> str:
    reason = vulkan.unavailable()
    return f"no Vulkan: {reason}" if reason else ""


def _compiler_missing() -> str:
    return "" if COMPILER else "no g++ to run texts with"


def cpu(format: str = "cpu_machine_code", level: str | None = None) -> Place:
    """This host's CPU, with a payload of this format for this level of it."""
    name = "-".join(["cpu", *([level] if level else [])])
    return Place(name, functools.partial(CpuRunner, format=format, level=level))


CPU = cpu()
GPU = Place("gpu", GpuRunner, marks=(pytest.mark.gpu,))
GPU_TEXT = Place(
    "gpu-text",
    functools.partial(GpuRunner, as_text=True),
    _nvrtc_missing,
    marks=(pytest.mark.gpu,),
    examples=10,
)
_KEEPING = {
    DType.F32: VulkanFeature.SUBNORMALS_32,
    DType.F64: VulkanFeature.SUBNORMALS_64,
}


def target() -> VulkanTarget:
    """What the Vulkan device here can do."""
    return vulkan.device().target


VULKAN = Place(
    "vulkan",
    VulkanRunner,
    _vulkan_missing,
    marks=(pytest.mark.vulkan,),
    examples=10,
    keeps=lambda dtype: dtype not in _KEEPING or _KEEPING[dtype] in target().features,
)
HOST_CUDA, HOST_MSL = (
    Place(
        f"host-{language}",
        functools.partial(HostRunner, language=language),
        _compiler_missing,
        lacks=lacks,
        examples=8,
    )
    for language, lacks in (("cuda", frozenset()), ("msl", frozenset({DType.F64})))
)
EVERYWHERE = (CPU, GPU, GPU_TEXT, VULKAN, HOST_CUDA, HOST_MSL)


def on(*places: Place) -> pytest.MarkDecorator:
    """Have a test run at each of these places."""
    return pytest.mark.parametrize(
        "place", [pytest.param(p, id=p.name, marks=p.marks) for p in places]
    )


def with_dtypes(dtypes: Iterable[DType], places: Iterable[Place]) -> Any:
    """Have a test run at each place with each of these dtypes that it has."""
    dtypes = list(dtypes)
    return pytest.mark.parametrize(
        ("place", "dtype"),
        [
            pytest.param(place, dtype, id=f"{place.name}-{dtype}", marks=place.marks)
            for place in places
            for dtype in dtypes
            if dtype not in place.lacks
        ],
    )
