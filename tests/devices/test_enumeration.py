"""Sessions over several devices cut short everywhere: each call, await, loss.

The scene is a plan over two devices, a copy of an array from one to the other, and a
run of a third that is left alone. The plan goes once around, or to and fro in a loop
with carries, with a call on the host behind it. Its copies go straight or are staged;
its edges are waited for on the devices, or by the host.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence

import attrs
import numpy as np
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType
from accy_async.errors import (
    AccyError,
    DeviceError,
    DeviceLost,
    OutOfMemory,
    RuntimeUnavailable,
)
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.graph.run import Run
from accy_async.session import MultiSession, open_session
from tests.devices.parts import check_all_empty, gpus, ring, to_and_fro
from tests.graphs.parts import diamond
from tests.graphs.scenes import leaves
from tests.harness.steps import Outcome, cancel_scope, cancel_task, perform

pytestmark = pytest.mark.anyio

USUAL: dict[str, type[AccyError]] = {
    "load_artifact": RuntimeUnavailable,
    "allocate_buffer": OutOfMemory,
}


@attrs.frozen
class Way:
    """How the devices reach each other, and what the plan is."""

    has_peer_access: bool = True
    can_wait_for_peers: bool = True
    plan: Callable[[Sequence[str]], LaunchGraphPlan] = ring


WAYS = pytest.mark.parametrize(
    "way",
    [
        pytest.param(Way(peer, waits, plan), id=f"{how}-{plan.__name__}")
        for plan in (ring, to_and_fro)
        for how, peer, waits in (
            ("straight", True, True),
            ("staged", False, True),
            ("host waits", True, False),
        )
    ],
)

ONE_LOOP = pytest.mark.parametrize(
    "anyio_backend", [("asyncio", {"use_uvloop": False})], ids=["asyncio"]
)
"""For what is the devices' doing, on whichever loop."""


class Scene:
    """One playing of it."""

    def __init__(self, way: Way, *, is_holding: bool = False) -> None:
        self.way = way
        self.devices = gpus(
            3,
            has_peer_access=way.has_peer_access,
            can_wait_for_peers=way.can_wait_for_peers,
            is_holding=is_holding,
        )
        for device in self.devices:
            device.staging_bytes = 4  # type: ignore[misc]
        self.runs: dict[str, Run] = {}
        self.raised: list[BaseException] = []
        self.error: BaseException | None = None

    async def act(self) -> None:
        async with open_session(devices=self.devices) as session:
            await self._work(session)

    async def _work(self, session: MultiSession) -> None:
        plan = self.way.plan(["cuda:0", "cuda:1"])
        try:
            values = np.zeros(4, np.uint32)
            with await session.upload(values, device="cuda:0") as array:
                (await session.copy_to(array, "cuda:1")).free()
        except AccyError as error:
            self.raised.append(error)
        given = {"out": np.zeros(4, np.uint32)}
        self.runs["across"] = session.start(plan, given)
        self.runs["lone"] = session.on("cuda:2").start(diamond())
        for run in self.runs.values():
            try:
                await run
            except Exception as error:  # noqa: BLE001 - looked at by the test
                self.raised += leaves(error)

    async def play(self) -> None:
        try:
            await self.act()
        except Exception as error:  # noqa: BLE001 - looked at by the test
            self.error = error
        self.check_empty()

    def check_empty(self) -> None:
        for device in self.devices:
            device.release_all()
        check_all_empty(self.devices)
        assert all(run.is_done for run in self.runs.values())

    @property
    def told(self) -> list[BaseException]:
        return [*self.raised, *leaves(self.error)]


def kinds(device: RecordingBackend) -> list[str]:
    return [call.kind for call in device.calls]


async def calls_of(way: Way) -> list[list[str]]:
    scene = Scene(way)
    await scene.play()
    assert not scene.told
    return [kinds(device) for device in scene.devices]


