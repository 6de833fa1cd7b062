"""Fingerprints: short names for values, the same in every process.

A value is written as canonical bytes, each part with its kind and length in
front so that no two values share an encoding, and hashed with SHA-256 (FIPS
180-4). A fingerprint is the digest's first eight bytes as an unsigned number.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any, NamedTuple

import attrs

from accy_async.errors import InvalidType

__all__ = ["ADDED", "SHARED", "canonical_bytes", "digest", "fingerprint"]

ADDED = {"fingerprint": "where it is not the default"}
"""Metadata of a field that its class did not always have. It is written only where it
has another value than its default, so that older fingerprints stay what they were."""

SHARED = {"fingerprint_shared": "many values have equal ones"}
"""Metadata of a field whose values, immutable and equal only where their encodings
are, many values share: each is encoded once, as numbers and names are."""

_MOST_KNOWN = 256
"""Encodings of values that are remembered for each field and class of values."""
_MOST_KNOWN_BYTES = 2048
"""The longest of them; that of a kernel's source is not kept."""

_put_length = struct.Struct(">Q").pack_into

_Seen = dict[int, tuple[object, int, int]]
"""The attrs values that were written already, by identity, each with where it is in
what was written. It holds them, so that no other takes an identity over."""

_Writer = Callable[[bytearray, Any, _Seen], None]


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
    _write(out, value, {})
    return bytes(out)


_REMEMBERED = (int, str)
"""Classes, beside enums, whose values are remembered by the field that held them."""

_WRITERS: dict[type, _Writer] = {}
"""How values of a class are written: worked out at the first one."""


def _write(out: bytearray, value: object, seen: _Seen) -> None:
    kind = type(value)
    writer = _WRITERS.get(kind)
    if writer is None:
        writer = _WRITERS[kind] = _writer_of(kind, value)
    writer(out, value, seen)


def _writer_of(kind: type, value: object) -> _Writer:
    if issubclass(kind, Enum):
        return partial(_write_member, {})
    for kinds, writer in _PLAIN:
        if issubclass(kind, kinds):
            return writer
    if attrs.has(kind):
        return partial(_write_fields, _begun(kind), *_fields(kind))
    raise InvalidType(
        "fingerprint", value, "a value made of attrs classes, enums and plain data"
    )


def _part(kind: bytes, data: bytes) -> bytes:
    return kind + len(data).to_bytes(8, "big") + data


def _begin(out: bytearray, kind: bytes) -> int:
    """Begin a part whose length is not known yet; where it begins."""
    out += kind + bytes(8)
    return len(out)


def _end(out: bytearray, begin: int) -> None:
    _put_length(out, begin - 8, len(out) - begin)


def _write_none(out: bytearray, _: None, __: _Seen) -> None:
    out += _part(b"N", b"")


def _write_bool(out: bytearray, value: bool, _: _Seen) -> None:
    out += _part(b"B", b"\1" if value else b"\0")


def _write_int(out: bytearray, value: int, _: _Seen) -> None:
    size = value.bit_length() // 8 + 1
    out += b"I" + size.to_bytes(8, "big") + value.to_bytes(size, "big", signed=True)


def _write_float(out: bytearray, value: float, _: _Seen) -> None:
    out += _part(b"F", struct.pack(">d", value))


def _write_str(out: bytearray, value: str, _: _Seen) -> None:
    out += _part(b"S", value.encode("utf-8", "surrogatepass"))


def _write_bytes(
    out: bytearray, value: bytes | bytearray | memoryview, _: _Seen
) -> None:
    out += _part(b"Y", bytes(value))


def _write_sequence(
    out: bytearray, value: tuple[object, ...] | list[object], seen: _Seen
) -> None:
    begin = _begin(out, b"T")
    for item in value:
        _write(out, item, seen)
    _end(out, begin)


def _write_set(
    out: bytearray, value: set[object] | frozenset[object], _: _Seen
) -> None:
    out += _part(b"Z", b"".join(sorted(canonical_bytes(item) for item in value)))


