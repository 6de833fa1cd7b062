"""Numbers and names as bytes: little-endian, each of a stated width."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from functools import cache
from struct import Struct
from typing import Any, TypeVar

from accy_async.errors import InvalidArtifact

__all__ = ["MAX_TEXT_BYTES", "TEXT", "RecordReader", "RecordWriter", "numbers_of"]

MAX_TEXT_BYTES = 4096
"""The longest name that a record holds."""

TEXT = -1
"""A name, to `RecordReader.skip_parts`."""

_MOST_KNOWN = 1024
"""Parts of records that are remembered by their bytes, for each kind of part."""

_E = TypeVar("_E", bound=Enum)
_T = TypeVar("_T")


@cache
def numbers_of(layout: str) -> Struct:
    """Numbers one after the other: I for one of 4 bytes, Q for one of 8."""
    return Struct(f"<{layout}")


@cache
def _members(kind: type[Enum]) -> dict[bytes, Any]:
    """An enum's members, by what `RecordWriter.member` writes of them."""
    return {str(member.value).encode(): member for member in kind}


class RecordWriter:
    """Bytes so far."""

    def __init__(self) -> None:
        self._data = bytearray()

    def unsigned(self, value: int, size: int) -> None:
        """A number of ``size`` bytes."""
        self._data += value.to_bytes(size, "little")

    def text(self, value: str) -> None:
        """A name: its length in bytes (u16), then UTF-8.

        Raises:
            InvalidArtifact: it is over `MAX_TEXT_BYTES`.
        """
        data = value.encode()
        if len(data) > MAX_TEXT_BYTES:
            raise InvalidArtifact(
                f"a name of {len(data)} bytes, at most {MAX_TEXT_BYTES} are kept"
            )
        self.unsigned(len(data), 2)
        self._data += data

    def member(self, value: Enum) -> None:
        """An enum's member, by its value."""
        self.text(str(value.value))

    def bytes(self) -> bytes:
        """All that was written."""
        return bytes(self._data)


class RecordReader:
    """Reads what `RecordWriter` wrote, and believes none of it.

    Args:
        data: the bytes.
        what: what they are, for messages.
    """

    def __init__(self, data: bytes, what: str) -> None:
        self._data = data
        self._what = what
        self.offset = 0

    @property
    def remaining(self) -> int:
        """Bytes not read yet."""
        return len(self._data) - self.offset

    def unsigned(self, size: int) -> int:
        """A number of ``size`` bytes.

        Raises:
            InvalidArtifact: there are not so many.
        """
        begin = self.offset
        if size > len(self._data) - begin:
            raise self._cut_short(size)
        self.offset = begin + size
        return int.from_bytes(self._data[begin : self.offset], "little")

    def numbers(self, layout: Struct) -> tuple[int, ...]:
        """Numbers, as `numbers_of` has them.

        Raises:
            InvalidArtifact: there are not so many.
        """
        begin = self.offset
        self.skip(layout.size)
        return layout.unpack_from(self._data, begin)

    def text(self) -> str:
        """A name.

        Raises:
            InvalidArtifact: it is cut short, too long or no UTF-8.
        """
        at = self.offset
        data = self._named()
        try:
            return data.decode()
        except UnicodeDecodeError:
            raise self.fault("a name that is no UTF-8", at) from None

    def member(self, kind: type[_E]) -> _E:
        """An enum's member.

        Raises:
            InvalidArtifact: the enum has none of that value.
        """
        at = self.offset
        member: _E | None = _members(kind).get(self._named())
        if member is None:
            self.offset = at
            raise self.fault(f"{self.text()!r} is no {kind.__name__}", at)
        return member

    def part(
        self,
        known: dict[bytes, _T],
        skip: Callable[[RecordReader], None],
        read: Callable[[RecordReader], _T],
    ) -> _T:
        """A part that many records have alike, read and validated once.

        Args:
            known: those read before, by their bytes: immutable values.
            skip: passes over one.
            read: reads and validates one; what it raises is raised, and nothing is
                remembered.
        """
        begin = self.offset
        try:
            skip(self)
            found = known.get(self.since(begin))
        except InvalidArtifact:  # `read` says better what is wrong
            found = None
        if found is None:
            self.offset = begin
            found = read(self)
            if len(known) >= _MOST_KNOWN:
                known.clear()
            known[self.since(begin)] = found
        return found

    def skip(self, size: int) -> None:
        """Pass over bytes.

        Raises:
            InvalidArtifact: there are not so many.
        """
        end = self.offset + size
        if end > len(self._data):
            raise self._cut_short(size)
        self.offset = end

    def skip_parts(self, *sizes: int) -> None:
        """Pass over parts, each of so many bytes, or a name where it is `TEXT`.

        Raises:
            InvalidArtifact: there are not so many bytes.
        """
        data, at = self._data, self.offset
        try:
            for size in sizes:
                if size == TEXT:
                    at += 2 + data[at] + (data[at + 1] << 8)
                else:
                    at += size
        except IndexError:  # within a name's length
            at = len(data) + 2
        self.skip(at - self.offset)

    def since(self, begin: int) -> bytes:
        """The bytes from an offset to here."""
        return self._data[begin : self.offset]

    def fault(self, message: str, offset: int | None = None) -> InvalidArtifact:
        """The error for what is wrong at an offset; that of the next byte if none."""
        at = self.offset if offset is None else offset
        return InvalidArtifact(f"{self._what}: {message}", offset=at)

    def _named(self) -> bytes:
        """The bytes of a name."""
        begin = self.offset
        size = self.unsigned(2)
        if size > MAX_TEXT_BYTES:
            raise self.fault(f"a name of {size} bytes", begin)
        self.skip(size)
        return self._data[begin + 2 : self.offset]

    def _cut_short(self, size: int) -> InvalidArtifact:
        return self.fault(f"cut short: {self.remaining} bytes left of {size}")
