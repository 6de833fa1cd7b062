r"""Sealed bytes: what a file holds so that damage to it is noticed.

A sealed record is a header, the schema's name, the key, the payload and a checksum::

    magic      8 bytes   b"\x89accy\r\n\x1a"
    version    u16       of this layout, little-endian as all numbers
    schema     u16       bytes of the schema's name
    key        u32       bytes of the key
    payload    u64       bytes of the payload
    ...                  schema, key, payload
    checksum   32 bytes  SHA-256 (FIPS 180-4) of everything before it

Reading believes nothing: every size is compared with what is there before anything
of that size is allocated, and any change of any bit is found by the magic, a size
or the checksum. It is no signature: who can write the file can also seal it.
"""

from __future__ import annotations

import struct
from hashlib import sha256

from accy_async.errors import InvalidArtifact

__all__ = ["MOST_PAYLOAD_BYTES", "seal", "sealed_schema", "sealed_size", "unseal"]

MOST_PAYLOAD_BYTES = 1 << 30
"""The largest payload that is sealed or read."""

_MAGIC = b"\x89accy\r\n\x1a"
_VERSION = 1
_MOST_SHOWN = 80
"""Bytes of a name that a message shows."""

_HEADER = struct.Struct("<8sHHIQ")
_HEADER_BYTES = _HEADER.size
_CHECKSUM_BYTES = sha256().digest_size


def sealed_size(schema: str, key: str, payload_bytes: int) -> int:
    """How many bytes the sealed record of such a payload has."""
    return (
        _HEADER_BYTES
        + len(schema.encode())
        + len(key.encode())
        + payload_bytes
        + _CHECKSUM_BYTES
    )


def seal(schema: str, key: str, payload: bytes) -> bytes:
    """A payload as a sealed record.

    Raises:
        InvalidArtifact: the payload is over `MOST_PAYLOAD_BYTES`.
    """
    if len(payload) > MOST_PAYLOAD_BYTES:
        raise InvalidArtifact(
            f"{schema}: a payload of {len(payload)} bytes, at most "
            f"{MOST_PAYLOAD_BYTES} are kept"
        )
    name, label = schema.encode(), key.encode()
    header = _HEADER.pack(_MAGIC, _VERSION, len(name), len(label), len(payload))
    body = b"".join((header, name, label, payload))
    return body + sha256(body).digest()


def sealed_schema(record: bytes) -> str | None:
    """The schema that a record names, unchecked; None where it names none."""
    if len(record) < _HEADER_BYTES or not record.startswith(_MAGIC):
        return None
    name_bytes = _HEADER.unpack_from(record)[2]
    name = record[_HEADER_BYTES : _HEADER_BYTES + name_bytes]
    return name.decode(errors="replace")


def unseal(record: bytes, schema: str, key: str, *, key_is: str = "version") -> bytes:
    """The payload of a sealed record.

    Args:
        record: all of it.
        schema: what it must hold.
        key: under what name.
        key_is: what a key is, for messages.

    Raises:
        InvalidArtifact: it is cut short or damaged, with the offset where that shows;
            or it is whole and of another schema or key, which are named.
    """
    if len(record) < _HEADER_BYTES:
        raise InvalidArtifact("cut short within its header", offset=len(record))
    magic, version, name_bytes, key_bytes, payload_bytes = _HEADER.unpack_from(record)
    if magic != _MAGIC:
        raise InvalidArtifact("no sealed record: another magic", offset=0)
    if version != _VERSION:
        raise InvalidArtifact(
            f"sealed in layout version {version}, this reads {_VERSION}", offset=8
        )
    if payload_bytes > MOST_PAYLOAD_BYTES:
        raise InvalidArtifact("sizes that no record can have", offset=10)
    at_key = _HEADER_BYTES + name_bytes
    at_payload = at_key + key_bytes
    at_checksum = at_payload + payload_bytes
    size = at_checksum + _CHECKSUM_BYTES
    if len(record) != size:
        raise InvalidArtifact(
            f"{len(record)} bytes, its header says {size}", offset=len(record)
        )
    if sha256(memoryview(record)[:at_checksum]).digest() != record[at_checksum:]:
        raise InvalidArtifact("its checksum is another", offset=at_checksum)
    name, label = record[_HEADER_BYTES:at_key], record[at_key:at_payload]
    if name != schema.encode() or label != key.encode():
        what, named = (
            text[:_MOST_SHOWN].decode(errors="replace") for text in (name, label)
        )
        raise InvalidArtifact(
            f"this is {what} of {key_is} {named}, {schema} of {key_is} {key} is read",
            offset=_HEADER_BYTES if name != schema.encode() else at_key,
        )
    return record[at_payload:at_checksum]
