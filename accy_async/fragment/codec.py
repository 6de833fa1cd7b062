"""Artifact plans as bytes: tagged values in a sealed record.

A record (`accy_async.artifact.sealed`) says what it is, in which version, and proves
that it is whole. Within it stands one value::

    N                       None
    F, T                    False, True
    I  size:u32  bytes      an integer, big-endian, signed
    D  8 bytes              a float, IEEE 754 binary64, big-endian
    S  size:u32  bytes      text, UTF-8
    B  size:u32  bytes      bytes
    L  count:u32 values     a tuple
    U  count:u32 values     a set, in the order of its members' bytes
    V  class:u8  values     a value of a known class: its fields, in their order

All sizes are big-endian. A class is known by its place in `_CLASSES`: what is not
there can be neither written nor read, and reading makes each value through its class,
whose checks it has to pass. The record's key is a digest of these classes and their
fields, so that what was written when they were others is refused as a whole.
"""

from __future__ import annotations

import struct
from enum import Enum

import attrs

from accy_async.artifact.entry import ElementCountArgument
from accy_async.artifact.fingerprint import digest
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import (
    DerivedLaunch,
    Fixed,
    FixedLaunch,
    RuntimeCeilDiv,
)
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.planned import (
    ArtifactPlan,
    CompileLaunch,
    KernelSource,
    PlannedKernel,
)
from accy_async.artifact.requirements import (
    DeviceFeatures,
    PushConstants,
    SubgroupFeatures,
)
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
)
from accy_async.artifact.sealed import seal, unseal
from accy_async.artifact.slots import PlannedArgument, PlannedSlot, SlotRole
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue

__all__ = ["decode_plan", "encode_plan"]

_SCHEMA = "fragment-1"

_CLASSES: tuple[type, ...] = (
    ArtifactPlan,
    PlannedKernel,
    PlannedSlot,
    PlannedArgument,
    KernelArtifact,
    LaunchResourcePlan,
    LaunchResourceCandidate,
    LaunchTile,
    LaunchReduction,
    FixedLaunch,
    DerivedLaunch,
    Fixed,
    RuntimeCeilDiv,
    DeviceFeatures,
    SubgroupFeatures,
    PushConstants,
    ScalarArgument,
    ArtifactFormat,
    CompileLaunch,
    KernelSource,
    SlotRole,
    ElementCountArgument,
    LaunchResourceClass,
    LaunchTileKind,
    LaunchReductionKind,
    DType,
)
_PLACES = {kind: place for place, kind in enumerate(_CLASSES)}
_SIZE = struct.Struct(">I")
_FLOAT = struct.Struct(">d")
_DEEPEST = 32
"""How deeply values may nest; a plan's nest six deep."""


def _fields(kind: type) -> list[str]:
    if issubclass(kind, Enum):
        return ["value"]
    assert attrs.has(kind)
    return [field.name for field in attrs.fields(kind) if field.init]


_KEY = digest(tuple((kind.__name__, tuple(_fields(kind))) for kind in _CLASSES))


def encode_plan(plan: ArtifactPlan) -> bytes:
    """A plan as bytes.

    Raises:
        InvalidArtifact: it is larger than a record may be.
    """
    out = bytearray()
    _write(out, plan)
    return seal(_SCHEMA, _KEY, bytes(out))


def decode_plan(data: bytes) -> ArtifactPlan:
    """The plan that `encode_plan` wrote.

    Raises:
        InvalidArtifact: it is none, with the offset where that shows.
    """
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise InvalidType("decode_plan.data", data, "bytes")
    reader = _Reader(unseal(bytes(data), _SCHEMA, _KEY))
    plan = reader.value(0)
    reader.finish()
    if not isinstance(plan, ArtifactPlan):
        raise InvalidArtifact(f"a {type(plan).__name__}, expected a plan", offset=0)
    return plan


def _sized(out: bytearray, tag: bytes, data: bytes) -> None:
    out += tag + _SIZE.pack(len(data)) + data


