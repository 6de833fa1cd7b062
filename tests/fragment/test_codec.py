"""Compiled fragments as bytes: the same again, or an error."""

from __future__ import annotations

import random

import pytest

from accy_async.artifact.sealed import seal
from accy_async.errors import InvalidArtifact, InvalidType
from accy_async.fragment import CompiledFragment
from accy_async.fragment.codec import _KEY, _SCHEMA
from tests.fragment.plans import ADD, CHAIN, SCALED, UPDATE


@pytest.mark.parametrize("compiled", [ADD, CHAIN, SCALED, UPDATE])
def test_bytes_give_the_same_fragment(compiled: CompiledFragment) -> None:
    again = CompiledFragment.from_bytes(compiled.to_bytes())
    assert again == compiled
    assert again.fingerprint == compiled.fingerprint
    assert again.copy_kernel_summaries() == compiled.copy_kernel_summaries()
    assert again.to_bytes() == compiled.to_bytes()


def test_damage_is_noticed_wherever_it_is() -> None:
    whole = CHAIN.to_bytes()
    for at in range(0, len(whole), 7):
        broken = bytearray(whole)
        broken[at] ^= 0x10
        with pytest.raises(InvalidArtifact):
            CompiledFragment.from_bytes(bytes(broken))
    for size in range(0, len(whole), 101):
        with pytest.raises(InvalidArtifact):
            CompiledFragment.from_bytes(whole[:size])
    with pytest.raises(InvalidType):
        CompiledFragment.from_bytes("text")  # type: ignore[arg-type]


def test_whole_records_of_nonsense_are_refused() -> None:
    """What passes the checksum is still not believed."""
    rng = random.Random(7)
    payloads = [
        b"",
        b"N",
        b"L\xff\xff\xff\xff",
        b"S\xff\xff\xff\xff",
        b"S\x00\x00\x00\x01\xff",
        b"V\xff",
        b"V\x00" + b"N" * 6,
        b"L\x00\x00\x00\x01" * 100 + b"N",
        b"U\x00\x00\x00\x01U\x00\x00\x00\x00",
        b"V\x19S\x00\x00\x00\x02f9",
        *(rng.randbytes(rng.randrange(60)) for _ in range(300)),
    ]
    for payload in payloads:
        with pytest.raises(InvalidArtifact):
            CompiledFragment.from_bytes(seal(_SCHEMA, _KEY, payload))
    plan = CHAIN.to_bytes()
    inner = plan[plan.index(b"V\x00") : -32]
    with pytest.raises(InvalidArtifact, match="after the plan"):
        CompiledFragment.from_bytes(seal(_SCHEMA, _KEY, inner + b"N"))
    for at in range(0, len(inner), 3):
        changed = inner[:at] + bytes([inner[at] ^ 0x41]) + inner[at + 1 :]
        try:
            found = CompiledFragment.from_bytes(seal(_SCHEMA, _KEY, changed))
        except InvalidArtifact:
            continue
        assert found != CHAIN


def test_records_of_other_layouts_are_refused_as_a_whole() -> None:
    with pytest.raises(InvalidArtifact):
        CompiledFragment.from_bytes(seal(_SCHEMA, "0" * 64, b"N"))
