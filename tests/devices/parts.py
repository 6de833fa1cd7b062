"""Small parts for sessions over several recording devices."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager

from accy_async.backends import BackendKind, RecordingBackend
from accy_async.dtypes import DType
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import MultiSession, open_session
from tests.graph.graphs import kernel_entry

__all__ = [
    "ONE",
    "TWO",
    "alone",
    "bound",
    "check_all_empty",
    "gpus",
    "opened",
    "ring",
    "to_and_fro",
]

ONE = kernel_entry(1)
"""A kernel of one buffer."""

TWO = kernel_entry(2)
"""A kernel of two buffers."""


def gpus(
    count: int,
    *,
    has_peer_access: bool = True,
    can_wait_for_peers: bool = True,
    is_holding: bool = False,
    grace_s: float = 5.0,
) -> list[RecordingBackend]:
    """Recording devices ``cuda:0`` and so on."""
    return [
        RecordingBackend(
            BackendKind.CUDA,
            index=index,
            has_peer_access=has_peer_access,
            can_wait_for_peers=can_wait_for_peers,
            is_holding=is_holding,
            grace_s=grace_s,
        )
        for index in range(count)
    ]


def opened(
    devices: Sequence[RecordingBackend],
) -> AbstractAsyncContextManager[MultiSession]:
    """A session over them."""
    return open_session(devices=devices)


def check_all_empty(devices: Sequence[RecordingBackend]) -> None:
    """Assert that nothing is left on any device."""
    for device in devices:
        assert not any(device.live_objects().values()), device.live_objects()
        assert len(device.reaper) == 0


def alone() -> LaunchGraphPlan:
    """A plan whose data are its own."""
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, 4)
    b.kernel(ONE, [x], name="work")
    return b.build()


def bound(count: int = 1) -> LaunchGraphPlan:
    """A plan over bound buffers."""
    b = LaunchGraphBuilder()
    uses = [b.buffer(f"x{i}", DType.U32, 4) for i in range(count)]
    b.kernel(kernel_entry(count), uses, name="work")
    return b.build()


def ring(devices: Sequence[str]) -> LaunchGraphPlan:
    """A kernel on each device, and copies from each to the next, all around."""
    b = LaunchGraphBuilder()
    out = b.host("out", DType.U32, 4)
    buffers = [
        b.scratch(f"x{number}", DType.U32, 4, device=name)
        for number, name in enumerate(devices)
    ]
    b.fill(buffers[0], 7, name="begin")
    for number, buffer in enumerate(buffers):
        b.kernel(ONE, [buffer.read_write], name=f"work{number}")
        after = buffers[(number + 1) % len(buffers)]
        b.copy(buffer, after, name=f"pass{number}")
    b.copy_out(buffers[0], out, name="end")
    return b.build()


def to_and_fro(devices: Sequence[str]) -> LaunchGraphPlan:
    """Twice from the first device to the last and back, then a call on the host."""
    b = LaunchGraphBuilder()
    out = b.host("out", DType.U32, 4)
    here, there = devices[0], devices[-1]
    x = b.scratch("x", DType.U32, 4, device=here)
    y, z = (b.scratch(name, DType.U32, 4, device=there) for name in "yz")
    b.fill(x, 7, name="begin")
    b.fill(z, 7, name="begin there")
    with b.loop(count=2, carries=[(y, z)]):
        b.copy(x, y, name="go")
        b.kernel(TWO, [y.read, z.write], name="work there")
        b.copy(z, x, name="return")
        b.kernel(ONE, [x.read_write], name="work here")
    b.copy_out(x, out, name="read")
    b.host_call(lambda: None, reads=[out], name="look")
    b.fill(x, 0, name="end")
    return b.build()
