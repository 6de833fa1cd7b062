"""Whom the objects of a backend belong to: counted together, destroyed together.

Sessions may overlap on one backend. What is made through a session is its own,
whichever of them began or ends first. What is made on the backend itself meanwhile
says nothing of whose it is: it belongs to all sessions that are open, and goes with
the last of them. What is made while none is open is the caller's.
"""

from __future__ import annotations

__all__ = ["Owner"]


class Owner:
    """Names whom an object belongs to; `Backend.open_owner` gives one.

    Attributes:
        name: how messages name it.
        shared: the owner of what is made on the backend itself while this one, or
            another, is open.
        is_ended: True once it takes nothing more.
    """

    __slots__ = ("is_ended", "name", "shared")

    def __init__(self, name: str, shared: Owner | None = None) -> None:
        self.name = name
        self.shared = shared
        self.is_ended = False

    def __repr__(self) -> str:
        return f"<Owner {self.name}{': ended' if self.is_ended else ''}>"

    def has(self, other: Owner | None) -> bool:
        """True where the other's objects are this one's to count, and to destroy.

        Those of the shared owner are, until this one ends before it.
        """
        if other is self:
            return True
        is_shared = other is not None and other is self.shared
        return is_shared and (not self.is_ended or self.shared.is_ended)  # type: ignore[union-attr]
