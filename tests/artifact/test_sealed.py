"""Sealed bytes come back as they were, or not at all."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.artifact.fingerprint import digest
from accy_async.artifact.sealed import MOST_PAYLOAD_BYTES, seal, sealed_size, unseal
from accy_async.errors import InvalidArtifact

KEY = digest("a key")


@given(st.binary(max_size=2000))
def test_what_was_sealed_comes_back(payload: bytes) -> None:
    record = seal("bytes-1", KEY, payload)
    assert len(record) == sealed_size("bytes-1", KEY, len(payload))
    assert unseal(record, "bytes-1", KEY) == payload


@given(st.binary(max_size=400))
def test_any_bytes_are_refused_and_nothing_else_is_raised(record: bytes) -> None:
    with pytest.raises(InvalidArtifact):
        unseal(record, "bytes-1", KEY)


@given(st.data())
def test_changed_bytes_are_refused(data: st.DataObject) -> None:
    record = seal("bytes-1", KEY, data.draw(st.binary(max_size=300)))
    first = data.draw(st.integers(0, len(record)))
    last = data.draw(st.integers(first, len(record)))
    changed = record[:first] + data.draw(st.binary(max_size=50)) + record[last:]
    if changed != record:
        with pytest.raises(InvalidArtifact):
            unseal(changed, "bytes-1", KEY)


def test_every_truncation_and_every_single_bit_flip_is_refused() -> None:
    record = seal("bytes-1", KEY, bytes(range(64)))
    for length in range(len(record)):
        with pytest.raises(InvalidArtifact):
            unseal(record[:length], "bytes-1", KEY)
    for bit in range(8 * len(record)):
        changed = bytearray(record)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(InvalidArtifact):
            unseal(bytes(changed), "bytes-1", KEY)


@pytest.mark.parametrize(
    ("schema", "key", "offset"),
    [
        ("bytes-2", KEY, 24),
        ("bytes-1", digest("another"), 31),
        ("more_bytes-1", KEY, 24),
    ],
)
def test_record_of_another_schema_or_key_is_refused(
    schema: str, key: str, offset: int
) -> None:
    record = seal("bytes-1", KEY, b"payload")
    named = f"this is bytes-1 of key {KEY}, {schema} of key {key} is read"
    with pytest.raises(InvalidArtifact, match=named) as raised:
        unseal(record, schema, key, key_is="key")
    assert raised.value.offset == offset


def test_a_long_name_of_what_it_is_is_cut() -> None:
    with pytest.raises(InvalidArtifact) as raised:
        unseal(seal("n" * 60000, "1", b""), "bytes-1", "1")
    assert len(str(raised.value)) < 300


def test_size_in_the_header_is_not_believed() -> None:
    record = bytearray(seal("bytes-1", KEY, b"payload"))
    for claimed in (2**64 - 1, MOST_PAYLOAD_BYTES, MOST_PAYLOAD_BYTES + 1, 8):
        struct.pack_into("<Q", record, 16, claimed)
        with pytest.raises(InvalidArtifact):
            unseal(bytes(record), "bytes-1", KEY)
