"""``accy-async tune``: what tuning has measured and keeps on disk."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import App, Group, Parameter

from accy_async.artifact.store import CACHE_FOLDER_VARIABLE, ArtifactStore
from accy_async.cli.exits import ExitCode, UsageError
from accy_async.cli.terminal import console, write_json
from accy_async.errors import InvalidArtifact
from accy_async.observe.files import read_file, replace_file
from accy_async.tuning.store import CODECS, TuningStore, default_tuning_store

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from accy_async.tuning.launches import LaunchTuningCacheRecord
    from accy_async.tuning.records import FamilyTuningRecord, ScheduleTuningRecord
    from accy_async.tuning.records.measured import TuningRecord

__all__ = ["export", "import_", "prune", "show", "tune_app"]

_MACHINES = Group("For machines and for finding faults", sort_key=2)
_FLAG = Parameter(negative="", group=_MACHINES, show_default=False)
Json = Annotated[bool, _FLAG]
Traceback = Annotated[bool, _FLAG]
_MOST_FILE_BYTES = 1 << 24

_Row = dict[str, Any]
"""A winner, as it is written in JSON."""


def show(
    *, folder: Path | None = None, json: Json = False, traceback: Traceback = False
) -> int:
    """Show where tuning keeps its records, and what won.

    Parameters
    ----------
    folder: Path
        The records' folder; the user's own if left out.
    json: bool
        Print one JSON document and nothing else.
    traceback: bool
        Show where an error came from.
    """
    del traceback
    store = _store(folder)
    records = {kind: store.load(kind) for kind in CODECS}
    counts = {kind: len(found) for kind, found in records.items() if found}
    launches = [_launch(one) for one in records.pop("launch_tuning")]
    families = [_family(one) for one in records.pop("family_tuning")]
    schedules = [_schedule(one) for found in records.values() for one in found]
    if json:
        write_json(
            {
                "folder": str(store.folder),
                "records": counts,
                "launches": launches,
                "schedules": schedules,
                "families": families,
            }
        )
        return ExitCode.OK
    screen = console()
    total = sum(counts.values())
    screen.print(f"{store.folder}: {_count(total)}", soft_wrap=True)
    for kind, count in counts.items():
        screen.print(f"  {kind}: {_count(count)}", soft_wrap=True)
    for row in launches:
        won = f"candidate {row['candidate']} of {row['candidates']}"
        what = f"{row['tile']} of {row['elements']}"
        _tell(screen, row, what, won, f" driver {row['driver']!r}")
    for row in schedules:
        what = f"{row['family']} of {_numbers(row['extents'])}"
        _tell(screen, row, what, _numbers(row["choice"]))
    for row in families:
        _tell(screen, row, f"{row['family']} for {row['problem']}", row["target"])
    return ExitCode.OK


def _tell(screen: Console, row: _Row, what: str, won: str, more: str = "") -> None:
    """A line for a winner."""
    screen.print(
        f"    {row['format']} {what}: {won}, {row['median_ns']} ns in "
        f"{row['samples']} samples, on {row['device']}{more}",
        soft_wrap=True,
        markup=False,
    )


def _numbers(numbers: Sequence[int]) -> str:
    return " x ".join(map(str, numbers))


def _launch(one: LaunchTuningCacheRecord) -> _Row:
    key, won = one.key, one.selection
    return {
        "backend": str(key.backend),
        "device": f"{key.device:016x}",
        "driver": key.driver,
        "format": str(key.format),
        "tile": str(key.tile_kind),
        "elements": key.element_count,
        "candidate": won.candidate_index,
        "candidates": key.candidate_count,
        "median_ns": won.median_ns,
        "samples": won.sample_count,
    }


def _schedule(one: ScheduleTuningRecord) -> _Row:
    key = one.key
    return {
        "device": f"{key.device:016x}",
        "format": str(key.format),
        "family": str(key.family),
        "extents": key.extents,
        "dtypes": [str(dtype) for dtype in key.dtypes],
        "choice": one.choice,
        **_measured(one),
    }


def _family(one: FamilyTuningRecord) -> _Row:
    key = one.key
    return {
        "device": f"{key.device:016x}",
        "format": str(key.format),
        "family": key.family,
        "problem": key.problem,
        "target": one.target,
        **_measured(one),
    }


def _measured(one: TuningRecord) -> _Row:
    return {
        "median_ns": one.winner_median_ns,
        "runner_up_median_ns": one.runner_up_median_ns,
        "samples": one.sample_count,
    }


def export(
    file: Path,
    *,
    kind: str = "launch_tuning",
    folder: Path | None = None,
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Write all records of a kind to a file, to be imported elsewhere.

    Parameters
    ----------
    file: Path
        Where to; what is there is replaced, whole.
    kind: str
        Which kind of record.
    folder: Path
        The records' folder; the user's own if left out.
    json: bool
        Print one JSON document and nothing else.
    traceback: bool
        Show where an error came from.
    """
    del traceback
    if kind not in CODECS:
        raise UsageError(f"--kind {kind}: there are {', '.join(CODECS)}")
    store = _store(folder)
    artifact = store.export(kind)
    try:
        replace_file(file, artifact)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    count = len(CODECS[kind].decode(artifact))
    if json:
        write_json({"file": str(file), "kind": kind, "records": count})
    else:
        console().print(f"{file}: {_count(count)} of {kind}", soft_wrap=True)
    return ExitCode.OK