@WAYS
@ONE_LOOP
async def test_each_call_on_each_device_failing_once(way: Way) -> None:
    """Its own error comes out, alone; nothing is left on any device."""
    seen: set[str] = set()
    for number, calls in enumerate(await calls_of(way)):
        for nth in range(1, len(calls) + 1):
            scene = Scene(way)
            scene.devices[number].fail("*", nth)
            await scene.play()
            kind = kinds(scene.devices[number])[nth - 1]
            expected = USUAL.get(kind, DeviceError)
            assert [type(one) for one in scene.told] == [expected], (number, nth, kind)
            assert all(device.is_healthy for device in scene.devices)
            if number != 2:
                assert scene.runs["lone"].state == "finished"
            seen.add(kind)
    expected_kinds = {"copy_to_peer", "launch", "destroy"}
    if way.can_wait_for_peers:
        expected_kinds.add("wait_for_peer")
    assert expected_kinds <= seen


@WAYS
@ONE_LOOP
async def test_each_device_lost_at_each_call(way: Way) -> None:
    """What needs it fails with its loss; the other devices' run is left alone."""
    for number, calls in enumerate(await calls_of(way)):
        for nth in range(1, len(calls) + 1):
            scene = Scene(way)
            lost = scene.devices[number]

            def at_nth(
                call: object, lost: RecordingBackend = lost, nth: int = nth
            ) -> None:
                del call
                if len(lost.calls) == nth:
                    lost.lose_device("gone")

            lost.on_call = at_nth
            await scene.play()
            assert not lost.is_healthy
            assert all(isinstance(one, DeviceLost) for one in scene.told), scene.told
            assert scene.told
            others = [one for one in scene.devices if one is not lost]
            assert all(device.is_healthy for device in others)
            if number != 2 and "lone" in scene.runs:
                assert scene.runs["lone"].state == "finished"


async def cut(way: Way, step: int | None, how: object) -> tuple[Scene, Outcome]:
    scene = Scene(way, is_holding=True)
    scene.devices[1].release_all()
    scene.devices[2].release_all()
    injections = {} if step is None else {step: how}
    outcome = await perform(
        _Together(scene.devices),  # type: ignore[arg-type]
        scene.act,
        injections,  # type: ignore[arg-type]
        functools.partial(_let_go, scene.devices),
    )
    scene.check_empty()
    return scene, outcome


class _Together:
    """What `perform` asks of a backend, of all of them."""

    def __init__(self, devices: Sequence[RecordingBackend]) -> None:
        self._devices = devices

    @property
    def calls(self) -> list[object]:
        return []

    def release_all(self) -> None:
        _let_go(self._devices)


def _let_go(devices: Sequence[RecordingBackend]) -> None:
    for device in devices:
        device.release_all()


@WAYS
async def test_each_await_cancelled_once(way: Way) -> None:
    """Wherever the session's task is cut, the cancellation goes on and all is freed."""
    _, whole = await cut(way, None, cancel_scope)
    assert whole.is_success
    for step in range(1, whole.steps + 1):
        scene, outcome = await cut(way, step, cancel_scope)
        assert outcome.error is None
        assert not scene.raised
        is_finished = [run.state == "finished" for run in scene.runs.values()]
        assert outcome.was_cancelled or (is_finished and all(is_finished))


@WAYS
@ONE_LOOP
async def test_each_await_cancelled_by_asyncio_itself(way: Way) -> None:
    """So it is with ``Task.cancel``."""
    _, whole = await cut(way, None, cancel_task)
    for step in range(1, whole.steps + 1):
        scene, outcome = await cut(way, step, cancel_task)
        assert outcome.error is None
        assert not scene.raised


async def test_opening_devices_that_fails_closes_those_that_are_open() -> None:
    """An unavailable device leaves none of the others behind."""
    mine = RecordingBackend()
    with pytest.raises(AccyError):
        async with open_session(devices=[mine, "cpu:1", "nonsense"]):
            pass
    assert mine.is_healthy
    assert not any(mine.live_objects().values())
    array = mine.allocate_buffer(DType.U32.size_bytes)
    mine.destroy(array)
