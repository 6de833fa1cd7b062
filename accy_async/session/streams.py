"""Leasing streams: a block that has one awaits its work."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from accy_async.backends.base import SettleTimeout
from accy_async.backends.cleanup import overtake, raise_together
from accy_async.errors import (
    GraceExpired,
)

if TYPE_CHECKING:
    from accy_async.backends.handles import StreamHandle

from accy_async.session.core import SessionCore

__all__ = ["SessionStreams"]


class SessionStreams(SessionCore):
    """The streams of a session."""

    @asynccontextmanager
    async def stream(self, *, priority: int = 0) -> AsyncIterator[StreamHandle]:
        """Lease a stream from the pool; leaving the block awaits its work.

        Awaits a free stream while all are leased. A stream belongs to the block
        that leased it, never to "the current task": pass it on by hand.

        Args:
            priority: 0 is normal, lower is more urgent.

        Raises:
            SessionClosed: the session is not open.
            WrongEventLoop: the session is another loop's.
            DeviceError: on leaving: work of the stream failed.
            GraceExpired: on leaving after an error or a cancellation (then in an
                ExceptionGroup): the work did not end in time. The stream is left
                to the reaper.

        Cancellation: while waiting for a stream, nothing has happened. Inside
            the block, what was submitted is awaited for the grace at most.
        """
        self._check_here("stream")
        stream = await self._streams.lease(priority)
        primary: BaseException | None = None
        try:
            self._check("stream")
            yield stream
            if self.backend.is_alive(stream):
                await self.backend.wait_stream(stream)
        except BaseException as error:  # noqa: BLE001 - raised below
            primary = error
        await self._return_stream(stream, primary)

    async def _return_stream(
        self, stream: StreamHandle, primary: BaseException | None
    ) -> None:
        backend = self.backend
        is_busy = (
            backend.is_healthy
            and backend.is_alive(stream)
            and not backend.is_stream_idle(stream)
        )
        settled = cancelled = None
        if is_busy:
            settled, cancelled = await backend.settle_whole(
                lambda: backend.wait_stream(stream), self.grace_s
            )
        name = f"stream {stream.id}"
        errors: list[Exception] = []
        if not self._streams.give_back(stream) and isinstance(settled, SettleTimeout):
            errors.append(GraceExpired(name, self.grace_s, (name,)))
            backend.reaper.give_up((name,), self.grace_s)
        elif settled is not None and not isinstance(settled, SettleTimeout):
            errors.append(settled)
        if cancelled is not None:
            primary = overtake(primary, cancelled, errors)
        raise_together(f"leaving {name}", primary, errors)
