from __future__ import annotations

import hashlib
import random
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.artifact.native import (
    MachineImage,
    decode_image,
    encode_image,
    link_object,
    load_machine_code,
)
from accy_async.artifact.native.image import check_image
from accy_async.artifact.native.limits import MAX_IMAGE_BYTES
from accy_async.errors import InvalidArtifact
from tests.native.objects import (
    MINIMAL,
    MINIMAL_KERNELS,
    compile_ir,
    host_object,
    signature_section,
)

IMAGE = MachineImage(
    machine=62,
    text=bytes(64),
    rodata=bytes(40),
    data=bytes(16),
    zero_bytes=100,
    got_offset=4096,
    imports=("expf", "logf"),
    base_relocations=(8, 4112, 8192, 8200),
    exports=(("a", 63), ("entry", 0)),
    signatures=signature_section().data,
)


def test_image_layout() -> None:
    """Each segment begins a page, and the whole is in pages."""
    assert (IMAGE.rodata_offset, IMAGE.data_offset, IMAGE.memory_bytes) == (
        4096,
        8192,
        12288,
    )
    arm = attrs.evolve(IMAGE, machine=183)
    assert (arm.rodata_offset, arm.data_offset, arm.memory_bytes) == (
        65536,
        131072,
        196608,
    )


@pytest.mark.parametrize("architecture", ["x86_64", "aarch64"])
def test_image_survives_its_payload(architecture: str) -> None:
    payload = link_object(host_object(architecture))
    image = decode_image(payload)
    assert image.architecture == architecture
    assert encode_image(image) == payload
    assert [name for name, _ in image.exports] == [
        "count",
        "dispatch",
        "transform",
        "vectors",
    ]
    assert image.imports == ("expf", "memset", "tanhf")


def test_equal_objects_make_equal_bytes() -> None:
    first = link_object(host_object("x86_64"))
    compile_ir.cache_clear()
    assert link_object(host_object("x86_64")) == first


def test_truncated_image_at_every_length() -> None:
    payload = link_object(compile_ir(MINIMAL, MINIMAL_KERNELS))
    for length in range(len(payload)):
        with pytest.raises(InvalidArtifact) as caught:
            load_machine_code(payload[:length], "entry")
        assert caught.value.offset is not None


def test_longer_image() -> None:
    payload = encode_image(IMAGE)
    with pytest.raises(InvalidArtifact, match="overlong") as caught:
        decode_image(payload + b"\0")
    assert caught.value.offset == len(payload)


def test_every_changed_byte_is_noticed() -> None:
    payload = bytearray(link_object(compile_ir(MINIMAL, MINIMAL_KERNELS)))
    for position, byte in enumerate(payload):
        for mask in (1, 2, 4, 8, 16, 32, 64, 128, 255):
            payload[position] = byte ^ mask
            with pytest.raises(InvalidArtifact) as caught:
                decode_image(bytes(payload))
            assert caught.value.offset is not None
        payload[position] = byte


def test_changed_image_with_a_new_checksum() -> None:
    """What the checksum would let pass is still bounded: refused or consistent."""
    body = bytearray(encode_image(IMAGE)[:-32])
    chance = random.Random(3)
    for _ in range(2000):
        changed = bytearray(body)
        for _ in range(chance.choice((1, 1, 2, 4))):
            limit = chance.choice((60, len(changed)))
            changed[chance.randrange(limit)] = chance.randrange(256)
        payload = bytes(changed) + hashlib.sha256(changed).digest()
        try:
            image = decode_image(payload)
        except InvalidArtifact:
            continue
        check_image(image)
        assert encode_image(image) == payload


@given(st.binary(max_size=300))
@settings(max_examples=100, deadline=None)
def test_random_bytes(data: bytes) -> None:
    for payload in (data, encode_image(IMAGE)[:8] + data):
        with pytest.raises(InvalidArtifact):
            decode_image(payload)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"zero_bytes": MAX_IMAGE_BYTES}, "expected at most 268435456 together"),
        ({"zero_bytes": 2**32 - 1}, "expected at most 268435456 together"),
        ({"imports": ("expf", "expf")}, "an import is named twice"),
        ({"imports": ("expf", "system")}, "imports 'system', which native kernels"),
        ({"got_offset": 4095}, "import slots from 4095"),
        ({"got_offset": 4104, "imports": ("expf",) * 0}, None),
        ({"got_offset": 4128}, "import slots from 4128 to 4144"),
        ({"got_offset": 0}, "import slots from 0"),
        ({"base_relocations": (8, 8)}, "base relocation at 8 overlaps"),
        ({"base_relocations": (8, 12)}, "base relocation at 12 overlaps"),
        ({"base_relocations": (16, 8)}, "base relocation at 8 overlaps"),
        ({"base_relocations": (60,)}, "at 60 overlaps another"),
        ({"base_relocations": (4104,)}, "at 4104 overlaps another or an import slot"),
        ({"base_relocations": (8204,)}, "or is outside the segments"),
        ({"base_relocations": (2**32 - 1,)}, "or is outside the segments"),
        ({"exports": (("b", 0), ("a", 0))}, "exports are not sorted"),
        ({"exports": (("a", 0), ("a", 0))}, "exports are not sorted, or named twice"),
        ({"exports": (("a", 64),)}, "'a' begins at 64, outside the 64 bytes of text"),
        ({"exports": (("a\0b", 0),)}, "has a zero"),
        (
            {"machine": 183, "got_offset": 65536, "base_relocations": ()},
            "'a' begins at 63",
        ),
        ({"signatures": bytes((1 << 20) + 1)}, "1048577 bytes of signatures"),
    ],
)
def test_inconsistent_image(change: dict[str, Any], message: str | None) -> None:
    image = attrs.evolve(IMAGE, **change)
    if message is None:
        assert decode_image(encode_image(image)) == image
        return
    with pytest.raises(InvalidArtifact, match=message):
        encode_image(image)
