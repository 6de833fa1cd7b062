"""What a decoder is to those who look for faults in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

import attrs

from accy_async.errors import InvalidArtifact

__all__ = ["JSON", "MESSAGE_PACK", "SUM_BYTES", "Decoder", "named"]

SUM_BYTES = 32
JSON = tuple(b'{} [] "" null true -1 1e400 1e-9 , : \\u0000 \\ud800'.split())
MESSAGE_PACK = (b"\xc0", b"\xc2", b"\xcb", b"\xdc\xff\xff", b"\xdf\0\0\0\1", b"\xc7")


@attrs.frozen(kw_only=True)
class Decoder:
    """A decoder, what it reads, and what it must leave as it is.

    Attributes:
        name: what it reads.
        payloads: to begin with.
        seal: makes of a payload what is read: adds names, sizes, a checksum.
        read: decodes.
        write: what a value is written as; None where nothing of ours writes it.
        refusal: the error of what is not read.
        is_canonical: whether what is read is written back as the same bytes. Else it
            is as bytes that are read as the same.
        newer: bytes as a later version would write them; empty where it has none.
        words: that inputs may be made of.
        state: what reading must not change where it refuses.
    """

    name: str
    payloads: Sequence[bytes]
    seal: Callable[[bytes], bytes] = bytes
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes] | None = None
    refusal: type[Exception] = InvalidArtifact
    is_canonical: bool = False
    newer: bytes = b""
    words: Sequence[bytes] = ()
    state: Callable[[], object] = lambda: None


def named(*kinds: type[Enum]) -> tuple[bytes, ...]:
    """The members' values, as bytes."""
    return tuple(str(one.value).encode() for kind in kinds for one in kind)