def _write(out: bytearray, value: object) -> None:
    place = _PLACES.get(type(value))
    if place is not None:
        out += b"V" + bytes((place,))
        for part in _parts(value):
            _write(out, part)
    elif isinstance(value, (tuple, frozenset)):
        _write_several(out, value)
    else:
        _write_plain(out, value)


def _write_several(
    out: bytearray, value: tuple[object, ...] | frozenset[object]
) -> None:
    parts = []
    for part in value:
        written = bytearray()
        _write(written, part)
        parts.append(bytes(written))
    is_set = isinstance(value, frozenset)
    out += (b"U" if is_set else b"L") + _SIZE.pack(len(parts))
    out += b"".join(sorted(parts) if is_set else parts)


def _write_plain(out: bytearray, value: object) -> None:
    if value is None:
        out += b"N"
    elif isinstance(value, bool):
        out += b"T" if value else b"F"
    elif isinstance(value, int):
        size = value.bit_length() // 8 + 1
        _sized(out, b"I", value.to_bytes(size, "big", signed=True))
    elif isinstance(value, float):
        out += b"D" + _FLOAT.pack(value)
    elif isinstance(value, str):
        _sized(out, b"S", value.encode())
    elif isinstance(value, bytes):
        _sized(out, b"B", value)
    else:
        raise InvalidType("encode_plan", value, "what a plan is made of")


def _parts(value: object) -> list[object]:
    if isinstance(value, Enum):
        return [value.value]
    return [getattr(value, name) for name in _fields(type(value))]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def finish(self) -> None:
        if self._at != len(self._data):
            left = len(self._data) - self._at
            raise InvalidArtifact(f"{left} bytes after the plan", offset=self._at)

    def value(self, depth: int) -> object:
        begun = self._at
        if depth > _DEEPEST:
            raise InvalidArtifact("values nested too deeply", offset=begun)
        tag = self._take(1)
        if tag in _PLAIN:
            return _PLAIN[tag]
        if tag == b"I":
            return int.from_bytes(self._sized(), "big", signed=True)
        if tag == b"D":
            found: float = _FLOAT.unpack(self._take(_FLOAT.size))[0]
            return found
        if tag == b"S":
            try:
                return self._sized().decode()
            except UnicodeDecodeError:
                raise InvalidArtifact("text that is no UTF-8", offset=begun) from None
        if tag == b"B":
            return self._sized()
        if tag in (b"L", b"U"):
            parts = self._several(self._count(), depth)
            try:
                return tuple(parts) if tag == b"L" else frozenset(parts)
            except TypeError:
                raise InvalidArtifact("a set of lists", offset=begun) from None
        if tag == b"V":
            return self._known(begun, depth)
        raise InvalidArtifact(f"an unknown tag {tag!r}", offset=begun)

    def _known(self, begun: int, depth: int) -> object:
        place = self._take(1)[0]
        if place >= len(_CLASSES):
            raise InvalidArtifact(f"a class of number {place}", offset=begun)
        kind = _CLASSES[place]
        names = _fields(kind)
        parts = self._several(len(names), depth)
        try:
            if issubclass(kind, Enum):
                return kind(parts[0])
            return kind(**dict(zip(names, parts, strict=True)))
        except (InvalidValue, ValueError, TypeError) as error:
            raise InvalidArtifact(f"{kind.__name__}: {error}", offset=begun) from error

    def _several(self, count: int, depth: int) -> list[object]:
        return [self.value(depth + 1) for _ in range(count)]

    def _count(self) -> int:
        """A count of values, none of which takes less than a byte."""
        begun = self._at
        count: int = _SIZE.unpack(self._take(_SIZE.size))[0]
        if count > len(self._data) - self._at:
            raise InvalidArtifact(f"{count} parts, more than bytes", offset=begun)
        return count

    def _sized(self) -> bytes:
        return self._take(_SIZE.unpack(self._take(_SIZE.size))[0])

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._data):
            raise InvalidArtifact("cut short", offset=len(self._data))
        found, self._at = self._data[self._at : end], end
        return found


_PLAIN = {b"N": None, b"F": False, b"T": True}
