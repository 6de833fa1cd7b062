"""``accy-async cache``: what compiled code is kept on disk, and removing it."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter
from cyclopts.validators import Number

from accy_async.artifact.store import (
    CACHE_FOLDER_VARIABLE,
    ArtifactStore,
    PruneReport,
    default_store,
)
from accy_async.cli.exits import ExitCode, UsageError
from accy_async.cli.options import Json, Traceback
from accy_async.cli.terminal import console, write_json

__all__ = ["cache_app", "clear", "prune", "show"]

Folder = Annotated[
    Path | None,
    Parameter(help="The cache's folder; the user's own if left out."),
]
_MIB = 2**20
_DAY_S = 86_400.0


def show(
    *, folder: Folder = None, json: Json = False, traceback: Traceback = False
) -> int:
    """Show where compiled code is kept, how much of it, and how old it is."""
    del traceback
    store = _store(folder)
    now = time.time()
    schemas: dict[str, dict[str, float]] = {}
    for entry in store.entries():
        row = schemas.setdefault(
            entry.schema, {"entries": 0, "bytes": 0, "oldest_s": 0.0}
        )
        row["entries"] += 1
        row["bytes"] += entry.byte_size
        row["oldest_s"] = max(row["oldest_s"], now - entry.used_at)
    used = sum(row["bytes"] for row in schemas.values())
    document = {
        "folder": str(store.folder),
        "limit_bytes": store.max_bytes,
        "bytes": used,
        "schemas": dict(sorted(schemas.items())),
    }
    if json:
        write_json(document)
        return ExitCode.OK
    screen = console()
    total = f"{_size(used)} of {_size(store.max_bytes)}"
    screen.print(f"{store.folder}: {total}", soft_wrap=True)
    for schema, row in sorted(schemas.items()):
        screen.print(
            f"  {schema}: {_count(row['entries'])}, {_size(row['bytes'])}, unused "
            f"for up to {row['oldest_s'] / _DAY_S:.1f} days",
            soft_wrap=True,
        )
    return ExitCode.OK


def prune(
    *,
    max_mib: Annotated[
        float | None, Parameter(validator=Number(gte=0, lt=math.inf))
    ] = None,
    unused_days: Annotated[float | None, Parameter(validator=Number(gte=0))] = None,
    folder: Folder = None,
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Remove what was used longest ago.

    Parameters
    ----------
    max_mib: float
        How much may stay; the cache's limit if left out.
    unused_days: float
        Also remove what was not used for so many days.
    """
    del traceback
    report = _store(folder).prune(
        None if max_mib is None else int(max_mib * _MIB),
        max_age_s=None if unused_days is None else unused_days * _DAY_S,
    )
    return _tell(report, as_json=json)


def clear(
    *, folder: Folder = None, json: Json = False, traceback: Traceback = False
) -> int:
    """Remove all of it; it is compiled again when it is wanted."""
    del traceback
    return _tell(_store(folder).clear(), as_json=json)


def cache_app() -> App:
    """The command with its own three."""
    app = App(
        name="cache",
        help="Show or remove the compiled code that is kept on disk.",
        help_format="plaintext",
    )
    for command in (show, prune, clear):
        app.command(command)
    return app


def _store(folder: Path | None) -> ArtifactStore:
    store = default_store() if folder is None else ArtifactStore(folder)
    if store is None:
        raise UsageError(
            f"there is no cache: {CACHE_FOLDER_VARIABLE} is empty; --folder names one"
        )
    return store


def _tell(report: PruneReport, *, as_json: bool) -> int:
    if as_json:
        write_json(
            {
                "removed": report.removed,
                "removed_bytes": report.removed_bytes,
                "kept": report.kept,
                "kept_bytes": report.kept_bytes,
            }
        )
    else:
        console().print(
            f"removed {_count(report.removed)} ({_size(report.removed_bytes)}), left "
            f"{_count(report.kept)} ({_size(report.kept_bytes)})"
        )
    return ExitCode.OK


def _size(count: float) -> str:
    return f"{count / _MIB:.1f} MiB"


def _count(entries: float) -> str:
    return "1 entry" if entries == 1 else f"{entries:.0f} entries"
