"""Names of the kernel form as identifiers that no language keeps for itself."""

from __future__ import annotations

import re

__all__ = ["Names"]


class Names:
    """Gives each name of a kernel an identifier of its own.

    All of them end in a single underscore, which no keyword, function or macro of
    the languages does, nor any name that the printer makes up; and none has two in
    a row, which GLSL and C++ reserve.
    """

    def __init__(self) -> None:
        self._given: dict[str, str] = {}
        self._taken: set[str] = set()

    def of(self, name: str) -> str:
        """The identifier of a name; the same each time."""
        if name not in self._given:
            stem = re.sub("_+", "_", name).strip("_")
            if not stem or stem[0].isdigit():
                stem = f"t{stem}"
            if stem.startswith("gl_"):
                stem = f"t_{stem}"
            chosen, number = f"{stem}_", 2
            while chosen in self._taken:
                chosen, number = f"{stem}_{number}_", number + 1
            self._taken.add(chosen)
            self._given[name] = chosen
        return self._given[name]
