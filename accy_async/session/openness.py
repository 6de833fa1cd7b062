"""Whether a session is open, and whose event loop it is on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.backends.loops import current_bell, require_loop_of
from accy_async.errors import SessionClosed

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from accy_async.backends.bell import Bell

__all__ = ["Openness"]


class Openness:
    """What a session over any number of devices refuses, and when."""

    def __init__(self) -> None:
        self._state = "open"
        self._group: TaskGroup | None = None
        self._bell: Bell | None = None

    @property
    def is_open(self) -> bool:
        """True until the session's block is left."""
        return self._state == "open"

    def _begin(self, group: TaskGroup) -> None:
        """The session's tasks are in this group, of the loop that this runs on."""
        self._group = group
        self._bell = current_bell()

    def _check(self, call: str) -> None:
        if self._state != "open":
            raise SessionClosed(f"{call}: the session is {self._state}")

    def _check_here(self, call: str) -> TaskGroup:
        """The group of the session's tasks, which its own event loop alone may use."""
        self._check(call)
        assert self._group is not None
        assert self._bell is not None
        require_loop_of(self._bell, call)
        return self._group