def import_(
    file: Path,
    *,
    folder: Path | None = None,
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Take in the records of a file; of two of one thing the better one stays.

    Records of other devices are kept, and used there alone.

    Parameters
    ----------
    file: Path
        As export writes it.
    folder: Path
        The records' folder; the user's own if left out.
    json: bool
        Print one JSON document and nothing else.
    traceback: bool
        Show where an error came from.
    """
    del traceback
    store = _store(folder)
    try:
        artifact = read_file(file, _MOST_FILE_BYTES + 1)
        kind, count = store.import_artifact(artifact)
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}") from error
    except InvalidArtifact as error:
        raise UsageError(f"{file}: {error}") from error
    if json:
        write_json({"file": str(file), "kind": kind, "records": count})
    else:
        console().print(f"took in {_count(count)} of {kind}", soft_wrap=True)
    return ExitCode.OK


def prune(
    *,
    kind: str | None = None,
    everything: Annotated[bool, Parameter(negative="")] = False,
    folder: Path | None = None,
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Remove records that are damaged, or worse than others.

    Parameters
    ----------
    kind: str
        Only of this kind.
    everything: bool
        Remove all records: they are measured again when they are wanted.
    folder: Path
        The records' folder; the user's own if left out.
    json: bool
        Print one JSON document and nothing else.
    traceback: bool
        Show where an error came from.
    """
    del traceback
    if kind is not None and kind not in CODECS:
        raise UsageError(f"--kind {kind}: there are {', '.join(CODECS)}")
    store = _store(folder)
    if everything:
        removed = store.clear(kind)
    else:
        removed = store.prune(kind)
    counts = store.counts()
    if json:
        write_json({"removed": removed, "records": counts})
    else:
        files = "1 file" if removed == 1 else f"{removed} files"
        console().print(f"removed {files}, left {_count(sum(counts.values()))}")
    return ExitCode.OK


def tune_app() -> App:
    """The command with its own four."""
    app = App(
        name="tune",
        help="Show, hand on, take in or remove what tuning has measured.",
        help_format="plaintext",
    )
    app.command(show)
    app.command(export)
    app.command(import_, name="import")
    app.command(prune)
    return app


def _store(folder: Path | None) -> TuningStore:
    if folder is not None:
        return TuningStore(ArtifactStore(folder))
    store = default_tuning_store()
    if store is None:
        raise UsageError(
            f"there is no cache: {CACHE_FOLDER_VARIABLE} is empty; --folder names one"
        )
    return store


def _count(records: int) -> str:
    return "1 record" if records == 1 else f"{records} records"
