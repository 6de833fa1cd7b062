"""Sessions on a Vulkan device for tests that start their own loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from accy_async.artifact.formats import ArtifactFormat
from accy_async.backends.vulkan import VulkanBackend
from accy_async.dtypes import DType
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan
from accy_async.session import Session, open_session
from tests.graphs.programs import Kernels, library_kernels
from tests.vulkan import harness
from tests.vulkan.harness import join_threads

__all__ = ["kernels", "on_vulkan", "two_kernels"]


def kernels() -> Kernels:
    """The library's, for random graphs."""
    return library_kernels(ArtifactFormat.VULKAN_SPIRV)


def on_vulkan(
    work: Callable[[Session, VulkanBackend], Awaitable[None]], loop: str = "asyncio"
) -> None:
    """Do something in a session; nothing of it is left, on the device either."""
    backend = VulkanBackend(validation=harness.has_validation())

    async def main() -> None:
        async with open_session(backend) as session:
            with anyio.fail_after(100):
                await work(session, backend)
        assert not any(session.live_objects().values()), session.live_objects()

    anyio.run(main, backend=loop)
    backend.close()
    join_threads()
    assert backend.validation_messages == ()
    assert backend._device.made() == {}


def two_kernels(most: int) -> LaunchGraphPlan:
    """``y = a x + x`` and ``z = y + x``, of so many elements as a scalar says."""
    b = LaunchGraphBuilder()
    x, y, z = (b.buffer(name, DType.U32, most) for name in "xyz")
    count, factor = b.runtime_scalar(), b.runtime_scalar()
    b.kernel(kernels().axpy, [y.write, x.read, x.read], (count, factor), name="scale")
    b.kernel(kernels().add, [z.write, y.read, x.read], (count,), name="add")
    return b.build()
