"""Lowered plans whose every call fails, or meets a cancellation."""

from __future__ import annotations

import anyio
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import check_empty

pytestmark = pytest.mark.anyio

U32 = DType.U32


ONE, TWO = kernel_entry(1), kernel_entry(2)


class Scene:
    """A plan with all that can be lowered, run three times."""

    def __init__(self) -> None:
        b = LaunchGraphBuilder()
        source, out = b.host("source", U32, 4), b.host("out", U32, 4)
        x, y, z = b.buffer("x", U32, 4), b.scratch("y", U32, 4), b.scratch("z", U32, 4)
        b.copy_in(source, x, name="load")
        b.fill(y, 1, name="fill", signal="filled")
        b.copy(x, z, name="copy")
        b.kernel(ONE, [x], name="change", wait="filled")
        with b.loop(count=20, carries=[(y, z)], name="loop"):
            b.kernel(TWO, [y.read, z.write], name="step")
        b.copy_out(x, out, name="save")
        self.plan = b.build()
        self.device = RecordingBackend()
        self.raised: list[Exception] = []
        self.lowered = 0
        self.done = 0

    async def act(self) -> None:
        arrays = {name: np.zeros(4, np.uint32) for name in ("source", "out")}
        async with open_session(self.device) as session:
            x, other = session.allocate(4, U32), session.allocate(4, U32)
            for number in range(4):
                bindings = {**arrays, "x": x if number < 3 else other}
                run = session.start(self.plan, bindings)
                try:
                    if number == 1:
                        await run["change"]
                    self.lowered += (await run).is_lowered
                    self.done += 1
                except Exception as error:  # noqa: BLE001 - looked at by the test
                    self.raised.append(error)


async def test_each_call_failing_once() -> None:
    """Whichever backend call fails, it is told, but for the graph's; all is freed."""
    scene = Scene()
    await scene.act()
    assert (scene.lowered, scene.done) == (2, 4)
    check_empty(scene.device)
    count, untold = len(scene.device.calls), set()
    for nth in range(1, count + 1):
        scene = Scene()
        scene.device.fail("*", nth)
        error: BaseException | None = None
        try:
            await scene.act()
        except Exception as raised:  # noqa: BLE001 - looked at below
            error = raised
        check_empty(scene.device)
        kind = scene.device.calls[nth - 1].kind
        if not scene.raised and error is None:
            untold.add(kind)
            assert scene.done == 4
        elif error is None:
            assert scene.done == 3
    # What making a graph takes: a warning tells of it, and the plan runs node by node.
    assert untold == {"create_graph", "create_event", "destroy"}


async def test_each_call_meeting_a_cancellation() -> None:
    """A scope around the session, cancelled at any call, ends it; all is freed."""
    scene = Scene()
    await scene.act()
    for nth in range(1, len(scene.device.calls) + 1):
        scene = Scene()
        with anyio.CancelScope() as scope:

            def at_nth(
                _: object,
                scene: Scene = scene,
                scope: anyio.CancelScope = scope,
                nth: int = nth,
            ) -> None:
                if len(scene.device.calls) == nth:
                    scope.cancel()

            scene.device.on_call = at_nth
            await scene.act()
        check_empty(scene.device)
        assert not scene.raised
