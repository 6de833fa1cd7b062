"""A plan whose two parts are graphs of two devices."""

from __future__ import annotations

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import MultiSession
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.parts import ONE, TWO
from tests.graph.graphs import kernel_entry

__all__ = ["kinds", "pair", "prepared_pair", "scalar"]


def pair() -> LaunchGraphPlan:
    """Two kernels on each device, a copy across, a loop, with a scalar of the run's."""
    b = LaunchGraphBuilder()
    scaled = kernel_entry(1, runtime_scalar_argument_count=1)
    x = b.buffer("x", DType.U32, 4, device="cuda:0")
    y = b.scratch("y", DType.U32, 4, device="cuda:1")
    z = b.scratch("z", DType.U32, 4, device="cuda:1")
    b.kernel(scaled, [x.read_write], [b.runtime_scalar()], name="first")
    b.kernel(ONE, [x.read_write], name="second")
    b.copy(x, y, name="across")
    with b.loop(count=3):
        b.kernel(TWO, [y.read, z.write], name="third")
    b.kernel(ONE, [x.read_write], name="beside")
    return b.build()


def scalar(value: int = 1, **more: object) -> LaunchOptions:
    return LaunchOptions(runtime_scalars=(ScalarArgument.u32(value),), **more)  # type: ignore[arg-type]


async def prepared_pair(session: MultiSession) -> SpanningPlan:
    x = session.allocate(4, DType.U32, device="cuda:0")
    made = await session.prepare(pair(), {"x": x}, scalar())
    assert isinstance(made, SpanningPlan)
    return made


def kinds(device: RecordingBackend) -> list[str]:
    return [call.kind for call in device.calls]
