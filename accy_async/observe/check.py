"""Finding what is wrong with a saved trace."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

from accy_async.errors import InvalidValue
from accy_async.observe.protocol import STATES
from accy_async.observe.reading import decode_document, nanoseconds

__all__ = ["validate_trace"]

_PHASES = frozenset("BEXMsfbeinCPNOD")
_UNTIMED = frozenset("M")
_Track = tuple[object, object]


def validate_trace(document: object) -> list[str]:
    """Everything that is wrong with a trace, one sentence each.

    Checks that it has the format's form; that every node has a positive time, a
    duration, a state and a named track, and overlaps no other on it; that what
    began ended; that each edge leaves one node and reaches another, not before;
    that its own counts, its wall time and what was dropped are stated and right.

    Args:
        document: the JSON text, as bytes or str, or what it was decoded to.

    Returns:
        The problems; none if it is as `encode_trace` writes it.
    """
    if isinstance(document, (bytes, str)):
        try:
            document = decode_document(document)
        except InvalidValue as error:
            return [str(error)]
    if not isinstance(document, Mapping):
        return [f"the document is {_kind(document)}, not an object"]
    events = document.get("traceEvents")
    if not isinstance(events, list):
        return [f"traceEvents is {_kind(events)}, not a list"]
    check = _Check()
    for index, event in enumerate(events):
        check.event(index, event)
    check.tracks()
    check.flows()
    check.pairs()
    check.statement(document.get("otherData"))
    return check.problems


def _kind(value: object) -> str:
    return "missing" if value is None else f"of type {type(value).__name__}"


def _time(value: object) -> int | None:
    """A ``ts`` or ``dur`` in nanoseconds; None if it is no finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return nanoseconds(value) if math.isfinite(value) else None


class _Check:
    """One pass over the events, and what it remembers."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self._slices: dict[_Track, list[tuple[int, int, str]]] = {}
        self._named: set[_Track] = set()
        self._flows: dict[object, dict[str, list[tuple[int, _Track]]]] = {}
        self._open: Counter[tuple[object, ...]] = Counter()

    def _say(self, problem: str) -> None:
        self.problems.append(problem)

    def event(self, index: int, event: object) -> None:
        """Check one event by itself, and remember it."""
        if not isinstance(event, Mapping):
            self._say(f"event {index} is {_kind(event)}, not an object")
            return
        phase = event.get("ph")
        where = f"event {index} ({event.get('name')!r})"
        if not isinstance(phase, str) or phase not in _PHASES:
            self._say(f"{where} has ph {phase!r}, which the format does not know")
            return
        if not isinstance(event.get("name"), str):
            self._say(f"event {index} has no name")
        for key in ("pid", "tid"):
            if isinstance(event.get(key), bool) or not isinstance(event.get(key), int):
                self._say(f"{where} has {key} {event.get(key)!r}, not a number")
                return
        track = (event["pid"], event["tid"])
        if phase in _UNTIMED:
            if event.get("name") == "thread_name":
                self._named.add(track)
            return
        at = _time(event.get("ts"))
        if at is None or at <= 0:
            self._say(f"{where} has ts {event.get('ts')!r}, not a time above 0")
            return
        self._timed(phase, where, track, at, event)

    def _timed(
        self,
        phase: str,
        where: str,
        track: _Track,
        at: int,
        event: Mapping[str, object],
    ) -> None:
        if phase == "X":
            self._slice(where, track, at, event)
        elif phase in "sf":
            flow = self._flows.setdefault(event.get("id"), {"s": [], "f": []})
            flow[phase].append((at, track))
        elif phase in "be":
            key = (event.get("cat"), event.get("id"), event.get("name"))
            self._open[key] += 1 if phase == "b" else -1
        elif phase in "BE":
            self._open["track", *track] += 1 if phase == "B" else -1

    def _slice(
        self, where: str, track: _Track, at: int, event: Mapping[str, object]
    ) -> None:
        duration = _time(event.get("dur"))
        if duration is None or duration < 0:
            self._say(f"{where} has dur {event.get('dur')!r}, not a time of 0 or more")
            return
        args = event.get("args")
        state = args.get("state") if isinstance(args, Mapping) else None
        if state not in STATES:
            self._say(f"{where} has state {state!r}, not one of {', '.join(STATES)}")
        row = self._slices.setdefault(track, [])
        row.append((at, at + duration, str(event.get("name"))))

    def tracks(self) -> None:
        """Check that each track has a name, and no two slices at once."""
        for track, row in self._slices.items():
            if track not in self._named:
                self._say(f"track {track[1]} of process {track[0]} has no thread_name")
            row.sort()
            last: tuple[int, int, str] | None = None
            for slice_ in row:
                if last is not None and slice_[0] < last[1]:
                    self._say(
                        f"{last[2]!r} and {slice_[2]!r} overlap on track {track[1]} by "
                        f"{min(last[1], slice_[1]) - slice_[0]} ns"
                    )
                if last is None or slice_[1] > last[1]:
                    last = slice_

    def flows(self) -> None:
        """Check that each edge has two ends, on slices, in order."""
        for number, ends in self._flows.items():
            if len(ends["s"]) != 1 or len(ends["f"]) != 1:
                self._say(
                    f"edge {number!r} has {len(ends['s'])} beginnings and "
                    f"{len(ends['f'])} ends, not one each"
                )
                continue
            (leaves, source), (arrives, target) = ends["s"][0], ends["f"][0]
            if arrives < leaves:
                self._say(
                    f"edge {number!r} arrives {leaves - arrives} ns before it leaves"
                )
            for word, at, track in (
                ("leaves", leaves, source),
                ("reaches", arrives, target),
            ):
                if not self._is_covered(at, track):
                    self._say(f"edge {number!r} {word} no slice of track {track[1]}")

    def _is_covered(self, at: int, track: _Track) -> bool:
        row = self._slices.get(track, [])
        index = bisect_right(row, at, key=lambda slice_: slice_[0]) - 1
        return index >= 0 and at <= row[index][1]

    def pairs(self) -> None:
        """Check that what began has ended."""
        for key, count in self._open.items():
            name = " ".join(str(part) for part in key)
            if count > 0:
                self._say(f"{name} begins and never ends")
            elif count < 0:
                self._say(f"{name} ends and never began")

    def statement(self, stated: object) -> None:
        """Check what the trace says of itself."""
        if not isinstance(stated, Mapping):
            self._say(f"otherData is {_kind(stated)}: it is not said what was dropped")
            return
        slices = [slice_ for row in self._slices.values() for slice_ in row]
        edges = sum(1 for ends in self._flows.values() if ends["s"])
        for key, found in (
            ("spans", len(slices)),
            ("edges", edges),
            ("wall_ns", _wall(slices)),
        ):
            if stated.get(key) != found:
                self._say(f"otherData says {key} {stated.get(key)!r}; there is {found}")
        dropped = stated.get("dropped_spans")
        if isinstance(dropped, bool) or not isinstance(dropped, int) or dropped < 0:
            self._say(f"otherData says dropped_spans {dropped!r}, not a count")


def _wall(slices: Iterable[tuple[int, int, str]]) -> int:
    starts, ends = [], []
    for start, end, _ in slices:
        starts.append(start)
        ends.append(end)
    return max(ends) - min(starts) if starts else 0
