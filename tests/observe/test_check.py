"""validate_trace finds each fault that can be planted in a sound trace."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from accy_async.observe import encode_trace, validate_trace
from tests.observe.samples import cancelled_run, diamond

Document = dict[str, Any]


def sound() -> Document:
    document: Document = json.loads(encode_trace(diamond()))
    return document


def pick(document: Document, phase: str, index: int = 0) -> dict[str, Any]:
    found = [event for event in document["traceEvents"] if event["ph"] == phase]
    event: dict[str, Any] = found[index]
    return event


def test_sound_trace_has_no_problems() -> None:
    """As bytes, as text, and decoded by anyone's JSON reader."""
    for trace in (diamond(), cancelled_run()[0]):
        data = encode_trace(trace)
        for given in (data, data.decode(), json.loads(data)):
            assert validate_trace(given) == []


def set_(phase: str, key: str, value: object) -> Callable[[Document], None]:
    return lambda document: pick(document, phase).__setitem__(key, value)


def drop(phase: str, index: int = 0) -> Callable[[Document], None]:
    return lambda document: document["traceEvents"].remove(pick(document, phase, index))


def add(**event: object) -> Callable[[Document], None]:
    return lambda document: document["traceEvents"].append(event)


def state(value: object) -> Callable[[Document], None]:
    return lambda document: pick(document, "X")["args"].__setitem__("state", value)


def says(key: str, value: object) -> Callable[[Document], None]:
    return lambda document: document["otherData"].__setitem__(key, value)


def unnamed(document: Document) -> None:
    document["traceEvents"] = [
        event for event in document["traceEvents"] if event["ph"] != "M"
    ]


def overlapped(document: Document) -> None:
    pick(document, "X", 0)["dur"] = 1.5


FAULTS: dict[str, tuple[Callable[[Document], None], str]] = {
    "ts zero": (set_("X", "ts", 0), "has ts 0, not a time above 0"),
    "ts below zero": (set_("X", "ts", -1.0), "has ts -1.0"),
    "ts missing": (lambda d: pick(d, "X").pop("ts"), "has ts None"),
    "ts text": (set_("X", "ts", "12"), "has ts '12'"),
    "ts true": (set_("X", "ts", True), "has ts True"),
    "ts not finite": (set_("X", "ts", float("inf")), "has ts inf"),
    "dur below zero": (set_("X", "dur", -0.001), "has dur -0.001"),
    "dur missing": (lambda d: pick(d, "X").pop("dur"), "has dur None"),
    "state unknown": (state("running"), "has state 'running'"),
    "state missing": (set_("X", "args", {}), "has state None"),
    "args missing": (lambda d: pick(d, "X").pop("args"), "has state None"),
    "overlap": (overlapped, "'split' and 'left' overlap on track 10 by 500 ns"),
    "track unnamed": (unnamed, "track 10 of process 1 has no thread_name"),
    "flow without end": (drop("f"), "edge 1 has 1 beginnings and 0 ends"),
    "flow without beginning": (drop("s"), "edge 1 has 0 beginnings and 1 ends"),
    "flow twice": (set_("s", "id", 2), "edge 2 has 2 beginnings and 1 ends"),
    "flow backwards": (set_("s", "ts", 1.5), "edge 1 arrives 490 ns before it leaves"),
    "flow from nowhere": (set_("s", "tid", 99), "edge 1 leaves no slice of track 99"),
    "flow to nowhere": (set_("f", "ts", 99.0), "edge 1 reaches no slice of track"),
    "run never ends": (drop("e"), "begins and never ends"),
    "run never began": (drop("b"), "ends and never began"),
    "begin without end": (
        add(ph="B", name="x", pid=1, tid=10, ts=1.0),
        "track 1 10 begins and never ends",
    ),
    "slice lost": (drop("X", 3), "otherData says spans 4; there is 3"),
    "edges miscounted": (says("edges", 3), "otherData says edges 3; there is 4"),
    "wall by start order": (says("wall_ns", 4000), "says wall_ns 4000; there is 4010"),
    "drops not stated": (
        lambda d: d["otherData"].pop("dropped_spans"),
        "says dropped_spans None, not a count",
    ),
    "drops below zero": (says("dropped_spans", -1), "says dropped_spans -1"),
    "nothing stated": (lambda d: d.pop("otherData"), "not said what was dropped"),
    "phase unknown": (set_("X", "ph", "?"), "has ph '?'"),
    "phase missing": (lambda d: pick(d, "X").pop("ph"), "has ph None"),
    "phase of two": (set_("X", "ph", "sf"), "has ph 'sf'"),
    "name missing": (lambda d: pick(d, "X").pop("name"), "has no name"),
    "tid text": (set_("X", "tid", "1"), "has tid '1', not a number"),
    "pid missing": (lambda d: pick(d, "s").pop("pid"), "has pid None, not a number"),
    "event is none": (lambda d: d["traceEvents"].append(None), "is missing, not an"),
    "events are none": (lambda d: d.pop("traceEvents"), "traceEvents is missing"),
    "events are text": (
        lambda d: d.__setitem__("traceEvents", "x"),
        "traceEvents is of type str, not a list",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_planted_fault_is_found(fault: str) -> None:
    """Each fault is named, from the document and from its text."""
    plant, expected = FAULTS[fault]
    document = sound()
    before = copy.deepcopy(document)
    plant(document)
    problems = validate_trace(document)
    assert any(expected in problem for problem in problems), problems
    assert document != before
    if fault != "ts not finite":  # JSON has no infinity
        assert validate_trace(json.dumps(document).encode()) == problems


def test_every_fault_is_named_not_only_the_first() -> None:
    document = sound()
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            event["ts"] = 0
    problems = validate_trace(document)
    assert sum("not a time above 0" in problem for problem in problems) == 4


@pytest.mark.parametrize("given", [None, 3, [], "", b"\xff", "[1,", "nul"])
def test_what_is_no_document_is_one_problem(given: object) -> None:
    assert len(validate_trace(given)) == 1
