"""Several objects are closed, whichever of them refuses or is cancelled meanwhile."""

from __future__ import annotations

import asyncio

import pytest

from accy_async.backends.closing import ClosedOnExit, close_each
from accy_async.errors import DeviceError

pytestmark = pytest.mark.anyio


class Thing(ClosedOnExit):
    """Ends as it is told to."""

    def __init__(self, ending: BaseException | None = None) -> None:
        self.is_closed = False
        self._ending = ending

    async def aclose(self) -> None:
        self.is_closed = True
        if self._ending is not None:
            raise self._ending


@pytest.fixture
def anyio_backend() -> str:
    """Whose cancellations these are."""
    return "asyncio"


def cut_short() -> ExceptionGroup[Exception]:
    """What a cleanup raises that failed, and was cancelled."""
    group = ExceptionGroup("cleanup failed", [DeviceError("two")])
    group.__cause__ = asyncio.CancelledError("native")
    return group


async def test_what_refused_is_raised_together() -> None:
    things = [Thing(DeviceError("one")), Thing(), Thing(DeviceError("three"))]
    with pytest.RaisesGroup(
        pytest.RaisesExc(DeviceError, match="one"),
        pytest.RaisesExc(DeviceError, match="three"),
    ):
        await close_each("closing", things)
    assert all(thing.is_closed for thing in things)


async def test_a_cancellation_goes_on_when_all_are_closed() -> None:
    cancelled = asyncio.CancelledError()
    things = [Thing(), Thing(cancelled), Thing(asyncio.CancelledError()), Thing()]
    with pytest.raises(asyncio.CancelledError) as caught:
        await close_each("closing", things)
    assert caught.value is cancelled
    assert all(thing.is_closed for thing in things)


async def test_a_cancellation_behind_an_error_goes_on_too() -> None:
    """It is the cause of what was raised in its place."""
    things = [Thing(cut_short()), Thing(DeviceError("three"))]
    with pytest.RaisesGroup(
        pytest.RaisesExc(DeviceError, match="two"),
        pytest.RaisesExc(DeviceError, match="three"),
    ) as caught:
        await close_each("closing", things)
    assert isinstance(caught.value.__cause__, asyncio.CancelledError)
    assert things[1].is_closed


@pytest.mark.parametrize("ending", [asyncio.CancelledError(), KeyboardInterrupt()])
async def test_a_bodys_error_outlives_what_interrupts_the_closing(
    ending: BaseException,
) -> None:
    with pytest.raises((ExceptionGroup, KeyboardInterrupt)) as caught:
        async with Thing(ending):
            raise ValueError("the body's")
    if isinstance(ending, KeyboardInterrupt):
        assert caught.value is ending
        told = ending.__context__
    else:
        assert caught.value.__cause__ is ending
        told = caught.value
    assert isinstance(told, ExceptionGroup)
    assert [str(one) for one in told.exceptions] == ["the body's"]


async def test_a_cancellation_without_an_error_leaves_as_it_is() -> None:
    cancelled = asyncio.CancelledError()
    with pytest.raises(asyncio.CancelledError) as caught:
        async with Thing(cancelled):
            pass
    assert caught.value is cancelled
