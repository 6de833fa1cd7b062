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


def _write(out: bytearray, value: object) -> None:
    if value is None:
        _part(out, b"N", b"")
    elif isinstance(value, Enum):
        _part(out, b"E", canonical_bytes((type(value).__name__, value.value)))
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
    kind = type(value)
    if attrs.has(kind):
        fields = [
            (field.name, getattr(value, field.name))
            for field in attrs.fields(kind)
            if field.eq and not _is_left_out(field, value)
        ]
        _part(out, b"A", canonical_bytes((type(value).__name__, tuple(fields))))
    elif isinstance(value, (tuple, list)):
        _part(out, b"T", b"".join(canonical_bytes(item) for item in value))
    elif isinstance(value, (set, frozenset)):
        _part(out, b"Z", b"".join(sorted(canonical_bytes(item) for item in value)))
    elif isinstance(value, Mapping):
        pairs = sorted(canonical_bytes(pair) for pair in value.items())
        _part(out, b"M", b"".join(pairs))
    else:
        raise InvalidType(
            "fingerprint", value, "a value made of attrs classes, enums and plain data"
        )


def _is_left_out(field: attrs.Attribute[object], value: object) -> bool:
    is_added = "fingerprint" in field.metadata
    return is_added and getattr(value, field.name) == field.default
