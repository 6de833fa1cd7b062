"""Plans in parts, whose every call fails, loses a device, or meets a cancellation."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import pytest

from accy_async.backends import RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError, DeviceLost
from tests.devices.parts import check_all_empty, gpus, opened
from tests.devices.spans import kinds, pair, scalar
from tests.graphs.scenes import leaves
from tests.harness.steps import cancel_scope, perform

pytestmark = pytest.mark.anyio


async def play(devices: Sequence[RecordingBackend]) -> list[BaseException]:
    """Prepare, run, rebind, run and close; what was raised."""
    raised: list[BaseException] = []
    try:
        async with opened(devices) as session:
            try:
                with session.allocate(4, DType.U32, device="cuda:0") as x:
                    options = scalar(lowering="always")
                    made = await session.prepare(pair(), {"x": x}, options)
                    try:
                        await made.run()
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
async def test_each_call_failing_once_and_each_device_lost_at_each_call() -> None:
    """The error comes out, and nothing is left on either device."""
    plain = gpus(2)
    assert not await play(plain)
    for number in range(2):
        for nth in range(1, len(plain[number].calls) + 1):
            devices = gpus(2)
            devices[number].fail("*", nth)
            raised = await play(devices)
            assert len(raised) == 1, (number, nth, kinds(devices[number])[nth - 1])
            lost = gpus(2)

            def lose(
                call: object, device: RecordingBackend = lost[number], nth: int = nth
            ) -> None:
                del call
                if len(device.calls) == nth:
                    device.lose_device("gone")

            lost[number].on_call = lose
            raised = await play(lost)
            assert raised
            assert all(isinstance(one, DeviceLost) for one in raised), raised


async def test_each_await_cancelled_once() -> None:
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
            functools.partial(play, both.devices),
            injections,
            both.release_all,
        )
        both.release_all()
        check_all_empty(both.devices)
        return outcome.steps

    for step in range(1, await cut(None) + 1):
        await cut(step)
