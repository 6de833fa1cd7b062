"""Fuzz the decoders of tuning artifacts, guided by the lines that inputs reach.

    python -m tools.fuzz_tuning --seconds 120 --seed 1

Random changes of an artifact end at its checksum. So inputs are payloads, changed and
then sealed as a writer would; whole artifacts are changed as well, now and then. What
a decoder makes of an input must be `InvalidArtifact`, or records that are written back
as the very same bytes. Inputs that reach a line, or a step from one line to the next,
that none before had reached are kept and changed further.

Anything else is written to ``fuzz-KIND-NUMBER.bin`` in the working directory, and the
exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import attrs

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.sealed import seal, unseal
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches import LaunchTuningCacheKey, LaunchTuningCacheRecord
from accy_async.tuning.records import (
    FamilyTuningKey,
    FamilyTuningRecord,
    ScheduleFamily,
    ScheduleTuningKey,
    ScheduleTuningRecord,
)
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.measured import KeptRecord
from accy_async.tuning.store import CODECS

__all__ = ["Report", "fuzz", "main", "samples"]

Step = tuple[CodeType, int, int]
Tracer = Callable[[FrameType, str, object], Any]

_T = TypeVar("_T")
_WATCHED = ("tuning/records", "tuning/launches", "artifact/sealed", "accy_async/values")
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_MOST_BYTES = 4096


@attrs.define
class Report:
    """What fuzzing one decoder came to.

    Attributes:
        kind: of its records.
        inputs: that were tried.
        kept: of them, that reached something new.
        steps: from line to line that were reached.
        read: inputs that were read as records.
        faults: inputs that were neither refused nor read well, with what happened.
    """

    kind: str
    inputs: int = 0
    kept: int = 0
    steps: int = 0
    read: int = 0
    faults: list[tuple[bytes, str]] = attrs.field(factory=list)


class _Coverage:
    """The steps that a call takes through the watched files."""

    def __init__(self) -> None:
        self.steps: set[Step] = set()
        self._last: dict[int, int] = {}
        self._is_watched: dict[CodeType, bool] = {}

    def run(self, call: Callable[[], _T]) -> _T:
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> Tracer | None:
        code = frame.f_code
        watched = self._is_watched.get(code)
        if watched is None:
            name = code.co_filename.replace("\\", "/")
            watched = any(part in name for part in _WATCHED)
            self._is_watched[code] = watched
        if not watched:
            return None
        self._last[id(frame)] = 0
        return self._line

    def _line(self, frame: FrameType, event: str, _: object) -> Tracer:
        key = id(frame)
        if event == "line":
            line = frame.f_lineno
            self.steps.add((frame.f_code, self._last.get(key, 0), line))
            self._last[key] = line
        elif event == "return":
            self._last.pop(key, None)
        return self._line


def fuzz(
    codec: RecordCodec[Any],
    seeds: Sequence[bytes],
    *,
    seconds: float,
    seed: int = 0,
    most_inputs: int | None = None,
) -> Report:
    """Fuzz one decoder.

    Args:
        codec: whose decoder.
        seeds: payloads to begin with.
        seconds: for how long.
        seed: of the changes.
        most_inputs: after which to stop earlier.
    """
    source = random.Random(seed)
    report = Report(codec.schema)
    corpus = [bytes(one) for one in seeds] or [bytes(4)]
    known: set[Step] = set()
    ends = time.monotonic() + seconds
    queue = list(corpus)
    while time.monotonic() < ends and report.inputs != most_inputs:
        payload = queue.pop() if queue else _change(source, corpus)
        artifact = seal(codec.schema, str(codec.version), payload)
        if source.random() < 0.02:
            artifact = _change(source, [artifact])
        coverage = _Coverage()
        report.inputs += 1
        try:
            records = coverage.run(lambda: codec.decode(artifact))  # noqa: B023
            report.read += 1
            if codec.encode(records) != artifact:
                report.faults.append((artifact, "written back as other bytes"))
        except InvalidArtifact:
            pass
        except Exception as error:  # noqa: BLE001 - what fuzzing looks for
            report.faults.append((artifact, f"{type(error).__name__}: {error}"))
        if not coverage.steps <= known:
            known |= coverage.steps
            corpus.append(payload)
            report.kept += 1
    report.steps = len(known)
    return report


def _change(source: random.Random, corpus: Sequence[bytes]) -> bytes:
    data = bytearray(source.choice(corpus))
    for _ in range(1 << source.randrange(4)):
        at = source.randrange(len(data) + 1)
        way = source.randrange(7)
        if way == 0 and at < len(data):
            data[at] ^= 1 << source.randrange(8)
        elif way == 1 and at < len(data):
            data[at] = source.randrange(256)
        elif way == 2:
            data[at:at] = source.randbytes(source.randrange(1, 9))
        elif way == 3:
            del data[at : at + source.randrange(1, 17)]
        elif way == 4:
            data[at : at + 16] = data[at : at + 16] * 2
        elif way == 5:
            size = source.choice((1, 2, 4, 8))
            number = source.choice(_INTERESTING) % (1 << 8 * size)
            data[at : at + size] = number.to_bytes(size, "little")
        else:
            other = source.choice(corpus)
            begin = source.randrange(len(other) + 1)
            data[at:] = other[begin:]
    return bytes(data[:_MOST_BYTES])


def samples() -> dict[str, KeptRecord]:
    """A record of each kind, to begin with."""
    device, format = 0x1234567890ABCDEF, ArtifactFormat.CUDA_PTX
    launch = LaunchTuningCacheRecord(
        key=LaunchTuningCacheKey(
            backend=BackendKind.CUDA,
            device=device,
            driver="580.1",
            format=format,
            kernel_fingerprint=1,
            output_layout_fingerprint=2,
            input_layout_fingerprint=3,
            element_count=8192,
            tile=LaunchTile(
                kind=LaunchTileKind.REDUCTION,
                m=32,
                n=256,
                input_dtype=DType.F32,
                reduction=LaunchReduction(
                    kind=LaunchReductionKind.SUM, rank=1, axis=0, extent=256
                ),
            ),
            candidate_count=3,
            launch_resource_fingerprint=4,
        ),
        selection=LaunchCandidateMeasurement(
            kernel_id=0, candidate_index=1, median_ns=200, sample_count=8
        ),
    )
    family = FamilyTuningRecord(
        key=FamilyTuningKey(
            device=device,
            format=format,
            family="accy.kernel.matrix_product",
            version=1,
            problem="f32.5x7x3",
        ),
        target="accy.kernel.matrix_product.t8x8",
        winner_median_ns=800,
    )
    schedules = {
        f"{kind}_schedule_tuning": ScheduleTuningRecord(
            key=ScheduleTuningKey(
                device=device,
                family=kind,
                format=format,
                extents=(5, 7),
                dtypes=(DType.F32,),
                version=1,
                candidates=9,
            ),
            choice=(8, 8),
            winner_median_ns=800,
        )
        for kind in ScheduleFamily
    }
    return {"launch_tuning": launch, "family_tuning": family, **schedules}


def _seeds(codec: RecordCodec[Any], folder: Path | None) -> list[bytes]:
    """Payloads to begin with: none, one and two records, and what a folder holds."""
    record = samples()[codec.schema]
    found = [
        unseal(codec.encode([record] * count), codec.schema, str(codec.version))
        for count in range(3)
    ]
    if folder is not None:
        found += [file.read_bytes() for file in sorted(folder.glob("*.bin"))]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz every decoder for an equal part of the time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=sorted(CODECS), default=None)
    parser.add_argument("--corpus", type=Path, default=None)
    options = parser.parse_args(arguments)
    codecs = [codec for kind, codec in CODECS.items() if options.kind in (None, kind)]
    has_faults = False
    for codec in codecs:
        report = fuzz(
            codec,
            _seeds(codec, options.corpus),
            seconds=options.seconds / len(codecs),
            seed=options.seed,
        )
        print(
            f"{report.kind}: {report.inputs} inputs, {report.read} read, "
            f"{report.kept} kept, {report.steps} steps, {len(report.faults)} faults",
            flush=True,
        )
        for number, (artifact, what) in enumerate(report.faults):
            file = Path(f"fuzz-{report.kind}-{number}.bin")
            file.write_bytes(artifact)
            print(f"  {file}: {what}")
            has_faults = True
    return int(has_faults)


if __name__ == "__main__":
    sys.exit(main())
