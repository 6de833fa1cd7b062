"""Every backend call of every operation fails once, and every await is cut short.

Each scenario runs once to count its backend calls and its suspensions, then once
for each of them with a failure there. After each run the documented error has
come out, only the caller's own objects are alive, and the same operation works.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping

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
from tests.harness.scenarios import LAUNCHES, SCENARIOS, Scenario, World
from tests.harness.steps import (
    Injection,
    Outcome,
    cancel_scope,
    cancel_task,
    interrupt,
    perform,
)

pytestmark = pytest.mark.anyio

each_scenario = pytest.mark.parametrize(
    "scenario", [pytest.param(one, id=one.name) for one in SCENARIOS]
)
each_launch = pytest.mark.parametrize(
    "scenario", [pytest.param(one, id=one.name) for one in LAUNCHES]
)

USUAL: dict[str, type[AccyError]] = {
    "load_artifact": RuntimeUnavailable,
    "allocate_buffer": OutOfMemory,
}


async def act(
    scenario: Scenario,
    failures: Mapping[int, BaseException | None] | None = None,
    injections: dict[int, Injection] | None = None,
) -> tuple[World, Outcome, list[str]]:
    """One run: its world, its outcome, and the kinds of calls that it made.

    ``failures`` maps numbers of backend calls to what they raise, None for the
    call's usual error.
    """
    world = await scenario.start()
    for nth, error in (failures or {}).items():
        world.backend.fail("*", nth, error)
    before = len(world.backend.calls)
    outcome = await perform(
        world.backend, functools.partial(scenario.act, world), injections
    )
    kinds = [call.kind for call in world.backend.calls[before:]]
    return world, outcome, kinds


async def calls_of(scenario: Scenario) -> list[str]:
    world, outcome, kinds = await act(scenario)
    assert outcome.is_success
    await world.aclose()
    return kinds


async def steps_of(
    scenario: Scenario, injections: dict[int, Injection] | None = None
) -> int:
    world, outcome, _ = await act(scenario, injections=injections)
    await world.aclose()
    return outcome.steps


@each_scenario
async def test_each_backend_call_failing_once(scenario: Scenario) -> None:
    """The call's own error comes out, alone, and nothing of the operation is left."""
    for nth, kind in enumerate(await calls_of(scenario), 1):
        world, outcome, _ = await act(scenario, {nth: None})

        assert type(outcome.error) is USUAL.get(kind, DeviceError)
        if isinstance(outcome.error, DeviceError):
            assert outcome.error.call == kind
        world.check_untouched()
        await scenario.check_works(world)


@each_scenario
async def test_each_pair_of_backend_calls_failing(scenario: Scenario) -> None:
    """A failure of the cleanup joins the error that began it in one group."""
    first, second = DeviceError("the first"), DeviceError("the second")
    for nth in range(1, len(await calls_of(scenario)) + 1):
        world, _, kinds = await act(scenario, {nth: first})
        await world.aclose()
        for later in range(nth + 1, len(kinds) + 1):
            world, outcome, _ = await act(scenario, {nth: first, later: second})

            assert isinstance(outcome.error, ExceptionGroup)
            assert outcome.error.exceptions == (first, second)
            world.backend.release_all()
            world.check_untouched()
            await scenario.check_works(world)


@each_scenario
async def test_interrupt_at_each_backend_call(scenario: Scenario) -> None:
    """A KeyboardInterrupt inside any call leaves as itself, and nothing is left."""
    for nth in range(1, len(await calls_of(scenario)) + 1):
        pressed = KeyboardInterrupt()
        world, outcome, _ = await act(scenario, {nth: pressed})

        assert outcome.error is pressed
        world.check_untouched()
        await scenario.check_works(world)


@each_scenario
async def test_interrupt_during_the_cleanup_of_each_failed_call(
    scenario: Scenario,
) -> None:
    """An interrupt wins over the error it meets, which stays attached to it."""
    for nth in range(1, len(await calls_of(scenario)) + 1):
        first = DeviceError("the first")
        world, _, kinds = await act(scenario, {nth: first})
        await world.aclose()
        for later in range(nth + 1, len(kinds) + 1):
            pressed = KeyboardInterrupt()

            world, outcome, _ = await act(scenario, {nth: first, later: pressed})

            assert outcome.error is pressed
            assert first in attached(pressed)
            world.backend.release_all()
            world.check_untouched()
            await scenario.check_works(world)


def attached(error: BaseException) -> list[BaseException]:
    """Every error reachable from one: causes, contexts, members of groups."""
    found: list[BaseException] = []
    pending: list[BaseException | None] = [error.__cause__, error.__context__]
    while pending:
        one = pending.pop()
        if one is None or any(one is known for known in found):
            continue
        found.append(one)
        pending += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            pending += one.exceptions
    return found


