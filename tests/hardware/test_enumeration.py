"""Every call of the driver failing once, and every await cancelled, on real devices.

One device serves all attempts: whatever went wrong in one, the next must find nothing
of it, and be exact. On Vulkan the validation layer, with its checks of synchronisation,
says nothing; on CUDA what the driver made is counted, and the memory in use looked at.
A made-up CUDA driver goes the same ways where there is no GPU.
"""

from __future__ import annotations

import contextlib
import functools
import traceback
from collections.abc import Iterator
from types import SimpleNamespace
from typing import cast

import anyio
import attrs
import pytest

from accy_async.backends import Backend, RecordingBackend
from accy_async.errors import AccyError
from accy_async.graph.outcome import RunCancelled
from tests.hardware.kinds import CUDA, FAKE_CUDA, VULKAN, Faults, Hardware, on
from tests.hardware.scenes import SCENES, Scene, replays
from tests.harness.steps import Outcome, cancel_scope, perform

MOST = 400
"""How many calls of a scene are refused at most: there are fewer than that."""


@attrs.frozen
class Driver:
    """The driver, which refuses on request."""

    hardware: Hardware
    faults: Faults

    def count(self) -> int:
        """How many calls there were so far that may be refused."""
        unfailing = self.hardware.unfailing
        return sum(name not in unfailing for name in self.faults.calls)

    def refuse(self, nth: int) -> list[str]:
        """Have the nth of them from here on refused; it is in the list then."""
        left, refused = nth, list[str]()

        def fault(number: int, name: str) -> int | None:
            nonlocal left
            del number
            if name in self.hardware.unfailing:
                return None
            left -= 1
            if left:
                return None
            refused.append(name)
            return self.hardware.fault_code

        self.faults.fault = fault
        return refused

    def permit(self) -> None:
        """Have none refused any more, and what could not be destroyed destroyed."""
        self.faults.fault = lambda number, name: None
        self.faults.settle()

    def check_told(self, refused: list[str], error: BaseException | None) -> None:
        """Assert that the call refused is what the error says, or did not matter."""
        if error is None:
            assert set(refused) <= self.hardware.absorbed
        else:
            story = "".join(traceback.format_exception(error))
            assert self.hardware.fault_name in story


@attrs.frozen
class Place:
    """A device of such a driver."""

    hardware: Hardware
    driver: Driver
    backend: Backend

    async def _settled(self, outcome: Outcome) -> None:
        """Return once nothing is left: what a thread still loads goes when it is."""
        for _ in range(1000):
            self.backend.reaper.sweep()
            left = self.backend.live_objects()
            if not any(left.values()):
                return
            await anyio.sleep(0.001)
        pytest.fail(f"{left} after {outcome}")

    async def perform(self, scene: Scene, step: int = 0) -> Outcome:
        """Run it, cancelled at a suspension where one is given; nothing is left."""
        nobody = cast("RecordingBackend", SimpleNamespace(calls=[]))
        injections = {step: cancel_scope} if step else {}
        with anyio.fail_after(60):
            outcome = await perform(
                nobody,
                functools.partial(scene, self.hardware, self.backend),
                injections,
            )
            self.driver.permit()
            with contextlib.suppress(AccyError):  # refused, and not told yet
                await self.backend.wait_device()
            await self._settled(outcome)
        self.hardware.check_quiet(self.backend)
        return outcome


def attempts(count: int) -> range:
    """Which of so many calls are refused, from 1: where there are many, evenly."""
    return range(1, count + 1, -(-count // MOST))


def on_each(*kinds: Hardware) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("hardware", on(*kinds), indirect=True)


ON_BOTH_LOOPS = pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
EACH_SCENE = pytest.mark.parametrize(
    "scene", [pytest.param(scene, id=scene.__name__) for scene in SCENES]
)


@pytest.fixture
def driver(hardware: Hardware, monkeypatch: pytest.MonkeyPatch) -> Driver:
    return Driver(hardware, hardware.faults(monkeypatch))


@pytest.fixture
def place(hardware: Hardware, driver: Driver) -> Iterator[Place]:
    backend = hardware.open()
    yield Place(hardware, driver, backend)
    hardware.close(backend)
    assert driver.faults.made() == {}


@pytest.mark.anyio
@on_each(CUDA, FAKE_CUDA, VULKAN)
@EACH_SCENE
async def test_each_call_of_the_driver_failing_once(place: Place, scene: Scene) -> None:
    driver = place.driver
    await place.perform(scene)  # what is made once is made
    before = driver.count()
    assert (await place.perform(scene)).is_success
    count = driver.count() - before
    assert count > 20
    for nth in attempts(count):
        refused = driver.refuse(nth)
        outcome = await place.perform(scene)
        driver.check_told(refused, outcome.error)
    assert (await place.perform(scene)).is_success


@pytest.mark.anyio
@on_each(CUDA, FAKE_CUDA)
async def test_each_call_in_the_life_of_a_device_failing_once(
    hardware: Hardware, driver: Driver
) -> None:
    """Opened, put to use and closed, each time anew. Vulkan's are in test_faults.py."""

    async def live() -> None:
        backend = hardware.open()
        try:
            await replays(hardware, backend)
        finally:
            try:
                backend.close()
            finally:
                await anyio.to_thread.run_sync(hardware.join_threads, backend)

    await live()
    before = driver.count()
    await live()
    for nth in attempts(driver.count() - before):
        refused, failed = driver.refuse(nth), None
        try:
            await live()
        except (AccyError, ExceptionGroup) as error:
            failed = error
        driver.permit()
        driver.check_told(refused, failed)
        assert driver.faults.made() == {}, refused
    await live()


@pytest.mark.anyio
@ON_BOTH_LOOPS
@on_each(CUDA, FAKE_CUDA, VULKAN)
@EACH_SCENE
async def test_each_await_cancelled_once(place: Place, scene: Scene) -> None:
    """How many there are depends on how fast the device is: some more are tried."""
    whole = await place.perform(scene)
    cancelled = 0
    for step in range(1, whole.steps + 3):
        outcome = await place.perform(scene, step)
        assert outcome.error is None or isinstance(outcome.error, RunCancelled)
        cancelled += outcome.was_cancelled
    assert cancelled > 0
    assert (await place.perform(scene)).is_success
