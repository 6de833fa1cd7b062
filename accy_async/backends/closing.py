"""Objects that the end of an ``async with`` closes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from accy_async.backends.cleanup import raise_together

if TYPE_CHECKING:
    from types import TracebackType

__all__ = ["ClosedOnExit"]


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
