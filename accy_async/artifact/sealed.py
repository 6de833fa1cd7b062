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

import hashlib
import struct

from accy_async.errors import InvalidArtifact

__all__ = ["MOST_PAYLOAD_BYTES", "seal", "sealed_label", "sealed_size", "unseal"]

MOST_PAYLOAD_BYTES = 1 << 30
"""The largest payload that is sealed or read."""

_MAGIC = b"\x89accy\r\n\x1a"
_VERSION = 1
_HEADER = struct.Struct("<8sHHIQ")
_CHECKSUM_BYTES = hashlib.sha256().digest_size


def sealed_size(schema: str, key: str, payload_bytes: int) -> int:
    """How many bytes the sealed record of such a payload has."""
    return (
        _HEADER.size
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
    return body + hashlib.sha256(body).digest()


def unseal(record: bytes, schema: str, key: str) -> bytes:
    """The payload of a sealed record.

    Args:
        record: all of it.
        schema: what it must hold.
        key: under what name.

    Raises:
        InvalidArtifact: it is cut short, damaged, of another version, or of another
            schema or key; with the offset where that shows.
    """
    if len(record) < _HEADER.size:
        raise InvalidArtifact("cut short within its header", offset=len(record))
    magic, version, name_bytes, key_bytes, payload_bytes = _HEADER.unpack_from(record)
    if magic != _MAGIC:
        raise InvalidArtifact("no sealed record: another magic", offset=0)
    if version != _VERSION:
        raise InvalidArtifact(f"version {version}, this reads {_VERSION}", offset=8)
    wanted = (len(schema.encode()), len(key.encode()))
    if (name_bytes, key_bytes) != wanted or payload_bytes > MOST_PAYLOAD_BYTES:
        raise InvalidArtifact("sizes that this record cannot have", offset=10)
    size = sealed_size(schema, key, payload_bytes)
    if len(record) != size:
        raise InvalidArtifact(
            f"{len(record)} bytes, its header says {size}", offset=len(record)
        )
    view = memoryview(record)
    at_checksum = size - _CHECKSUM_BYTES
    if hashlib.sha256(view[:at_checksum]).digest() != view[at_checksum:]:
        raise InvalidArtifact("its checksum is another", offset=at_checksum)
    at_key = _HEADER.size + name_bytes
    at_payload = at_key + key_bytes
    if view[_HEADER.size : at_key] != schema.encode():
        raise InvalidArtifact("of another schema", offset=_HEADER.size)
    if view[at_key:at_payload] != key.encode():
        raise InvalidArtifact("of another key", offset=at_key)
    return bytes(view[at_payload:at_checksum])


def sealed_label(record: bytes) -> tuple[str, str] | None:
    """The schema and the key of a whole and undamaged record, whatever they are.

    For messages: it says what was brought where something else was expected. None
    where the record is not whole.
    """
    if len(record) < _HEADER.size:
        return None
    magic, version, name_bytes, key_bytes, payload_bytes = _HEADER.unpack_from(record)
    at_key = _HEADER.size + name_bytes
    at_payload = at_key + key_bytes
    size = at_payload + payload_bytes + _CHECKSUM_BYTES
    if (magic, version, len(record)) != (_MAGIC, _VERSION, size):
        return None
    try:
        schema = record[_HEADER.size : at_key].decode()
        key = record[at_key:at_payload].decode()
        unseal(record, schema, key)
    except (UnicodeDecodeError, InvalidArtifact):
        return None
    return schema, key
