"""Sessions on a GPU for tests that start their own loops."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from accy_async.session import Session, open_session

__all__ = ["on_gpu", "until"]


def on_gpu(loop: str, work: Callable[[Session], Awaitable[None]]) -> None:
    """Do something in a session; nothing of it is left, on the device either."""

    async def main() -> None:
        async with open_session("cuda") as session:
            with anyio.fail_after(100):
                await work(session)
        assert not any(session.live_objects().values()), session.live_objects()

    anyio.run(main, backend=loop)


async def until(condition: Any) -> None:
    """Return once it is so."""
    with anyio.fail_after(10):
        while not condition():  # noqa: ASYNC110 - nothing tells of it
            await anyio.sleep(0.001)
