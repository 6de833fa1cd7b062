"""What a run of a benchmark file found, as values and as JSON."""

from __future__ import annotations

from typing import Any

import attrs
import msgspec

from accy_async.errors import InvalidArtifact, InvalidValue

__all__ = [
    "BenchmarkReport",
    "CandidateReport",
    "Ceiling",
    "DeviceReport",
    "Report",
    "decode_report",
    "encode_report",
]

_FORMAT = "accy-async bench"
_VERSION = 1
_LEAST_NS, _MOST_NS = 1e-6, 1e18
"""A sample may be of many launches, and none lasts for 30 years."""


def _times(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    """Times are such that they can be compared, which is by their logarithms."""
    assert isinstance(value, tuple)
    for one in value:
        if not _LEAST_NS <= one <= _MOST_NS:
            name = f"{type(instance).__name__}.{attribute.name}"
            expected = f"{_LEAST_NS:g} to {_MOST_NS:g} nanoseconds"
            raise InvalidValue(name, one, expected)


@attrs.frozen(kw_only=True)
class DeviceReport:
    """Which device was measured.

    Attributes:
        backend: what drives it.
        name: the product's.
        architecture: instruction set or compute capability.
        compute_units: multiprocessors, or cores.
        driver: the driver's or system's version.
        fingerprint: what equal devices share, in hexadecimal digits.
    """

    backend: str
    name: str
    architecture: str
    compute_units: int
    driver: str
    fingerprint: str


@attrs.frozen(kw_only=True)
class Ceiling:
    """What the device does at most, as measured.

    Attributes:
        name: ``copy`` or ``fma``.
        unit: ``B/s`` or ``FLOP/s``.
        value: from the median of the samples.
        low: from the bounds of the median.
        high: the same.
    """

    name: str
    unit: str
    value: float
    low: float
    high: float


@attrs.frozen(kw_only=True)
class CandidateReport:
    """How one way to do it did.

    Attributes:
        name: its own.
        status: ``measured``, or why it was not.
        reason: the same in words.
        times_ns: the samples, in the order of the rounds.
        median_ns: their median, None where there are none; ``low_ns`` and ``high_ns``
            are the bounds that it is between, ``mad_ns`` the median absolute deviation.
        speedup: the first candidate's time over its own within the rounds, with
            bounds; None for the first one.
        standing: how it compares with the first one.
        bytes_per_s: None where it is not known what is moved.
        flops_per_s: None where it is not known what is computed.
    """

    name: str
    status: str
    reason: str = ""
    times_ns: tuple[float, ...] = attrs.field(default=(), validator=_times)
    median_ns: float | None = None
    low_ns: float | None = None
    high_ns: float | None = None
    mad_ns: float | None = None
    speedup: tuple[float, float, float] | None = None
    standing: str | None = None
    bytes_per_s: float | None = None
    flops_per_s: float | None = None


@attrs.frozen(kw_only=True)
class BenchmarkReport:
    """What was found of one benchmark.

    Attributes:
        name: its own; of a fragment's kernel, the fragment's and the kernel's.
        kind: ``fragment``, ``kernel`` or ``fragment kernel``.
        declared: file and line.
        bytes_moved: what each candidate moves at least.
        flops: what each computes.
        candidates: each, in order; the first that works is what the others are
            compared with.
        winner: the one to use; None where none works.
        standing: the winner's against the first.
        source: whose clock was read: ``device`` or ``host``.
        launches: launches, or calls, that a sample is of.
        conditions: what the samples say of the machine.
        is_steady: whether it held still.
        is_complete: False where it was broken off.
        error: why nothing could be measured; empty where something was.
    """

    name: str
    kind: str
    declared: str
    bytes_moved: int | None = None
    flops: float | None = None
    candidates: tuple[CandidateReport, ...] = ()
    winner: str | None = None
    standing: str = "undecided"
    source: str = "device"
    launches: int = 1
    conditions: str = ""
    is_steady: bool = True
    is_complete: bool = True
    error: str = ""

    def candidate(self, name: str) -> CandidateReport | None:
        """The candidate of that name."""
        return next((one for one in self.candidates if one.name == name), None)

    @property
    def is_sound(self) -> bool:
        """True where every candidate could be measured."""
        return not self.error and all(
            one.status == "measured" for one in self.candidates
        )


@attrs.frozen(kw_only=True)
class Report:
    """A run of a benchmark file.

    Attributes:
        file: which.
        started: when, in UTC, as ISO 8601 has it.
        device: where.
        versions: of what took part.
        options: that it was run with.
        ceilings: what the device does at most, as measured then.
        benchmarks: what was found.
        is_complete: False where it was broken off.
    """

    file: str
    started: str
    device: DeviceReport
    versions: dict[str, str]
    options: dict[str, str]
    ceilings: tuple[Ceiling, ...] = ()
    benchmarks: tuple[BenchmarkReport, ...] = ()
    is_complete: bool = False

    def ceiling(self, name: str) -> Ceiling | None:
        """The ceiling of that name."""
        return next((one for one in self.ceilings if one.name == name), None)

    def benchmark(self, name: str) -> BenchmarkReport | None:
        """The benchmark of that name."""
        return next((one for one in self.benchmarks if one.name == name), None)


def encode_report(report: Report) -> dict[str, Any]:
    """The report as a JSON document's values."""
    found: dict[str, Any] = msgspec.to_builtins(report)
    return {"format": _FORMAT, "version": _VERSION, **found}


def decode_report(data: bytes) -> Report:
    """What `encode_report` gave, as JSON.

    Raises:
        InvalidArtifact: it is something else, or of another version.
    """
    try:
        document = msgspec.json.decode(data)
        if not isinstance(document, dict) or document.pop("format", "") != _FORMAT:
            raise InvalidArtifact("it is no report of accy-async bench")
        version = document.pop("version", None)
        if version != _VERSION:
            raise InvalidArtifact(
                f"a report of version {version}, expected version {_VERSION}"
            )
        return msgspec.convert(document, Report)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidArtifact(
            f"it is no report of accy-async bench: {error}"
        ) from error
