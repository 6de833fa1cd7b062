"""Letting real work go first: samples between its pieces, and only so many of them."""

from __future__ import annotations

from collections.abc import Callable

import anyio
import anyio.lowlevel

from accy_async.errors import InvalidType, InvalidValue

__all__ = ["SharedPace"]

_LOOK_S = 0.0005
"""How often it is looked whether real work is in flight."""


class SharedPace:
    """Waits before each sample until real work leaves room for it.

    A sample waits while real work is in flight, and so long that samples take at most
    ``share`` of the time. Work that never pauses is not waited for longer than
    ``most_wait_s``, so that tuning comes to an end beside it; its samples then are of
    a device that is shared, which shows in the conditions.

    Args:
        share: the part of the time that samples may take, above 0, at most 1.
        is_busy: whether real work is in flight now.
        most_wait_s: the longest wait for it to pause, in seconds.

    Attributes:
        waited_s: seconds waited so far.
        samples_beside_work: samples that were taken while real work was in flight.

    Raises:
        InvalidType: a number is none.
        InvalidValue: it is out of range.
    """

    def __init__(
        self, share: float, is_busy: Callable[[], bool], *, most_wait_s: float = 1.0
    ) -> None:
        for name, value in (("share", share), ("most_wait_s", most_wait_s)):
            if isinstance(value, bool) or not isinstance(value, (int, float)):
                raise InvalidType(f"SharedPace.{name}", value, "a number")
        if not 0.0 < share <= 1.0:
            raise InvalidValue("SharedPace.share", share, "above 0, at most 1")
        if not most_wait_s >= 0.0:
            raise InvalidValue("SharedPace.most_wait_s", most_wait_s, "0 or more")
        self.share = share
        self.most_wait_s = most_wait_s
        self.waited_s = 0.0
        self.samples_beside_work = 0
        self._is_busy = is_busy

    async def __call__(self, last_ns: float) -> None:
        """Return when the next sample may be taken.

        Args:
            last_ns: what the sample before took.

        Cancellation: only the wait stops.
        """
        begun = anyio.current_time()
        rest_s = last_ns * 1e-9 * (1.0 / self.share - 1.0)
        if rest_s > 0.0:
            await anyio.sleep(rest_s)
        else:
            await anyio.lowlevel.checkpoint()
        gives_up_at = anyio.current_time() + self.most_wait_s
        # Work comes and goes in several ways; no one event tells of all.
        while self._is_busy() and anyio.current_time() < gives_up_at:  # noqa: ASYNC110
            await anyio.sleep(_LOOK_S)
        self.samples_beside_work += self._is_busy()
        self.waited_s += anyio.current_time() - begun
