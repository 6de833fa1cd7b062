"""``accy-async bench``: run a file's benchmarks, show, save, draw and compare them."""

from __future__ import annotations

import errno
import json as jsonlib
import os
import re
import sys
from contextlib import nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import attrs
from cyclopts import Parameter
from cyclopts.validators import Number

from accy_async import __version__, open_session, run
from accy_async.cli.bench.showing import show
from accy_async.cli.demo.progress import Bar
from accy_async.cli.exits import ExitCode, UsageError
from accy_async.cli.options import Json, Traceback, check_backend
from accy_async.cli.terminal import Interrupts, console, write_json
from accy_async.errors import InvalidArtifact
from accy_async.observe.files import read_file, replace_file

if TYPE_CHECKING:
    from accy_async.bench import BenchRun, Change, Report

__all__ = ["bench"]

_MOST_REPORT_BYTES = 1 << 28


def bench(
    file: Path,
    *,
    device: str = "auto",
    samples: Annotated[int, Parameter(validator=Number(gte=4, lte=1 << 20))] = 64,
    seconds: Annotated[
        float | None, Parameter(validator=Number(gte=0.0, lte=1e6))
    ] = None,
    cache: Literal["warm", "cold"] = "warm",
    exclusive: Annotated[bool, Parameter(negative="")] = False,
    save: Path | None = None,
    svg: Path | None = None,
    compare: Path | None = None,
    force: Annotated[bool, Parameter(negative="")] = False,
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Measure what a file declares, against what the device does at most.

    The file is a Python program: it is run. docs/bench.md says how to write one.

    Parameters
    ----------
    file: Path
        Declares benchmarks, with what accy_async.bench has for that.
    device: str
        What to run on: auto (the best here), cuda, cuda:1, vulkan, cpu, or recording
        (executes nothing).
    samples: int
        Of each candidate.
    seconds: float
        End each benchmark after so long, whatever samples it has.
    cache: str
        What the device's caches hold when a kernel begins.
    exclusive: bool
        Wait for the device to be idle, measure anew where the machine did not hold
        still, and end with exit code 1 where it still did not.
    save: Path
        A file to write the report to, as JSON.
    svg: Path
        A folder for a picture of each benchmark.
    compare: Path
        An earlier report to compare with.
    force: bool
        Compare with a report of another device all the same.
    """
    del traceback
    from accy_async.bench import (
        BenchOptions,
        BenchRun,
        InvalidBenchmark,
        compare_reports,
        load_benchmarks,
    )

    if force and compare is None:
        raise UsageError("--force is for --compare")
    check_backend("--device", device)
    _check_targets(save, svg)
    earlier = None if compare is None else _read_report(compare)
    options = BenchOptions(
        samples=samples, seconds=seconds, exclusive=exclusive, cache=cache
    )
    interrupts = Interrupts()
    failure: BaseException | None = None
    # What the file prints is none of the one document.
    aside = redirect_stdout(sys.stderr) if json else nullcontext()
    with aside, Bar(console(stderr=True), is_shown=not json) as bar:
        try:
            benchmarks = load_benchmarks(file)
        except InvalidBenchmark as error:
            raise UsageError(str(error)) from error
        running = BenchRun(
            file=str(file),
            benchmarks=benchmarks,
            options=options,
            watcher=bar,
            version=__version__,
        )
        try:
            run(interrupts.run, lambda: _measure(running, device, earlier, force))
        except BaseException as error:  # noqa: BLE001 - raised, or told, below
            failure = error
    report = running.report
    if report is None:
        assert failure is not None
        if interrupts.signum is not None:
            return interrupts.report(failure, as_json=json)
        raise failure
    changes = () if earlier is None else compare_reports(report, earlier)
    try:
        _write(report, save, svg)
    except UsageError:
        if not json:  # what was measured is not lost with the file
            console().print(show(report, changes, earlier))
        raise
    if failure is not None and interrupts.signum is None:
        if not json:
            console().print(show(report, changes, earlier))
        raise failure
    code: int = _exit_code(report, exclusive=exclusive)
    if failure is not None:
        code = interrupts.exit_code
    if json:
        write_json(_document(report, changes, code))
    else:
        console().print(show(report, changes, earlier))
    return code if failure is None else interrupts.report(failure)


async def _measure(
    running: BenchRun,
    device: str,
    earlier: Report | None,
    force: bool,
) -> None:
    from accy_async.bench import device_report, difference_of_devices

    async with open_session(device) as session:
        if earlier is not None and not force:
            differs = difference_of_devices(device_report(session), earlier.device)
            if differs is not None:
                raise UsageError(
                    f"--compare: the report is of another device: {differs}; --force "
                    "compares all the same"
                )
        await running.run(session)


def _read_report(path: Path) -> Report:
    from accy_async.bench import decode_report

    try:
        return decode_report(read_file(path, _MOST_REPORT_BYTES))
    except OSError as error:
        raise UsageError(f"--compare {path}: {error.strerror or error}") from error
    except InvalidArtifact as error:
        raise UsageError(f"--compare {path}: {error}") from error


def _check_targets(save: Path | None, svg: Path | None) -> None:
    """Refuse what cannot be written, before anything is measured."""
    if save is not None and save.is_dir():
        raise UsageError(f"--save {save}: {os.strerror(errno.EISDIR)}")
    if save is not None and not save.absolute().parent.is_dir():
        raise UsageError(f"--save {save}: {os.strerror(errno.ENOENT)}")
    if svg is None:
        return
    try:
        svg.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--svg {svg}: {error.strerror or error}") from error


def _write(report: Report, save: Path | None, svg: Path | None) -> None:
    from accy_async.bench import draw_benchmark, encode_report

    if save is not None:
        data = jsonlib.dumps(encode_report(report), indent=1).encode()
        try:
            replace_file(save, data + b"\n")
        except OSError as error:
            raise UsageError(f"--save {save}: {error.strerror or error}") from error
    if svg is None:
        return
    try:
        names: set[str] = set()
        for number, one in enumerate(report.benchmarks):
            if not one.candidates:
                continue
            name = re.sub(r"[^A-Za-z0-9_.-]+", "-", one.name).strip("-.")
            if not name or name in names:
                name = f"{name}-{number}".strip("-")
            names.add(name)
            picture = draw_benchmark(one, report.ceilings)
            replace_file(svg / f"{name}.svg", picture.encode())
    except OSError as error:
        raise UsageError(f"--svg {svg}: {error.strerror or error}") from error


def _document(
    report: Report, changes: tuple[Change, ...], code: int
) -> dict[str, object]:
    from accy_async.bench import encode_report

    return {
        **encode_report(report),
        "changes": [
            {**attrs.asdict(one), "standing": str(one.standing)} for one in changes
        ],
        "exit_code": int(code),
    }


def _exit_code(report: Report, *, exclusive: bool) -> ExitCode:
    """Whether everything could be measured, and as it was asked for."""
    is_sound = all(one.is_sound for one in report.benchmarks)
    is_steady = all(one.is_steady for one in report.benchmarks)
    if is_sound and (is_steady or not exclusive):
        return ExitCode.OK
    return ExitCode.CHECK_FAILED
