"""Host calls that raise what is no error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import anyio
import pytest

import accy_async
from accy_async.backends import RecordingBackend
from accy_async.graph import HostCallFailed, LaunchGraphBuilder, NodeState

GIVE_UP_S = 20.0


class Strange(BaseException):
    """Neither an error nor an interrupt."""


def sync_call(raised: BaseException) -> Callable[[], object]:
    def call() -> None:
        raise raised

    return call


def async_call(raised: BaseException) -> Callable[[], object]:
    async def call() -> None:
        raise raised

    return call


@pytest.mark.anyio
@pytest.mark.parametrize("call", [sync_call, async_call])
@pytest.mark.parametrize(
    "raised",
    [
        asyncio.CancelledError("of somebody else"),
        Strange(),
        SystemExit(3),
        GeneratorExit(),
        BaseExceptionGroup("several", [Strange(), ValueError()]),
    ],
    ids=lambda raised: type(raised).__name__,
)
async def test_the_failure_is_the_nodes_own(
    call: Callable[[BaseException], Callable[[], object]], raised: BaseException
) -> None:
    g = LaunchGraphBuilder()
    first = g.host_call(call(raised), name="raises")
    g.host_call(lambda: None, name="after", after=first)
    g.host_call(lambda: None, name="other")
    with anyio.fail_after(GIVE_UP_S):
        async with accy_async.open_session(RecordingBackend()) as session:
            run = session.start(g.build())
            with pytest.raises(ExceptionGroup) as caught:
                await run
    (error,) = caught.value.exceptions
    assert isinstance(error, HostCallFailed)
    assert error.__cause__ is raised
    assert run["raises"].state is NodeState.FAILED
    assert run["after"].state is NodeState.SKIPPED
    assert run["other"].state is NodeState.FINISHED