@each_scenario
async def test_each_await_cancelled_once(scenario: Scenario) -> None:
    """A cancellation at any await goes on as one, and nothing is left."""
    for step in range(1, await steps_of(scenario) + 1):
        world, outcome, _ = await act(scenario, injections={step: cancel_scope})

        assert outcome.error is None
        assert outcome.was_cancelled or not scenario.launches
        world.check_untouched()
        await scenario.check_works(world)


@each_scenario
async def test_cancelled_before_the_start(scenario: Scenario) -> None:
    """An operation whose scope is cancelled already makes no backend call at all."""
    world, outcome, kinds = await act(scenario, injections={1: cancel_scope})
    assert outcome.was_cancelled
    assert kinds == []
    await world.aclose()


@each_scenario
@pytest.mark.parametrize("anyio_backend", [("asyncio", {"use_uvloop": False})])
async def test_each_await_cancelled_by_asyncio_itself(scenario: Scenario) -> None:
    """``Task.cancel`` at any await, and again at any of the cleanup's, leaks nothing.

    What was still in use when the cleanup's own wait was cancelled is the reaper's,
    and is freed once the device is done.
    """
    for step in range(1, await steps_of(scenario) + 1):
        first: dict[int, Injection] = {step: cancel_task}
        world, outcome, _ = await act(scenario, injections=first)
        assert outcome.error is None
        world.check_untouched()
        await scenario.check_works(world)

        for later in range(step + 1, await steps_of(scenario, first) + 1):
            world, outcome, _ = await act(
                scenario, injections={**first, later: cancel_task}
            )
            assert outcome.error is None
            assert outcome.was_cancelled
            world.backend.release_all()
            world.check_untouched()
            await scenario.check_works(world)


@each_scenario
async def test_each_await_interrupted(scenario: Scenario) -> None:
    """An interrupt at any await leaves as itself, during a cleanup too."""
    for step in range(1, await steps_of(scenario) + 1):
        world, outcome, _ = await act(scenario, injections={step: interrupt})
        assert isinstance(outcome.error, KeyboardInterrupt)
        world.backend.release_all()
        world.check_untouched()
        await scenario.check_works(world)

        first: dict[int, Injection] = {step: cancel_scope}
        for later in range(step + 1, await steps_of(scenario, first) + 1):
            world, outcome, _ = await act(
                scenario, injections={**first, later: interrupt}
            )
            assert isinstance(outcome.error, KeyboardInterrupt)
            world.backend.release_all()
            world.check_untouched()
            await scenario.check_works(world)


@each_scenario
async def test_each_backend_call_meeting_a_cancellation(scenario: Scenario) -> None:
    """A scope cancelled inside any call takes effect at the next await, cleanly."""
    for nth in range(1, len(await calls_of(scenario)) + 1):
        world = await scenario.start()
        count = itertools.count(1)
        with anyio.CancelScope() as scope:

            def cancel_at_nth(
                call: CallRecord,
                nth: int = nth,
                count: itertools.count[int] = count,
                scope: anyio.CancelScope = scope,
            ) -> None:
                if next(count) == nth:
                    scope.cancel()

            world.backend.on_call = cancel_at_nth
            outcome = await perform(
                world.backend, functools.partial(scenario.act, world)
            )
            assert outcome.error is None
        world.backend.on_call = None
        world.backend.release_all()
        world.check_untouched()
        await scenario.check_works(world)


@each_launch
@pytest.mark.parametrize("stage", [1, 2, 3])
async def test_each_stage_failing_on_the_device(scenario: Scenario, stage: int) -> None:
    """The wait that covers it raises one error that names stage, kernel and stream."""
    world = await scenario.start()
    world.backend.fail_execution(stage, code=719)
    outcome = await perform(world.backend, functools.partial(scenario.act, world))
    error = outcome.error
    if world.pool is not None and world.scratch is not None:
        assert outcome.is_success
        world.backend.release_all()
        error = (await perform(world.backend, world.backend.wait_device)).error

    assert type(error) is DeviceError
    launched = world.backend.launches[stage - 1]
    assert error.kernel == launched.kernel_name
    assert error.node == f"accy.kernel.test.device_scan[{stage - 1}] {error.kernel}"
    assert error.stream == (None if world.stream is None else world.stream.id)
    assert error.code == 719
    world.check_untouched()
    await scenario.check_works(world)


@each_launch
@pytest.mark.parametrize("stage", [1, 2, 3])
async def test_device_lost_at_each_stage(scenario: Scenario, stage: int) -> None:
    """A lost device ends the launch with one DeviceLost; all objects are let go."""
    world = await scenario.start()
    world.backend.fail_execution(stage, sticky=True)
    outcome = await perform(world.backend, functools.partial(scenario.act, world))
    error = outcome.error
    if outcome.is_success:
        world.backend.release_all()
        error = (await perform(world.backend, world.backend.wait_device)).error

    assert type(error) is DeviceLost
    assert error.kernel == world.backend.launches[stage - 1].kernel_name
    assert isinstance(error.__cause__, DeviceError)
    world.check_untouched()
    await world.aclose()
