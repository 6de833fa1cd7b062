"""Plans in parts, whose every call fails, loses a device, or meets a cancellation."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Sequence

import anyio
import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError, DeviceLost
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.parts import TWO, check_all_empty, gpus, opened
from tests.devices.spans import kinds, pair, prepared_pair, scalar
from tests.graphs.scenes import leaves
from tests.harness.steps import cancel_scope, perform

pytestmark = pytest.mark.anyio


def turning() -> LaunchGraphPlan:
    """To the other device and back, as often as a scalar of the run's says."""
    b = LaunchGraphBuilder()
    x = b.buffer("x", DType.U32, 4, device="cuda:0")
    y, z = (b.scratch(name, DType.U32, 4, device="cuda:1") for name in "yz")
    b.fill(z, 1)
    with b.loop(count=b.runtime_scalar(), carries=[(y, z)]):
        b.copy(x, y)
        b.kernel(TWO, [y.read, z.read_write])
        b.copy(z, x)
    return b.build()


async def play(
    devices: Sequence[RecordingBackend], plan: LaunchGraphPlan
) -> list[BaseException]:
    """Prepare, run, submit, rebind, run and close; what was raised."""
    raised: list[BaseException] = []
    try:
        async with opened(devices) as session:
            try:
                with session.allocate(4, DType.U32, device="cuda:0") as x:
                    options = scalar(lowering="always")
                    made = await session.prepare(plan, {"x": x}, options)
                    assert isinstance(made, SpanningPlan)
                    try:
                        await made.run()
                        marks = [made.submit() for _ in range(2)]
                        await marks[-1].wait()
                        await made.rebind(runtime_scalars=[ScalarArgument.u32(2)])
                        await made.run()
                    finally:
                        await made.aclose()
            except (AccyError, ExceptionGroup) as error:
                raised += leaves(error)
    except (AccyError, ExceptionGroup) as error:
        raised += leaves(error)
    for device in devices:
        device.release_all()
    check_all_empty(devices)
    return raised


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
@pytest.mark.parametrize("make", [pair, turning])
async def test_each_call_failing_once_and_each_device_lost_at_each_call(
    make: Callable[[], LaunchGraphPlan],
) -> None:
    """The error comes out, and nothing is left on either device."""
    plan, plain = make(), gpus(2)
    assert not await play(plain, plan)
    for number in range(2):
        for nth in range(1, len(plain[number].calls) + 1):
            devices = gpus(2)
            devices[number].fail("*", nth)
            raised = await play(devices, plan)
            assert len(raised) == 1, (number, nth, kinds(devices[number])[nth - 1])
            lost = gpus(2)

            def lose(
                call: object, device: RecordingBackend = lost[number], nth: int = nth
            ) -> None:
                del call
                if len(device.calls) == nth:
                    device.lose_device("gone")

            lost[number].on_call = lose
            raised = await play(lost, plan)
            assert raised
            assert all(isinstance(one, DeviceLost) for one in raised), raised


@pytest.mark.parametrize("make", [pair, turning])
async def test_each_await_cancelled_once(make: Callable[[], LaunchGraphPlan]) -> None:
    plan = make()

    class Both:
        calls: tuple[object, ...] = ()

        def __init__(self) -> None:
            self.devices = gpus(2, is_holding=True)

        def release_all(self) -> None:
            for device in self.devices:
                device.release_all()

    async def cut(step: int | None) -> int:
        both = Both()
        injections = {} if step is None else {step: cancel_scope}
        outcome = await perform(
            both,  # type: ignore[arg-type]
            functools.partial(play, both.devices, plan),
            injections,
            both.release_all,
        )
        both.release_all()
        check_all_empty(both.devices)
        return outcome.steps

    for step in range(1, await cut(None) + 1):
        await cut(step)


@pytest.mark.parametrize("anyio_backend", [("asyncio", {})], ids=["asyncio"])
@pytest.mark.parametrize("is_closed", [False, True], ids=["run", "closed"])
async def test_parts_are_waited_for_however_often_asyncio_cancels(
    is_closed: bool,
) -> None:
    """A run, or the closing of a plan whose run goes on."""
    devices, ready = gpus(2), asyncio.Event()

    async def main() -> None:
        async with opened(devices) as session:
            made = await prepared_pair(session)
            for device in devices:
                device.hold_all()
            ready.set()
            if is_closed:
                made.submit()
                await made.aclose()
            else:
                await made.run()

    task = asyncio.create_task(main())
    with anyio.fail_after(20):
        await ready.wait()
        for _ in range(5):
            await anyio.wait_all_tasks_blocked()
            task.cancel()
        for device in devices:
            await anyio.wait_all_tasks_blocked()
            assert not task.done()
            device.release_all()
        with pytest.raises(asyncio.CancelledError):
            await task
    check_all_empty(devices)
