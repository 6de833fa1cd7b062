"""A device that does not finish: the exit is bounded, and nothing busy is freed."""

from __future__ import annotations

import functools

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async.errors import DeviceError, GraceExpired, RuntimeUnavailable
from accy_async.pipeline import launch_pipeline
from tests.harness.clocks import on_jumping_clocks
from tests.harness.scenarios import LAUNCHES, Scenario, World
from tests.harness.steps import cancel_scope, perform

GRACE_S = 0.05

pytestmark = [pytest.mark.anyio, on_jumping_clocks]

WAITING = [
    one
    for one in LAUNCHES
    if one.is_held and "callers_pool-callers_scratch" not in one.name
]
each_waiting_launch = pytest.mark.parametrize(
    "scenario", [pytest.param(one, id=one.name) for one in WAITING]
)


def bound_s(anyio_backend_name: str) -> float:
    """How long an exit may take: by trio's fake clock 0.2 s more than the grace."""
    return GRACE_S + 0.2 if anyio_backend_name == "trio" else 20.0


def names(world: World) -> list[str]:
    """The names of what the launch owned, in the order of its destruction."""
    owned = []
    if world.scratch is None:
        ids = world.backend.allocated_buffer_ids[-2:]
        owned += [f"buffer {buffer_id} (316 bytes)" for buffer_id in reversed(ids)]
    if world.pool is None:
        owned += [
            f"artifact {launch.loaded_id} ({launch.kernel_name})"
            for launch in world.backend.launches
        ]
    return owned


@each_waiting_launch
async def test_a_cancelled_launch_leaves_a_stuck_device_within_its_grace(
    scenario: Scenario, anyio_backend_name: str
) -> None:
    """Busy objects go to the reaper, unfreed and named, until the device is done."""
    world = await scenario.start()
    backend = world.backend
    before = list(backend.destroyed_ids)
    error: BaseException | None = None

    with anyio.fail_after(bound_s(anyio_backend_name)):
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def launch() -> None:
                    nonlocal error
                    try:
                        await launch_pipeline(backend, world.request, grace_s=GRACE_S)
                    except ExceptionGroup as raised:
                        error = raised

                tasks.start_soon(launch)
                while backend.sync_count == 0:
                    await anyio.lowlevel.checkpoint()
                scope.cancel()
        await anyio.lowlevel.checkpoint()

    assert isinstance(error, ExceptionGroup)
    (expired,) = error.exceptions
    assert type(expired) is GraceExpired
    assert expired.grace_s == GRACE_S
    assert list(expired.objects) == names(world)
    assert all(name in str(expired) for name in names(world))
    assert isinstance(error.__cause__, anyio.get_cancelled_exc_class())
    assert backend.destroyed_ids == before
    assert sorted(backend.reaper.held()) == sorted(names(world))
    assert all(backend.is_alive(handle) for handle in world.callers())

    backend.release_all()
    world.check_untouched()
    assert len(backend.destroyed_ids) == len(before) + len(names(world))
    await scenario.check_works(world)


@each_waiting_launch
async def test_a_failed_wait_on_a_stuck_device_is_bounded_too(
    scenario: Scenario, anyio_backend_name: str
) -> None:
    """The error of the wait and the expired grace leave together, then it is freed."""
    world = await scenario.start()
    kind = "wait_device" if world.stream is None else "wait_stream"
    world.backend.fail(kind, 1)

    with anyio.fail_after(bound_s(anyio_backend_name)):
        with pytest.raises(ExceptionGroup) as caught:
            await launch_pipeline(world.backend, world.request, grace_s=GRACE_S)
        await anyio.lowlevel.checkpoint()

    failed, expired = caught.value.exceptions
    assert type(failed) is DeviceError
    assert failed.call == kind
    assert isinstance(expired, GraceExpired)
    assert list(expired.objects) == names(world)
    world.backend.release_all()
    world.check_untouched()
    await scenario.check_works(world)


async def test_a_failed_load_on_a_stuck_device_is_bounded_too(
    anyio_backend_name: str,
) -> None:
    """Stages in flight when a later one fails to load are waited for, for the grace."""
    scenario = WAITING[0]
    world = await scenario.start()
    world.backend.fail("load_artifact", 3)

    with anyio.fail_after(bound_s(anyio_backend_name)):
        with pytest.raises(ExceptionGroup) as caught:
            await launch_pipeline(world.backend, world.request, grace_s=GRACE_S)
        await anyio.lowlevel.checkpoint()

    failed, expired = caught.value.exceptions
    assert type(failed) is RuntimeUnavailable
    assert isinstance(expired, GraceExpired)
    assert list(expired.objects) == names(world)
    assert world.backend.launch_count == 2
    world.backend.release_all()
    world.check_untouched()
    await scenario.check_works(world)


async def test_the_backends_own_grace_is_the_default(anyio_backend_name: str) -> None:
    """Without ``grace_s`` a launch waits as long as its backend says."""
    scenario = WAITING[0]
    world = await scenario.start()
    world.backend.grace_s = GRACE_S
    world.backend.fail("load_artifact", 3)
    with anyio.fail_after(bound_s(anyio_backend_name)):
        with pytest.raises(ExceptionGroup) as caught:
            await launch_pipeline(world.backend, world.request)
        await anyio.lowlevel.checkpoint()
    expired = caught.value.exceptions[1]
    assert isinstance(expired, GraceExpired)
    assert expired.grace_s == GRACE_S
    await world.aclose()


async def test_a_device_that_finishes_within_the_grace_expires_nothing() -> None:
    """A cancelled launch whose work ends in time leaves as cancelled, and clean."""
    scenario = WAITING[0]
    world = await scenario.start()
    steps = (await perform(world.backend, functools.partial(scenario.act, world))).steps
    world.backend.hold_all()
    outcome = await perform(
        world.backend, functools.partial(scenario.act, world), {steps: cancel_scope}
    )
    assert outcome.was_cancelled
    assert outcome.error is None
    world.check_untouched()
    await world.aclose()


@each_waiting_launch
@pytest.mark.parametrize("refused", [1, 2])
async def test_every_other_object_is_destroyed_when_one_refuses(
    scenario: Scenario, refused: int
) -> None:
    """A destroy that fails on a stuck device is reported beside the expired grace."""
    world = await scenario.start()
    world.backend.fail("wait_device" if world.stream is None else "wait_stream", 1)
    world.backend.fail("destroy", refused)

    with pytest.raises(ExceptionGroup) as caught:
        await launch_pipeline(world.backend, world.request, grace_s=GRACE_S)

    failed, expired, unfreed = caught.value.exceptions
    assert isinstance(failed, DeviceError)
    assert isinstance(expired, GraceExpired)
    assert isinstance(unfreed, DeviceError)
    assert unfreed.call == "destroy"
    world.backend.release_all()
    world.check_untouched()
    await world.aclose()


async def test_c14_a_sticky_error_ends_a_stuck_wait() -> None:
    """When the device is lost, waits end at once and everything is freed."""
    scenario = WAITING[0]
    world = await scenario.start()
    backend = world.backend
    request = attrs.evolve(world.request, diagnostic_id="request 7")
    lost: list[BaseException] = []

    async def launch() -> None:
        try:
            await launch_pipeline(backend, request)
        except DeviceError as error:
            lost.append(error)

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(launch)
        while backend.sync_count == 0:
            await anyio.lowlevel.checkpoint()
        backend.lose_device("fell off the bus")

    assert len(lost) == 1
    assert "fell off the bus" in str(lost[0])
    assert not any(backend.live_objects().values())
