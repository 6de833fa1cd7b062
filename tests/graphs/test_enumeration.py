"""Graphs cut short everywhere: each call, each await, each launch, once each.

The scene has two runs in one session: a big one with streams, events, host calls
and loops, and a small one that nothing is to happen to.
"""

from __future__ import annotations

import functools

import anyio
import pytest

from accy_async.backends import CallRecord
from accy_async.errors import (
    AccyError,
    DeviceError,
    DeviceLost,
    OutOfMemory,
    RuntimeUnavailable,
)
from accy_async.graph.options import LaunchOptions, OnError
from accy_async.graph.outcome import NodeState, RunCancelled
from tests.graphs.scenes import Scene, leaves, skipped_behind
from tests.harness.steps import Injection, Outcome, cancel_scope, cancel_task, perform

pytestmark = pytest.mark.anyio

OF_NODES = {"write_buffer", "copy_buffer", "fill_buffer", "launch"}
USUAL: dict[str, type[AccyError]] = {
    "load_artifact": RuntimeUnavailable,
    "allocate_buffer": OutOfMemory,
}


async def calls_of_scene() -> list[str]:
    scene = Scene()
    await scene.play()
    assert scene.error is None
    assert scene.raised == {}
    return scene.calls


async def test_each_backend_call_failing_once() -> None:
    """Its own error comes out, alone: of its node, run, or session."""
    blamed: set[str] = set()
    for nth in range(1, len(await calls_of_scene()) + 1):
        scene = Scene()
        scene.device.fail("*", nth)
        await scene.play()

        kind = scene.calls[nth - 1]
        errors = [e for one in scene.raised.values() for e in leaves(one)]
        errors += leaves(scene.error)
        assert [type(e) for e in errors] == [USUAL.get(kind, DeviceError)], (nth, kind)
        if isinstance(errors[0], DeviceError):
            assert errors[0].call == kind
        for run, plan in ((scene.big, scene.plan), (scene.small, scene.small_plan)):
            if run is None or run.name not in scene.raised:
                assert run is None or run.state == "finished"
                continue
            assert run.state == "failed"
            nodes = [name for name in run.errors if name in plan.node_index]
            if kind in OF_NODES:
                (failed,) = nodes
                assert run[failed].state is NodeState.FAILED
                skipped_behind(run, plan, failed)
                blamed.add(kind)
    assert blamed == OF_NODES


async def test_each_await_cancelled_once() -> None:
    """Wherever the session's task is cut, the cancellation goes on and all is freed."""
    for step in range(1, await steps_of({}) + 1):
        scene, outcome = await cut({step: cancel_scope})
        assert scene.error is None
        assert outcome.error is None
        # Where the leaving had begun, which is shielded, nothing was left to cancel.
        assert outcome.was_cancelled or finished(scene)
        check_ended(scene)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_each_await_cancelled_by_asyncio_itself() -> None:
    """So it is with ``Task.cancel``, as `asyncio.timeout` does it."""
    for step in range(1, await steps_of({}) + 1):
        scene, outcome = await cut({step: cancel_task})
        assert scene.error is None
        assert outcome.error is None
        check_ended(scene)


async def cut(injections: dict[int, Injection]) -> tuple[Scene, Outcome]:
    scene = Scene()
    work = functools.partial(perform, scene.device, scene.act, injections)
    outcome = await scene.play(work)
    assert isinstance(outcome, Outcome)
    return scene, outcome


async def steps_of(injections: dict[int, Injection]) -> int:
    _, outcome = await cut(injections)
    assert outcome.is_success == (not injections)
    return outcome.steps


def finished(scene: Scene) -> bool:
    runs = (scene.big, scene.small)
    return all(run is not None and run.state == "finished" for run in runs)


def check_ended(scene: Scene) -> None:
    """Every node of both runs came to an end, and none failed."""
    for run, plan in ((scene.big, scene.plan), (scene.small, scene.small_plan)):
        if run is not None:
            states = {run[node.name].state for node in plan.nodes}
            assert states <= {NodeState.FINISHED, NodeState.CANCELLED}


