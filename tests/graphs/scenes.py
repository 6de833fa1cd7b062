"""Two runs in one session, to be cut short at every point: a scene, and its outcome."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio.lowlevel
import attrs
import numpy as np

from accy_async.backends import RecordingBackend
from accy_async.backends.replay import Replay
from accy_async.dtypes import DType
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.outcome import NodeState
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.run import Run
from accy_async.session import open_session
from tests.graph.graphs import kernel_entry
from tests.graphs.parts import KERNEL, check_empty, diamond

__all__ = ["Scene", "big_plan", "leaves", "skipped_behind"]

ONE = kernel_entry(1)


async def host_work() -> None:
    """A host call with an await of its own."""
    await anyio.lowlevel.checkpoint()


def big_plan(call: Callable[[], Awaitable[None]] = host_work) -> LaunchGraphPlan:
    """All that a graph may have: copies, streams, events, calls, loops of each kind."""
    b = LaunchGraphBuilder()
    source, out = b.host("source", DType.U32, 4), b.host("out", DType.U32, 4)
    x, y = b.buffer("x", DType.U32, 4), b.scratch("y", DType.U32, 4)
    z, flag = b.scratch("z", DType.U32, 4), b.scratch("flag", DType.U32, 1)
    b.copy_in(source, x, name="load")
    b.fill(y, 1, name="fill", stream="A", signal="filled")
    b.fill(flag, 0, name="flag")
    b.copy(x, z, name="copy")
    b.kernel(ONE, [x], name="change", wait="filled")
    b.host_call(call, [source], name="call", after="change")
    with b.loop(count=2, carries=[(y, z)], name="count"):
        b.kernel(ONE, [y], name="step")
        b.kernel(ONE, [z], name="other", priority=-1)
    with b.loop(while_=flag, name="while"):
        b.kernel(ONE, [flag], name="never")
    with b.loop(count=2, name="calls"):
        b.host_call(call, name="again", after="call")
        b.kernel(KERNEL, name="after")
    b.copy_out(x, out, name="save")
    b.kernel(ONE, [y], name="last", after="calls")
    return b.build()


def leaves(error: BaseException | None) -> list[BaseException]:
    """An error, or what a group is made of."""
    if error is None:
        return []
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in leaves(one)]
    return [error]


def skipped_behind(run: Run, plan: LaunchGraphPlan, failed: str) -> None:
    """Assert that what depends on the failed node was skipped, and nothing else."""
    for node in plan.nodes:
        if node.name == failed:
            continue
        is_behind = plan.precedes(failed, node.name) or (
            run[node.name].state is NodeState.SKIPPED
            and shares_loop(plan, failed, node.name)
        )
        expected = NodeState.SKIPPED if is_behind else NodeState.FINISHED
        assert run[node.name].state is expected, node.name


def shares_loop(plan: LaunchGraphPlan, one: str, two: str) -> bool:
    """True where some loop has both: a failure in one iteration ends the next."""
    index = plan.node_index
    return any(
        index[loop.first] <= index[one] <= index[loop.last]
        and index[loop.first] <= index[two] <= index[loop.last]
        for loop in plan.loops
    )


@attrs.define
class Scene:
    """One playing of the scene, on a device whose every completion is drawn.

    Attributes:
        options: of the big run.
        device, replay: where it plays.
        big, small: the runs, once started.
        raised: what awaiting each raised, by its name.
        error: what came out of the session.
        calls: the kinds of the calls made.
    """

    options: LaunchOptions = attrs.field(
        factory=lambda: LaunchOptions(name="big"), kw_only=True
    )
    device: RecordingBackend = attrs.field(factory=RecordingBackend, init=False)
    replay: Replay = attrs.field(init=False)
    plan: LaunchGraphPlan = attrs.field(factory=big_plan, init=False)
    small_plan: LaunchGraphPlan = attrs.field(factory=diamond, init=False)
    big: Run | None = attrs.field(default=None, init=False)
    small: Run | None = attrs.field(default=None, init=False)
    raised: dict[str, Exception] = attrs.field(factory=dict, init=False)
    error: BaseException | None = attrs.field(default=None, init=False)

    def __attrs_post_init__(self) -> None:
        self.replay = Replay(self.device, 5)

    @property
    def calls(self) -> list[str]:
        return [call.kind for call in self.device.calls]

    def cancel_big(self) -> None:
        """Cancel the big run, if it has been started."""
        if self.big is not None:
            self.big.cancel()

    async def act(self) -> None:
        """Open a session, start both runs, await both, whatever they raise."""
        arrays = {name: np.zeros(4, np.uint32) for name in ("source", "out")}
        async with open_session(self.device) as session:
            x = session.allocate(4, DType.U32)
            self.big = session.start(self.plan, {**arrays, "x": x}, self.options)
            await self.replay.until_blocked()  # so that the calls keep their order
            self.small = session.start(
                self.small_plan, options=LaunchOptions(name="small")
            )
            for run in (self.big, self.small):
                try:
                    await run
                except Exception as error:  # noqa: BLE001 - looked at by the test
                    self.raised[run.name] = error

    async def play(self, work: Callable[[], Awaitable[object]] | None = None) -> object:
        """Play it to its end; nothing of it is left then."""
        result = None
        try:
            result = await self.replay.drive(work or self.act)
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        check_empty(self.device)
        for run in (self.big, self.small):
            assert run is None or run.is_done
        return result
