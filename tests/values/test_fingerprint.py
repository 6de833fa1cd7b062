"""Fingerprints: the same in every process, different for every difference."""

from __future__ import annotations

import math
import os
import struct
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.artifact import (
    ArtifactFormat,
    DeviceFeatures,
    DType,
    FixedLaunch,
    KernelCallArtifact,
    PushConstants,
    ScalarArgument,
    ShapeProfile,
    SubgroupFeatures,
    canonical_bytes,
    digest,
    fingerprint,
)
from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.fingerprint import ADDED, SHARED
from accy_async.errors import InvalidType
from tests.values.samples import DERIVED, ENTRY, FIXED, KERNEL_BUFFER, PIPELINE, PLAN

GOLDEN = {
    "None": 3267927931608249887,
    "(1, 'a', b'a', 1.5)": 16234244110082935194,
    "{'b': 2, 'a': {3, 1}}": 4277876156751652155,
    "DType.F32": 6960406821573467485,
    "ScalarArgument.f32(0.1)": 8408908391286703221,
    # Without the fields that geometries got later, as before they had them.
    "FIXED": 2539678318700618813,
    "DERIVED": 4433655756883791155,
}
EVERYWHERE = (*GOLDEN, "ENTRY", "PIPELINE", "PLAN", "set(map(str, range(99)))")


def evaluate(expression: str) -> object:
    names = {"DType": DType, "ScalarArgument": ScalarArgument, "ENTRY": ENTRY}
    values = {"PIPELINE": PIPELINE, "PLAN": PLAN, "FIXED": FIXED, "DERIVED": DERIVED}
    return eval(expression, {**names, **values})


@pytest.mark.parametrize(("expression", "expected"), GOLDEN.items())
def test_fingerprint_is_pinned(expression: str, expected: int) -> None:
    """These never change: what was stored under them is found by later versions."""
    assert fingerprint(evaluate(expression)) == expected


def test_a_field_added_later_counts_where_it_is_used() -> None:
    values = [
        FIXED,
        attrs.evolve(FIXED, cooperative=True),
        attrs.evolve(FIXED, cluster=(1, 1, 1)),
        attrs.evolve(FIXED, cluster=(79, 1, 1)),
        attrs.evolve(FIXED, cluster=(1, 1, 1), cooperative=True),
    ]
    assert len({fingerprint(value) for value in values}) == len(values)


PROGRAM = """
from accy_async.artifact import fingerprint
from tests.values.test_fingerprint import EVERYWHERE, evaluate
print([fingerprint(evaluate(expression)) for expression in EVERYWHERE])
"""


@pytest.mark.parametrize("seed", ["0", "1", "4242"])
def test_fingerprint_is_the_same_in_every_process(seed: str) -> None:
    """Neither the process nor its hash seed changes a fingerprint."""
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=True,
    )
    here = [fingerprint(evaluate(expression)) for expression in EVERYWHERE]
    assert result.stdout.strip() == str(here)


def test_fingerprint_is_the_head_of_the_digest() -> None:
    """A fingerprint is the first 64 bits of the SHA-256, as an unsigned number."""
    assert fingerprint(ENTRY) == int(digest(ENTRY)[:16], 16)
    assert len(digest(ENTRY)) == 64
    assert ENTRY.fingerprint == fingerprint(ENTRY)
    assert PIPELINE.fingerprint == fingerprint(PIPELINE)
    assert PLAN.fingerprint == fingerprint(PLAN)


def test_order_counts_only_where_it_means_something() -> None:
    """Sets and mappings are taken whatever their order, tuples in theirs."""
    names = [f"name {number}" for number in range(50)]
    assert fingerprint(set(names)) == fingerprint(frozenset(reversed(names)))
    forwards = dict.fromkeys(names, 1)
    backwards = dict.fromkeys(reversed(names), 1)
    assert fingerprint(forwards) == fingerprint(backwards)
    assert fingerprint(MappingProxyType(forwards)) == fingerprint(backwards)
    assert fingerprint(tuple(names)) != fingerprint(tuple(reversed(names)))
    assert fingerprint([1, 2]) == fingerprint((1, 2))


def test_a_value_met_again_is_encoded_as_one_that_equals_it() -> None:
    """Wherever it stands: what was written is written again, without a second walk."""
    again = attrs.evolve(ENTRY)
    assert again is not ENTRY
    for pair in ((ENTRY, ENTRY), [1, (ENTRY,), {"a": ENTRY}, ENTRY]):
        apart = [again if one is ENTRY else one for one in pair]
        assert canonical_bytes(pair) == canonical_bytes(apart)


def test_what_a_field_held_before_is_encoded_as_at_first() -> None:
    """Equal values of other classes apart, however many there were in between."""

    @attrs.frozen
    class Held:
        x: object
        late: object = attrs.field(default=0, metadata=ADDED)

    alike = [1, True, 1.0, "f32", DType.F32, b"f32", None, (1,), (True,)]
    first = [canonical_bytes(Held(value)) for value in alike]
    assert len(set(first)) == len(alike)
    for number in range(2000):
        canonical_bytes(Held(number, number))
    for value, encoding in [*zip(alike, first, strict=True)] * 2:
        assert canonical_bytes(Held(value)) == encoding
        assert canonical_bytes(Held(value, 0)) == encoding
        assert canonical_bytes(Held(value, 1)) != encoding
    shared = attrs.make_class("Held", {"x": attrs.field(metadata=SHARED)}, frozen=True)
    plain = attrs.make_class("Held", ["x"], frozen=True)
    for value in [*alike[:-1], Held(1), Held(1)] * 2:
        assert canonical_bytes(shared(value)) == canonical_bytes(plain(value))