def _write_mapping(out: bytearray, value: Mapping[object, object], _: _Seen) -> None:
    pairs = sorted(canonical_bytes(pair) for pair in value.items())
    out += _part(b"M", b"".join(pairs))


def _write_member(
    written: dict[Enum, bytes], out: bytearray, value: Enum, _: _Seen
) -> None:
    """A member of an enum, of which each is encoded once."""
    data = written.get(value)
    if data is None:
        inner = canonical_bytes((type(value).__name__, value.value))
        data = written[value] = _part(b"E", inner)
    out += data


_PLAIN: tuple[tuple[tuple[type, ...], _Writer], ...] = (
    ((type(None),), _write_none),
    ((bool,), _write_bool),
    ((int,), _write_int),
    ((float,), _write_float),
    ((str,), _write_str),
    ((bytes, bytearray, memoryview), _write_bytes),
    ((tuple, list), _write_sequence),
    ((set, frozenset), _write_set),
    ((Mapping,), _write_mapping),
)


def _begun(kind: type) -> bytes:
    """How a value of an attrs class begins, its three lengths not known yet."""
    name = _part(b"S", kind.__name__.encode())
    return b"A" + bytes(8) + b"T" + bytes(8) + name + b"T" + bytes(8)


_Get = Callable[[Any], tuple[Any, ...]]
_Known = dict[type, dict[Any, bytes]]


class _Field(NamedTuple):
    """How a field is written: what is worked out once for its class.

    Attributes:
        pair: how its pair of name and value begins, the length not known yet.
        is_added: whether it is left out at its default.
        is_shared: whether its values are remembered, of whatever class.
        default: of the field.
        known: the whole pairs of values that were written, by their classes.
    """

    pair: bytes
    is_added: bool
    is_shared: bool
    default: object
    known: _Known


def _fields(kind: type) -> tuple[_Get, tuple[tuple[_Known, _Field], ...]]:
    """What gets the fields that count from a value, and how each is written."""
    counted = [field for field in attrs.fields(kind) if field.eq]
    names = [field.name for field in counted]
    get: _Get
    if len(names) > 1:
        get = attrgetter(*names)
    else:

        def get(value: object) -> tuple[Any, ...]:
            return tuple(getattr(value, name) for name in names)

    fields = [
        _Field(
            pair=b"T" + bytes(8) + _part(b"S", field.name.encode()),
            is_added="fingerprint" in field.metadata,
            is_shared="fingerprint_shared" in field.metadata,
            default=field.default,
            known={},
        )
        for field in counted
    ]
    return get, tuple((field.known, field) for field in fields)


def _write_fields(
    begun: bytes,
    get: _Get,
    fields: tuple[tuple[_Known, _Field], ...],
    out: bytearray,
    value: object,
    seen: _Seen,
) -> None:
    written = seen.get(id(value))
    if written is not None:
        _, start, end = written
        out += out[start:end]
        return
    start = len(out)
    out += begun
    first = len(out)
    for held, (known, field) in zip(get(value), fields, strict=True):
        pairs = known.get(type(held))
        data = None if pairs is None else pairs.get(held)
        if data is None:
            _write_field(field, out, held, seen)
        else:
            out += data
    end = len(out)
    _put_length(out, first - 8, end - first)
    _put_length(out, start + 10, end - start - 18)
    _put_length(out, start + 1, end - start - 9)
    seen[id(value)] = value, start, end


def _write_field(field: _Field, out: bytearray, held: object, seen: _Seen) -> None:
    """A field whose value is not among those that are remembered; it may be now."""
    if field.is_added and held == field.default:
        return
    start = len(out)
    out += field.pair
    _write(out, held, seen)
    _end(out, start + 9)
    kind = type(held)
    if not (kind in _REMEMBERED or field.is_shared or isinstance(held, Enum)):
        return
    if len(out) - start <= _MOST_KNOWN_BYTES:
        pairs = field.known.setdefault(kind, {})
        if len(pairs) >= _MOST_KNOWN:
            pairs.clear()
        pairs[held] = bytes(out[start:])
