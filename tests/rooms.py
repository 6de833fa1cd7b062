"""The rooms of the package: which modules are in each, and what each may import."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

__all__ = ["OUTSIDE", "PACKAGE", "ROOMS", "Room"]

PACKAGE = "accy_async"


@attrs.frozen
class Room:
    """Modules that belong together, and what they may know of the others.

    ``modules`` are dotted names; each stands for itself and all below it.
    ``below`` are the rooms that may be imported as a whole; ``parts`` maps
    single modules of other rooms that may be imported too to the reason. The
    package's own façade, which imports every room, is for callers.
    """

    name: str
    modules: tuple[str, ...]
    below: frozenset[str] = frozenset()
    parts: Mapping[str, str] = attrs.field(factory=dict)
    sees_facade: bool = False


def _room(
    name: str,
    *below: str,
    parts: Mapping[str, str] | None = None,
    also: str = "",
    sees_facade: bool = False,
) -> Room:
    modules = tuple(f"{PACKAGE}.{module}" for module in (name, *also.split()))
    return Room(
        name=name,
        modules=modules,
        below=frozenset(below),
        parts={f"{PACKAGE}.{part}": why for part, why in (parts or {}).items()},
        sees_facade=sees_facade,
    )


BASE = ("errors", "values", "dtypes")
OBSERVER = {"observe.protocol": "what happens is told through one small protocol"}

ROOMS: tuple[Room, ...] = (
    _room("errors"),
    _room("values", "errors"),
    _room("dtypes", "errors"),
    _room("observe", "errors", "values"),
    _room("artifact", *BASE),
    _room("interop", *BASE, "artifact"),
    _room("backends", *BASE, "artifact", "interop", parts=OBSERVER),
    _room("graph", *BASE, "artifact", "interop", "backends", parts=OBSERVER),
    _room(
        "pipeline", *BASE, "artifact", "interop", "backends", "graph", parts=OBSERVER
    ),
    _room("tuning", *BASE, "artifact", "backends", "graph", parts=OBSERVER),
    _room(
        "compiler",
        *BASE,
        "artifact",
        parts={
            "backends.base": "code is made for declared capabilities, not for a device",
            "backends.capabilities": "as above, where they have a module of their own",
            "tuning.records": "a remembered winner decides between candidates",
            "pipeline.model": "the kernel catalogue describes the pipelines it offers",
            **OBSERVER,
        },
    ),
    _room(
        "fragment",
        *BASE,
        "artifact",
        "interop",
        "backends",
        "graph",
        "tuning",
        "compiler",
        parts=OBSERVER,
    ),
    _room(
        "session",
        *BASE,
        "observe",
        "artifact",
        "interop",
        "backends",
        "graph",
        "pipeline",
        "tuning",
        "compiler",
        "fragment",
        also="bridges",
    ),
    # Above the session, which it opens none of: benchmark files, run in a session.
    _room(
        "bench",
        *BASE,
        "observe",
        "artifact",
        "backends",
        "graph",
        "tuning",
        "compiler",
        "fragment",
        "session",
    ),
    _room(
        "fleet",
        *BASE,
        "artifact",
        "backends",
        "graph",
        "tuning",
        "session",
    ),
    _room(
        "cli",
        *BASE,
        "observe",
        "artifact",
        "backends",
        "graph",
        "pipeline",
        "tuning",
        "compiler",
        "fragment",
        "session",
        "bench",
        also="__main__",
        sees_facade=True,  # the command is a caller, and reports its version
    ),
)

# The only places that may import each of these: behind them stand our protocols.
OUTSIDE: dict[str, tuple[str, ...]] = {
    "asyncio": (f"{PACKAGE}.backends.loops", f"{PACKAGE}.backends.nativecancel"),
    "cuda": (f"{PACKAGE}.backends.cuda", f"{PACKAGE}.compiler.nvrtc"),
    "cyclopts": (f"{PACKAGE}.cli",),
    "llvmlite": (f"{PACKAGE}.compiler.emit",),
    "optuna": (f"{PACKAGE}.tuning.search.strategies",),
    "ray": (f"{PACKAGE}.fleet.rayworkers",),
    "rich": (f"{PACKAGE}.cli", f"{PACKAGE}.observe"),
    "trio": (f"{PACKAGE}.backends.loops",),
    "vulkan": (f"{PACKAGE}.backends.vulkan",),
}
