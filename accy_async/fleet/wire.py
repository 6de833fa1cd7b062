"""Values as bytes, for the way between processes: those of a few classes, no others.

What travels is data: a sealed record (`accy_async.artifact.sealed`) that holds the
fields of our values as MessagePack. Reading it makes each value by its own constructor,
which checks it, and makes nothing of any other class: no code runs that came with it. A
worker of another version refuses a record by name.

A kernel's code is written once, however many candidates launch it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, TypeVar, cast

import attrs
import msgspec

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.artifact.requirements import PushConstants
from accy_async.artifact.sealed import seal, unseal
from accy_async.backends.handles import BufferAccess
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidArtifact, InvalidType
from accy_async.fleet.found import DeviceKind, FleetDevice, JobFound
from accy_async.fleet.jobs import JobReply, JobRequest
from accy_async.fleet.work import FleetBuffer, FleetCandidate, FleetWork
from accy_async.tuning.measuring import (
    CacheState,
    CandidateOutcome,
    CandidateStatus,
    MeasureOptions,
    ResultCheck,
    TimeSource,
)
from accy_async.tuning.race import Comparison, RaceRules, Standing
from accy_async.tuning.statistics import Interval

__all__ = ["WIRE_VERSION", "from_wire", "to_wire"]

WIRE_VERSION = 1
"""Of what is written here. Another one is not read."""

_MOST_DEPTH = 24
_KINDS: dict[str, type] = {
    kind.__name__: kind
    for kind in (
        CandidateOutcome,
        Comparison,
        DeviceKind,
        FixedLaunch,
        FleetBuffer,
        FleetCandidate,
        FleetDevice,
        FleetWork,
        Interval,
        JobFound,
        JobReply,
        JobRequest,
        KernelArtifact,
        MeasureOptions,
        PushConstants,
        RaceRules,
        ResultCheck,
        ScalarArgument,
        # Enums
        ArtifactFormat,
        BackendKind,
        BufferAccess,
        CacheState,
        CandidateStatus,
        DType,
        Standing,
        TimeSource,
    )
}
_T = TypeVar("_T")


def to_wire(value: object) -> bytes:
    """A value of ours as bytes.

    Raises:
        InvalidType: it, or what it holds, is of a class that does not travel.
        InvalidArtifact: it is over 1 GiB.
    """
    codes: dict[KernelArtifact, int] = {}
    plain = _plain(value, codes, 0)
    tables = [_fields(code, {}, 0) for code in codes]
    payload = msgspec.msgpack.encode([tables, plain])
    return seal(type(value).__name__, str(WIRE_VERSION), payload)


def from_wire(data: bytes, kind: type[_T]) -> _T:
    """The value that `to_wire` wrote.

    Raises:
        InvalidType: it is not bytes.
        InvalidArtifact: it is damaged, of another version or of another class; or what
            it holds is refused by the value's constructor.
    """
    if not isinstance(data, bytes):
        raise InvalidType(kind.__name__, data, "bytes")
    payload = unseal(data, kind.__name__, str(WIRE_VERSION))
    try:
        tables, plain = msgspec.msgpack.decode(payload, type=tuple[list[Any], Any])
        codes = [_made("KernelArtifact", fields, [], 0) for fields in tables]
        value = _value(plain, codes, 0)
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError) as error:
        raise InvalidArtifact(f"{kind.__name__}: {error}") from error
    if not isinstance(value, kind):
        raise InvalidArtifact(f"a {type(value).__name__}, expected {kind.__name__}")
    return value


def _plain(value: object, codes: dict[KernelArtifact, int], depth: int) -> object:
    if isinstance(value, KernelArtifact):
        return ["code", codes.setdefault(value, len(codes))]
    if isinstance(value, Enum):
        return ["enum", _name_of(value), value.value]
    if value is None or isinstance(value, (bool, int, float, str, bytes)):
        return value
    if isinstance(value, (tuple, list)):
        return ["list", [_plain(one, codes, depth + 1) for one in value]]
    if isinstance(value, Mapping):
        rows = [
            [_plain(k, codes, depth + 1), _plain(v, codes, depth + 1)]
            for k, v in value.items()
        ]
        return ["map", rows]
    return ["of", _name_of(value), _fields(value, codes, depth)]


def _fields(
    value: object, codes: dict[KernelArtifact, int], depth: int
) -> dict[str, object]:
    return {
        field.name: _plain(getattr(value, field.name), codes, depth + 1)
        for field in attrs.fields(cast(Any, type(value)))
        if field.init
    }


def _name_of(value: object) -> str:
    name = type(value).__name__
    if _KINDS.get(name) is not type(value):
        raise InvalidType("to_wire", value, f"one of {', '.join(_KINDS)}")
    return name


def _value(plain: object, codes: list[object], depth: int) -> object:
    if depth > _MOST_DEPTH:
        raise ValueError(f"nested over {_MOST_DEPTH} deep")
    match plain:
        case None | bool() | int() | float() | str() | bytes():
            return plain
        case ["code", int(index)] if 0 <= index < len(codes):
            return codes[index]
        case ["enum", str(name), member] if issubclass(_kind(name), Enum):
            return _kind(name)(member)
        case ["list", list(items)]:
            return tuple(_value(one, codes, depth + 1) for one in items)
        case ["map", list(rows)]:
            return {
                _value(key, codes, depth + 1): _value(item, codes, depth + 1)
                for key, item in rows
            }
        case ["of", str(name), dict(fields)] if not issubclass(_kind(name), Enum):
            return _made(name, fields, codes, depth)
    raise ValueError("no value of ours")


def _made(name: str, fields: object, codes: list[object], depth: int) -> object:
    kind: Any = _kind(name)
    known = {field.name for field in attrs.fields(kind) if field.init}
    if not isinstance(fields, dict) or set(fields) != known:
        raise ValueError(f"other fields than those of {name}")
    given = {key: _value(item, codes, depth + 1) for key, item in fields.items()}
    return kind(**given)


def _kind(name: str) -> type:
    kind = _KINDS.get(name)
    if kind is None:
        raise ValueError(f"a {name}, which does not travel")
    return kind
