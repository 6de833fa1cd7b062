"""SPIR-V is read without a driver: its interface is found, and bad bytes refused."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from accy_async.artifact.spirv import SpirvBinding, check_spirv, read_spirv
from accy_async.artifact.spirv.words import MAX_MODULE_BYTES
from accy_async.compiler.emit.text.glslang import find_glslang
from accy_async.compiler.form import KernelBuilder
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact, KernelEntryMissing
from tests.spirv.assemble import ADD, Words, assemble, name, without

GOOD = assemble(ADD)


def _replaced(old: Words, *new: Words) -> list[Words]:
    assert old in ADD
    place = ADD.index(old)
    return [*ADD[:place], *new, *ADD[place + 1 :]]


def test_a_modules_interface_is_read() -> None:
    module = check_spirv(GOOD, "add")
    assert module.version == (1, 5)
    assert module.capabilities == {"Shader", "Int64"}
    assert module.extensions == ("SPV_KHR_float_controls",)
    assert [e.name for e in module.entry_points] == ["add"]
    assert module.entry_points[0].local_size == (64, 2, 1)
    assert module.bindings == (
        SpirvBinding(0, 1, "storage_buffer", is_readable=True, is_writable=False),
    )
    assert module.push_constant_bytes == 16
    assert (4462, 32) in module.execution_modes


def test_old_storage_buffers_and_other_resources_are_told_apart() -> None:
    old = [(32, 12, 2, 11) if i == (32, 12, 12, 11) else i for i in ADD]
    old = [(59, 12, 3, 2) if i == (59, 12, 3, 12) else i for i in old]
    assert read_spirv(assemble(old)).bindings[0].kind == "uniform_buffer"
    block = [(71, 11, 3) if i == (71, 11, 2) else i for i in old]
    assert read_spirv(assemble(block)).bindings[0].kind == "storage_buffer"
    image = [(59, 12, 3, 0) if i == (59, 12, 3, 12) else i for i in ADD]
    assert read_spirv(assemble(image)).bindings[0].kind == "other"


def test_the_size_of_workgroups_may_come_from_constants() -> None:
    constants = [(43, 8, 30, 7), (43, 8, 31, 5), (43, 8, 32, 3)]
    typed = _replaced((21, 8, 32, 0), (21, 8, 32, 0), *constants)
    by_id = [
        (331, 2, 38, 30, 31, 32) if i == (16, 2, 17, 64, 2, 1) else i for i in typed
    ]
    assert read_spirv(assemble(by_id)).entry_points[0].local_size == (7, 5, 3)
    decorated = [*typed[:12], (71, 33, 11, 25), *typed[12:]]
    place = decorated.index((43, 8, 32, 3)) + 1
    vector = [(23, 34, 8, 3), (44, 34, 33, 30, 31, 32)]
    built_in = [*decorated[:place], *vector, *decorated[place:]]
    assert read_spirv(assemble(built_in)).entry_points[0].local_size == (7, 5, 3)


@pytest.mark.parametrize(
    ("payload", "message", "offset"),
    [
        (b"", "0 bytes", None),
        (GOOD[:16], "16 bytes", None),
        (GOOD + b"\0", "multiple of 4", None),
        ("text", "a payload of str", None),
        (GOOD[:4][::-1] + GOOD[4:], "other byte order", 0),
        (assemble(ADD, magic=1), "magic number 0x00000001", 0),
        (assemble(ADD, version=0x00010700), "expected 1.0 to 1.6", 4),
        (assemble(ADD, version=0x01010500), "expected 1.0 to 1.6", 4),
        (assemble(ADD, bound=0), "bound 0", 12),
        (assemble(ADD, bound=2**23), "bound 8388608", 12),
        (assemble(ADD, schema=1), "schema 1", 16),
        (GOOD + struct.pack("<I", 5), "an instruction of 0 words", len(GOOD)),
        (GOOD + struct.pack("<I", 2 << 16 | 1), "2 words, 1 are left", len(GOOD)),
        (assemble(without(14)), "0 memory models", None),
        (assemble([*ADD[:5], (14, 0, 1), *ADD[5:]]), "2 memory models", None),
        (assemble(_replaced((14, 0, 1), (14, 2, 1))), "addressing model 2", None),
        (assemble(_replaced((14, 0, 1), (14, 0, 2))), "memory model 2", None),
        (assemble(ADD, bound=2), "id 2, expected 1 to 1", None),
        (assemble([*ADD, (17, 1)]), "instruction 17 after its section", len(GOOD)),
        (assemble(without(56)), "a function without an end", None),
        (assemble(without(253)), "56 within a block, expected between blocks", None),
        (assemble(without(54)), "248 outside functions, expected between", None),
        (
            assemble(_replaced((54, 20, 2, 0, 21), (54, 20, 5, 0, 21))),
            "is no fun",
            None,
        ),
        (assemble(_replaced((16, 2, 17, 64, 2, 1))), "without a size", None),
        (
            assemble(_replaced((16, 2, 17, 64, 2, 1), (16, 2, 17, 0, 2, 1))),
            "0 x 2",
            None,
        ),
        (assemble(_replaced((71, 3, 33, 1))), "without a set and binding", None),
        (assemble(_replaced((72, 13, 1, 35, 8))), "without a size", None),
        (assemble(_replaced((30, 11, 10), (30,))), "with 0 operands", None),
        (assemble(_replaced((17, 11), (10, 0x41414141))), "without an end", None),
        (assemble(_replaced((17, 11), (10, 0x000000FF))), "no UTF-8", None),
        (assemble([*ADD[:6], *ADD[5:]]), "two entry points 'add'", None),
    ],
)
def test_what_is_wrong_is_named_with_its_place(
    payload: object, message: str, offset: int | None
) -> None:
    with pytest.raises(InvalidArtifact, match=message) as raised:
        read_spirv(payload)
    if offset is not None:
        assert raised.value.offset == offset


def test_modules_that_vulkan_cannot_compute_with_are_refused() -> None:
    with pytest.raises(KernelEntryMissing, match=r"no entry point 'sub'.*'add'"):
        check_spirv(GOOD, "sub")
    fragment = _replaced((15, 5, 2, *name("add"), 3, 4), (15, 4, 2, *name("add"), 3, 4))
    with pytest.raises(InvalidArtifact, match="no entry point for compute"):
        check_spirv(assemble(fragment), "add")
    with pytest.raises(InvalidArtifact, match="OpenCL"):
        check_spirv(assemble(_replaced((17, 11), (17, 6))), "add")
    with pytest.raises(InvalidArtifact, match="at most"):
        read_spirv(GOOD + bytes(MAX_MODULE_BYTES))


def _unharmed(payload: bytes) -> None:
    """A reader answers or refuses; nothing else comes out of it."""
    try:
        check_spirv(payload, "add")
    except InvalidArtifact:
        pass


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    _unharmed(raw)
    _unharmed(GOOD[:20] + raw[: len(raw) // 4 * 4])


@settings(max_examples=400)
@given(st.data())
def test_changed_modules_are_read_or_refused(data: st.DataObject) -> None:
    words = list(struct.unpack(f"<{len(GOOD) // 4}I", GOOD))
    word = st.one_of(
        st.integers(0, 70), st.integers(0, 2**32 - 1), st.sampled_from(words)
    )
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(words) - 1))
        change = data.draw(st.sampled_from(["set", "drop", "insert", "cut"]))
        if change == "set":
            words[place] = data.draw(word)
        elif change == "drop" and len(words) > 1:
            del words[place]
        elif change == "insert":
            words.insert(place, data.draw(word))
        else:
            words = words[: place + 1]
    _unharmed(struct.pack(f"<{len(words)}I", *words))


@pytest.mark.skipif(find_glslang() is None, reason="there is no glslang")
def test_what_the_emitter_makes_is_read_as_it_was_meant() -> None:
    from accy_async.compiler.emit import compile_spirv

    k = KernelBuilder("meant", threadgroup=(8, 4, 2))
    out = k.buffer("out", DType.F64, "write_only")
    a = k.buffer("a", DType.I8, "read_only")
    factor, small = k.scalar("factor", DType.F64), k.scalar("small", DType.I8)
    with k.region():
        k.require(a[k.thread] > small, 3)
        out[k.thread] = a[k.thread].cast(DType.F64) * factor
    module = check_spirv(compile_spirv(k.build()), "meant")
    assert module.entry_points[0].local_size == (8, 4, 2)
    assert module.push_constant_bytes == 12
    assert [(b.binding, b.is_readable, b.is_writable) for b in module.bindings] == [
        (0, False, True),
        (1, True, False),
        (2, True, True),  # the code that a failed assertion leaves
    ]
    wanted = {"Shader", "Float64", "StorageBuffer8BitAccess", "RoundingModeRTE"}
    assert wanted <= module.capabilities
    assert "Int64" not in module.capabilities