CHANGES: dict[str, object] = {
    "target": "accy.kernel.scal",
    "version": 2,
    "format": ArtifactFormat.METAL_MSL,
    "entry_name": "scale2",
    "argument_count": 6,
    "payload": ".version 8.1",
    "launch": FixedLaunch(grid=(1, 1, 1), threadgroup=(64, 1, 1)),
    "runtime_scalar_argument_count": 2,
    "required_dtypes": frozenset({DType.F32, DType.F16}),
    "static_arguments": (ScalarArgument.f32(-2.0),),
    "element_count_argument": ElementCountArgument.NONE,
    "runtime_scalar_defaults": (),
    "shape_profile": ShapeProfile(name="vector", fingerprint=8),
    "shape_family_fingerprint": 12,
    "launch_resources": None,
    "required_features": DeviceFeatures(),
    "required_subgroup": SubgroupFeatures(supported=True, shuffle=True),
    "push_constants": PushConstants(byte_size=8),
    "buffers": (KERNEL_BUFFER, KERNEL_BUFFER),
}
BASE = attrs.evolve(ENTRY, runtime_scalar_defaults=(), argument_count=5)


def test_every_field_of_an_entry_counts() -> None:
    """Two entries that differ in one field, whichever, have unlike fingerprints."""
    assert set(CHANGES) == {f.name for f in attrs.fields(KernelCallArtifact)}
    changed: dict[str, Any] = {
        **CHANGES,
        "runtime_scalar_defaults": (ScalarArgument.u32(1),),
    }
    variants = [attrs.evolve(BASE, **{name: to}) for name, to in changed.items()]
    assert len({fingerprint(v) for v in (BASE, *variants)}) == len(CHANGES) + 1


LOOKALIKES: tuple[object, ...] = (
    *(1, True, 1.0, "1", b"1", (1,), {1}, {1: 1}, DType.I8, "i8", "True"),
    *(0, False, 0.0, -0.0, "", b"", (), frozenset(), {}, None, "None", "0"),
    *(-1, 255, -256, 256, 2**64, -(2**64), math.inf, -math.inf, math.nan),
    *((1, 2), ((1, 2),), ((1,), 2), (1, (2,)), ((1,), (2,)), (1, 2, ()), (12,)),
    *(("a", "b"), ("ab",), ("ab", ""), ("", "ab"), ("a", "", "b"), b"ab", "ab"),
    *({"a": ("b",)}, {("a", "b")}, {("a", ("b",))}, (("a", "b"),), {"a": {"b"}}),
    *(ScalarArgument.u32(1), ScalarArgument.i32(1), (DType.U32, 1), DType.U32, "u32"),
    *(ScalarArgument.f32(0.0), ScalarArgument.f32(-0.0), ScalarArgument.f64(0.0)),
    *(canonical_bytes(1), canonical_bytes((1,)), "I\0", "é", "e\u0301", "\ud800"),
)


def test_lookalikes_do_not_collide() -> None:
    """Neither type nor nesting gets lost: what looks alike is encoded apart."""
    encodings = [canonical_bytes(value) for value in LOOKALIKES]
    assert len(set(encodings)) == len(LOOKALIKES)
    assert len({fingerprint(value) for value in LOOKALIKES}) == len(LOOKALIKES)


def test_classes_of_equal_fields_differ() -> None:
    """The class of an attrs value counts, and the names of its fields."""

    @attrs.frozen
    class Left:
        x: int

    @attrs.frozen
    class Right:
        x: int

    renamed = attrs.make_class("Left", ["y"], frozen=True)
    assert len({fingerprint(v) for v in (Left(1), Right(1), renamed(1))}) == 3


def test_field_left_out_of_equality_is_left_out() -> None:
    """A field that equality ignores does not count."""

    @attrs.frozen
    class Named:
        x: int
        note: str = attrs.field(default="", eq=False)

    assert fingerprint(Named(1, "a")) == fingerprint(Named(1, "b"))


@pytest.mark.parametrize(
    "value",
    [
        *(object(), 1j, int, np.int64(1), np.bool_(True), np.ones(2), iter(()), ...),
        *(range(3), lambda: None, DType, {1: object()}, (1, [object()]), {(1, 2j)}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_unknown_kinds_are_refused(value: object) -> None:
    """What has no encoding of its own is refused, at any depth."""
    with pytest.raises(InvalidType, match=r"^fingerprint: got .*plain data$"):
        fingerprint(value)


LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.sampled_from(DType),
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=2), inner, max_size=3),
        st.frozensets(LEAVES, max_size=3),
    ),
    max_leaves=6,
)


def model(value: object) -> object:
    """The value with the kind of every part written out: equal where it is the same."""
    if isinstance(value, DType):
        return ("enum", value.value)
    if isinstance(value, float):
        return ("float", struct.pack(">d", value))
    if isinstance(value, (list, tuple)):
        return ("sequence", tuple(model(item) for item in value))
    if isinstance(value, frozenset):
        return ("set", frozenset(model(item) for item in value))
    if isinstance(value, Mapping):
        pairs = ((model(key), model(item)) for key, item in value.items())
        return ("mapping", frozenset(pairs))
    return (type(value).__name__, value)


@given(VALUES, VALUES)
def test_bytes_are_equal_where_values_are(left: object, right: object) -> None:
    """Equal values have equal bytes; unequal ones, or other types, have others."""
    assert (canonical_bytes(left) == canonical_bytes(right)) == (
        model(left) == model(right)
    )


@given(st.lists(VALUES, max_size=4))
def test_grouping_counts(items: list[object]) -> None:
    """No way of splitting a sequence in two reads like another."""
    encodings = {
        canonical_bytes((items[:cut], items[cut:])) for cut in range(len(items) + 1)
    }
    assert len(encodings) == len(items) + 1