async def test_each_call_meeting_the_cancelling_of_its_run() -> None:
    """``run.cancel()`` at any call ends that run alone, as cancelled."""
    for nth in range(1, len(await calls_of_scene()) + 1):
        scene = Scene()

        def at_nth(call: CallRecord, scene: Scene = scene, nth: int = nth) -> None:
            if len(scene.device.calls) == nth:
                scene.cancel_big()

        scene.device.on_call = at_nth
        await scene.play()
        assert scene.error is None
        assert scene.small is not None
        assert scene.small.state == "finished"
        if scene.raised:
            assert isinstance(scene.raised["big"], RunCancelled)
            check_ended(scene)


async def test_each_completion_meeting_the_cancelling_of_its_run() -> None:
    """So does ``run.cancel()`` after any number of completions."""
    scene = Scene()
    await scene.play()
    cancelled = 0
    for count in range(len(scene.replay.log)):
        scene = Scene()
        scene.replay.after(count, scene.cancel_big)
        await scene.play()
        assert scene.error is None
        assert scene.small is not None
        assert scene.small.state == "finished"
        if scene.raised:
            assert isinstance(scene.raised["big"], RunCancelled)
            cancelled += 1
        check_ended(scene)
    assert cancelled > 10


async def test_each_call_meeting_the_cancelling_of_the_session() -> None:
    """A scope around the session, cancelled at any call, ends it as cancelled."""
    for nth in range(1, len(await calls_of_scene()) + 1):
        scene = Scene()

        async def in_scope(scene: Scene = scene, nth: int = nth) -> None:
            with anyio.CancelScope() as scope:

                def cancel_at_nth(call: CallRecord) -> None:
                    if len(scene.device.calls) == nth:
                        scope.cancel()

                scene.device.on_call = cancel_at_nth
                await scene.act()

        await scene.play(in_scope)
        assert scene.error is None
        check_ended(scene)


@pytest.mark.parametrize("on_error", OnError)
async def test_each_launch_failing_on_the_device(on_error: OnError) -> None:
    """Its node fails, by name; what depends on it is skipped; the rest is as asked."""
    scene = Scene()
    await scene.play()
    for nth in range(1, scene.device.launch_count + 1):
        scene = Scene(options=LaunchOptions(name="big", on_error=on_error))
        scene.device.fail_execution(nth, code=719)
        await scene.play()
        assert scene.error is None
        ((name, group),) = scene.raised.items()
        (error,) = leaves(group)
        assert type(error) is DeviceError
        assert (error.code, error.node) == (
            719,
            scene.device.launches[nth - 1].diagnostic_id,
        )
        assert error.stream == scene.device.launches[nth - 1].stream.id  # type: ignore[union-attr]
        run = scene.big if name == "big" else scene.small
        plan = scene.plan if name == "big" else scene.small_plan
        assert run is not None
        assert run[error.node].state is NodeState.FAILED  # type: ignore[index]
        assert run[error.node].error is error  # type: ignore[index]
        if name == "small" or on_error is OnError.FINISH:
            skipped_behind(run, plan, error.node)  # type: ignore[arg-type]
        other = scene.small if name == "big" else scene.big
        assert other is not None
        assert other.state == "finished"


async def test_device_lost_at_each_launch() -> None:
    """Both runs, or what leaves the session, tell of it; nothing is left."""
    scene = Scene()
    await scene.play()
    for nth in range(1, scene.device.launch_count + 1):
        scene = Scene()
        scene.device.fail_execution(nth, sticky=True)
        await scene.play()
        told = [e for one in scene.raised.values() for e in leaves(one)]
        told += leaves(scene.error)
        assert told
        assert {type(e) for e in told} == {DeviceLost}
        assert {e.node for e in told if isinstance(e, DeviceLost)} == {
            scene.device.launches[nth - 1].diagnostic_id
        }
