"""Objects that the end of an ``async with`` closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Protocol, Self

import anyio

from accy_async.backends.cleanup import overtake, raise_together

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["Closes", "ClosedOnExit", "close_each"]


class Closes(Protocol):
    """What is closed once it is not needed any more."""

    async def aclose(self) -> None:
        """Close it. Idempotent."""


class ClosedOnExit(ABC):
    """Closed by `aclose`, and so at the end of its ``async with``.

    What closing raises joins the exception that the body ends with, as
    `accy_async.backends.cleanup` has it. Where closing went well nothing is raised:
    the body's exception goes on by itself.
    """

    __slots__ = ()

    @abstractmethod
    async def aclose(self) -> None:
        """Close it. Idempotent."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self.aclose()
        except Exception as error:  # noqa: BLE001 - raised together with the body's
            raise_together(f"closing {self!r}", exc, [error])
        except BaseException as interrupt:
            if not isinstance(exc, Exception):
                raise
            errors: list[Exception] = []
            primary = overtake(exc, interrupt, errors)
            raise_together(f"closing {self!r}", primary, errors)


async def close_each(what: str, objects: Iterable[Closes]) -> None:
    """Close every object, whichever of the others refused, or was cancelled.

    Args:
        what: the operation, for a group's message.
        objects: what to close, in this order.

    Raises:
        BaseException: what `raise_together` makes of all of it.

    Cancellation: as closing each; one of asyncio's own goes on when all are closed.
    """
    errors: list[Exception] = []
    interrupt: BaseException | None = None
    for one in objects:
        try:
            await one.aclose()
        except ExceptionGroup as group:
            errors += group.exceptions
            if isinstance(group.__cause__, anyio.get_cancelled_exc_class()):
                interrupt = interrupt or group.__cause__
        except Exception as error:  # noqa: BLE001 - raised together below
            errors.append(error)
        except BaseException as error:  # noqa: BLE001 - as above
            interrupt = interrupt or error
    raise_together(what, interrupt, errors)
