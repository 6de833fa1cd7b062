"""Numbers and names as bytes: little-endian, each of a stated width."""

from __future__ import annotations

import struct
from enum import Enum
from typing import TypeVar

from accy_async.errors import InvalidArtifact

__all__ = ["MAX_TEXT_BYTES", "RecordReader", "RecordWriter"]

MAX_TEXT_BYTES = 4096
"""The longest name that a record holds."""

_CODES = {4: "I", 8: "Q"}
"""What `struct` calls numbers of so many bytes."""

_E = TypeVar("_E", bound=Enum)


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

    def numbers(self, count: int, size: int) -> tuple[int, ...]:
        """So many numbers, each of 4 or 8 bytes.

        Raises:
            InvalidArtifact: there are not so many.
        """
        begin = self.offset
        self.skip(count * size)
        return struct.unpack_from(f"<{count}{_CODES[size]}", self._data, begin)

    def text(self) -> str:
        """A name.

        Raises:
            InvalidArtifact: it is cut short, too long or no UTF-8.
        """
        at = self.offset
        size = self.unsigned(2)
        if size > MAX_TEXT_BYTES:
            raise self.fault(f"a name of {size} bytes", at)
        try:
            self.skip(size)
            return self.since(at + 2).decode()
        except UnicodeDecodeError:
            raise self.fault("a name that is no UTF-8", at) from None

    def member(self, kind: type[_E]) -> _E:
        """An enum's member.

        Raises:
            InvalidArtifact: the enum has none of that value.
        """
        at = self.offset
        value = self.text()
        try:
            return kind(value)
        except ValueError:
            raise self.fault(f"{value!r} is no {kind.__name__}", at) from None

    def skip(self, size: int) -> None:
        """Pass over bytes.

        Raises:
            InvalidArtifact: there are not so many.
        """
        if size > len(self._data) - self.offset:
            raise self._cut_short(size)
        self.offset += size

    def skip_text(self) -> None:
        """Pass over a name, of which only the length is looked at.

        Raises:
            InvalidArtifact: it is cut short.
        """
        self.skip(self.unsigned(2))

    def since(self, begin: int) -> bytes:
        """The bytes from an offset to here."""
        return self._data[begin : self.offset]

    def fault(self, message: str, offset: int | None = None) -> InvalidArtifact:
        """The error for what is wrong at an offset; that of the next byte if none."""
        at = self.offset if offset is None else offset
        return InvalidArtifact(f"{self._what}: {message}", offset=at)

    def _cut_short(self, size: int) -> InvalidArtifact:
        return self.fault(f"cut short: {self.remaining} bytes left of {size}")
