"""Fingerprints: short names for values, the same in every process.

A value is written as canonical bytes, each part with its kind and length in
front so that no two values share an encoding, and hashed with SHA-256 (FIPS
180-4). A fingerprint is the digest's first eight bytes as an unsigned number.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from enum import Enum
from typing import cast

import attrs

from accy_async.errors import InvalidType

__all__ = ["ADDED", "canonical_bytes", "digest", "fingerprint"]

ADDED = {"fingerprint": "where it is not the default"}
"""Metadata of a field that its class did not always have. It is written only where it
has another value than its default, so that older fingerprints stay what they were."""


def fingerprint(value: object) -> int:
    """A 64-bit fingerprint of a value; see `canonical_bytes` for what it may be."""
    return int.from_bytes(hashlib.sha256(canonical_bytes(value)).digest()[:8], "big")


def digest(value: object) -> str:
    """The full SHA-256 of a value's canonical bytes, in hexadecimal."""
    return hashlib.sha256(canonical_bytes(value)).hexdigest()


def canonical_bytes(value: object) -> bytes:
    """The value's canonical encoding.

    Takes None, bool, int, float, str, bytes, enum members, attrs values (their
    class name and fields in order; see `ADDED`), tuples and lists (in order), sets and
    mappings (independent of order). Floats are taken by their bits.

    Raises:
        InvalidType: the value, or something within it, is of another kind.
    """
    out = bytearray()
    _write(out, value)
    return bytes(out)


def _part(out: bytearray, kind: bytes, data: bytes) -> None:
    out += kind + len(data).to_bytes(8, "big") + data


def _begin(out: bytearray, kind: bytes) -> int:
    """Begin a part whose length is not known yet; where it begins."""
    out += kind + bytes(8)
    return len(out)


def _end(out: bytearray, begin: int) -> None:
    out[begin - 8 : begin] = (len(out) - begin).to_bytes(8, "big")


def _write(out: bytearray, value: object) -> None:
    if value is None:
        _part(out, b"N", b"")
    elif isinstance(value, Enum):
        begin = _begin(out, b"E")
        _write(out, (type(value).__name__, value.value))
        _end(out, begin)
    elif isinstance(value, bool):
        _part(out, b"B", b"\1" if value else b"\0")
    elif isinstance(value, int):
        size = value.bit_length() // 8 + 1
        _part(out, b"I", value.to_bytes(size, "big", signed=True))
    elif isinstance(value, float):
        _part(out, b"F", struct.pack(">d", value))
    elif isinstance(value, str):
        _part(out, b"S", value.encode("utf-8", "surrogatepass"))
    elif isinstance(value, (bytes, bytearray, memoryview)):
        _part(out, b"Y", bytes(value))
    else:
        _write_compound(out, value)


def _write_compound(out: bytearray, value: object) -> None:
    if isinstance(value, (tuple, list)):
        begin = _begin(out, b"T")
        for item in value:
            _write(out, item)
        _end(out, begin)
    elif isinstance(value, (set, frozenset)):
        _part(out, b"Z", b"".join(sorted(canonical_bytes(item) for item in value)))
    elif isinstance(value, Mapping):
        pairs = sorted(canonical_bytes(pair) for pair in value.items())
        _part(out, b"M", b"".join(pairs))
    elif attrs.has(type(value)):
        _write_fields(out, cast("attrs.AttrsInstance", value))
    else:
        raise InvalidType(
            "fingerprint", value, "a value made of attrs classes, enums and plain data"
        )


_FIELDS: dict[type, tuple[tuple[str, bool, object], ...]] = {}
"""For each class its fields: name, whether left out at its default, the default."""


def _fields(value: attrs.AttrsInstance) -> tuple[tuple[str, bool, object], ...]:
    kind = type(value)
    found = _FIELDS.get(kind)
    if found is None:
        found = _FIELDS[kind] = tuple(
            (field.name, "fingerprint" in field.metadata, field.default)
            for field in attrs.fields(kind)
            if field.eq
        )
    return found


def _write_fields(out: bytearray, value: attrs.AttrsInstance) -> None:
    whole = _begin(out, b"A")
    named = _begin(out, b"T")
    _write(out, type(value).__name__)
    fields = _begin(out, b"T")
    for name, is_added, default in _fields(value):
        held = getattr(value, name)
        if is_added and held == default:
            continue
        pair = _begin(out, b"T")
        _write(out, name)
        _write(out, held)
        _end(out, pair)
    for begin in (fields, named, whole):
        _end(out, begin)
