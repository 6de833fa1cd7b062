"""Fuzz the decoders of our bytes, guided by the lines that inputs reach.

    python -m tools.fuzz --seconds 600 --decoder launch_tuning --seed 1

Random changes of sealed bytes end at their checksum. So inputs are payloads, changed
and then sealed as a writer would; sealed bytes are changed as well, now and then. An
input must be refused, by the error that is documented and with nothing changed by it;
or read, and written back as the same bytes, or as bytes that are read as the same.
Inputs that reach a step from one line of ours to the next that none before had reached
are kept and changed further. `tools.decoders` says what there is to fuzz.

Anything else, two seconds of computing over one input among them, is written to
``fuzz-DECODER-NUMBER.bin`` in the working directory, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, TypeVar

import attrs

from tools.decoder import Decoder
from tools.decoders import DECODERS

__all__ = ["Report", "fuzz", "main"]

Step = tuple[CodeType, int, int]
Tracer = Callable[[FrameType, str, object], Any]

_T = TypeVar("_T")
_OURS = "/accy_async/"
_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF)
_WHOLE_CHANGED = 0.02
"""The part of inputs that is changed after it was sealed."""

_MOST_S = 2.0
_MOST_MEMORY = 8 << 30
_MOST_FAULTS = 20


@attrs.define
class Report:
    """What fuzzing one decoder came to.

    Attributes:
        name: of the decoder.
        inputs: that were tried.
        kept: of them, that reached something new.
        steps: from line to line that were reached.
        read: inputs that were read.
        seconds: that it took.
        cpu_seconds: of them, that were spent computing.
        slowest_s: that one input took to compute.
        faults: inputs that were neither refused nor read well, with what happened.
    """

    name: str
    inputs: int = 0
    kept: int = 0
    steps: int = 0
    read: int = 0
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    slowest_s: float = 0.0
    faults: list[tuple[bytes, str]] = attrs.field(factory=list)

    def __str__(self) -> str:
        rate = self.inputs / max(self.seconds, 1e-9)
        return (
            f"{self.name}: {self.inputs} inputs in {self.seconds:.0f} s "
            f"({self.cpu_seconds:.0f} s of a core), {rate:.0f}/s, {self.read} read, "
            f"{self.kept} kept, {self.steps} steps, slowest "
            f"{1e3 * self.slowest_s:.1f} ms, {len(self.faults)} faults"
        )


class _Hang(BaseException):
    """One input has taken too long."""


class _Coverage:
    """The steps that calls take through our files."""

    def __init__(self) -> None:
        self.steps: set[Step] = set()
        self._last: dict[int, int] = {}
        self._is_ours: dict[CodeType, bool] = {}

    def run(self, call: Callable[[], _T]) -> _T:
        """Call, and have in `steps` what that took, and no more."""
        self.steps.clear()
        self._last.clear()
        before = sys.gettrace()
        sys.settrace(self._enter)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _enter(self, frame: FrameType, event: str, _: object) -> Tracer | None:
        code = frame.f_code
        is_ours = self._is_ours.get(code)
        if is_ours is None:
            is_ours = _OURS in code.co_filename.replace("\\", "/")
            self._is_ours[code] = is_ours
        if not is_ours:
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
    decoder: Decoder,
    *,
    seconds: float,
    seed: int = 0,
    most_inputs: int | None = None,
    seeds: Sequence[bytes] = (),
) -> Report:
    """Fuzz one decoder.

    Args:
        decoder: which.
        seconds: for how long.
        seed: of the changes.
        most_inputs: after which to stop earlier.
        seeds: further payloads to begin with.
    """
    source = random.Random(seed)
    report = Report(decoder.name)
    queue = [*decoder.payloads, *seeds]
    corpus = list(queue)
    known: set[Step] = set()
    coverage = _Coverage()
    begun, cpu_begun = time.monotonic(), time.thread_time()
    while time.monotonic() < begun + seconds and report.inputs != most_inputs:
        if len(report.faults) == _MOST_FAULTS:
            break
        payload = queue.pop() if queue else _change(source, corpus, decoder.words)
        data = decoder.seal(payload)
        if source.random() < _WHOLE_CHANGED:
            data = _change(source, [data], decoder.words)
        _try_one(decoder, data, coverage, report)
        if not coverage.steps <= known:
            known |= coverage.steps
            corpus.append(payload)
            report.kept += 1
    report.steps = len(known)
    report.seconds = time.monotonic() - begun
    report.cpu_seconds = time.thread_time() - cpu_begun
    return report


def _try_one(
    decoder: Decoder, data: bytes, coverage: _Coverage, report: Report
) -> None:
    before = decoder.state()
    report.inputs += 1
    began = time.thread_time()
    try:
        with _limited(_MOST_S):
            value = coverage.run(lambda: decoder.read(data))
            report.read += 1
            fault = _written_back(decoder, value, data)
    except decoder.refusal:
        fault = "" if decoder.state() == before else "refused, and changed what was"
    except _Hang:
        fault = f"not done in {_MOST_S:g} s"
    except Exception as error:  # noqa: BLE001 - what fuzzing looks for
        fault = f"{type(error).__name__}: {error}"
    report.slowest_s = max(report.slowest_s, time.thread_time() - began)
    if fault:
        report.faults.append((data, fault))


def _written_back(decoder: Decoder, value: object, data: bytes) -> str:
    """What is wrong with what a value is written as; empty where nothing is."""
    if decoder.write is None:
        return ""
    written = decoder.write(value)
    if written == data:
        return ""
    if decoder.is_canonical:
        return "written back as other bytes"
    if decoder.write(decoder.read(written)) != written:
        return "written back as bytes that are read as something else"
    return ""


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Break off what computes longer, where the system can and this thread may."""
    try:
        before = signal.signal(signal.SIGVTALRM, _hang)
    except (AttributeError, ValueError):  # on Windows; on any thread but the main one
        yield
        return
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _hang(_: int, __: FrameType | None) -> None:
    raise _Hang


def _change(
    source: random.Random, corpus: Sequence[bytes], words: Sequence[bytes]
) -> bytes:
    """One of the corpus with one to eight changes, at most twice as long as any."""
    data = bytearray(source.choice(corpus))
    for _ in range(1 << source.randrange(4)):
        at = source.randrange(len(data) + 1)
        way = source.randrange(9)
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
            order = "little" if source.random() < 0.5 else "big"
            data[at : at + size] = number.to_bytes(size, order)
        elif way == 6:
            other = source.choice(corpus)
            begin = source.randrange(len(other) + 1)
            data[at:] = other[begin:]
        elif words:
            word = source.choice(words)
            data[at : at + (len(word) if way == 7 else 0)] = word
    return bytes(data[: 2 * max(map(len, corpus[:4])) + 64])


def _bound_memory() -> None:
    """A size that is believed shows as a `MemoryError`, where the system can."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_MEMORY, _MOST_MEMORY))


def main(arguments: Sequence[str] | None = None) -> int:
    """Fuzz every decoder for an equal part of the time; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--decoder", choices=sorted(DECODERS), action="append")
    parser.add_argument("--corpus", type=Path, help="a folder of payloads, *.bin")
    options = parser.parse_args(arguments)
    names = options.decoder or list(DECODERS)
    seeds = []
    if options.corpus is not None:
        seeds = [file.read_bytes() for file in sorted(options.corpus.glob("*.bin"))]
    has_faults = False
    for name in names:
        with tempfile.TemporaryDirectory() as folder:
            report = fuzz(
                DECODERS[name](Path(folder)),
                seconds=options.seconds / len(names),
                seed=options.seed,
                seeds=seeds,
            )
        print(report, flush=True)
        for number, (data, what) in enumerate(report.faults):
            file = Path(f"fuzz-{name}-{number}.bin")
            file.write_bytes(data)
            print(f"  {file}: {what}")
            has_faults = True
    return int(has_faults)


if __name__ == "__main__":
    _bound_memory()
    sys.exit(main())
