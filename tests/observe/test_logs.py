"""Log records: levels that fit, fields that a machine can read."""

from __future__ import annotations

import logging

import pytest

from accy_async.observe import LogObserver
from tests.observe.samples import tell_everything

LOGGER = "accy_async.runs"


def told(caplog: pytest.LogCaptureFixture, level: int) -> list[logging.LogRecord]:
    with caplog.at_level(level, LOGGER):
        tell_everything(LogObserver())
    return caplog.records


def fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in vars(record).items() if key[:5] == "accy_"}


def test_records_carry_structured_fields(caplog: pytest.LogCaptureFixture) -> None:
    records = told(caplog, logging.DEBUG)
    assert [(r.levelname, fields(r)["accy_event"]) for r in records] == [
        ("DEBUG", "phase_finished"),
        ("INFO", "run_started"),
        ("DEBUG", "node_submitted"),
        ("DEBUG", "node_finished"),
        ("DEBUG", "node_submitted"),
        ("ERROR", "node_finished"),
        ("DEBUG", "node_finished"),
        ("ERROR", "run_finished"),
    ]
    assert fields(records[5]) == {
        "accy_event": "node_finished",
        "accy_run": 1,
        "accy_node": 1,
        "accy_name": "scan",
        "accy_kind": "kernel",
        "accy_stream": 2,
        "accy_state": "failed",
        "accy_duration_ns": 2_000,
        "accy_bytes": 128,
        "accy_error": "RuntimeError: bad",
    }
    assert fields(records[7]) == {
        "accy_event": "run_finished",
        "accy_run": 1,
        "accy_plan": "plan",
        "accy_nodes": 3,
        "accy_state": "failed",
        "accy_duration_ns": 6_000,
        "accy_error": "RuntimeError: bad",
    }
    assert fields(records[0])["accy_phase"] == "compile"
    assert fields(records[0])["accy_detail"] == "scan"


def test_messages_read_well(caplog: pytest.LogCaptureFixture) -> None:
    assert [record.getMessage() for record in told(caplog, logging.DEBUG)] == [
        "compile scan: ok after 0.001 ms",
        "run 1 of plan: 3 nodes",
        "run 1: copy load submitted to stream 1",
        "run 1: copy load: ok after 0.001 ms",
        "run 1: kernel scan submitted to stream 2",
        "run 1: kernel scan: failed after 0.002 ms: RuntimeError: bad",
        "run 1: copy store: skipped after 0.000 ms: RuntimeError: bad",
        "run 1 of plan: failed after 0.006 ms: RuntimeError: bad",
    ]


def test_only_what_matters_is_logged_by_default(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """At WARNING: the node that failed, with its traceback, and its run."""
    failed, run = told(caplog, logging.WARNING)
    assert failed.exc_info is not None
    assert isinstance(failed.exc_info[1], RuntimeError)
    assert run.exc_info is None


@pytest.mark.parametrize(
    ("state", "level"), [("ok", "INFO"), ("cancelled", "WARNING"), ("failed", "ERROR")]
)
def test_level_follows_how_a_run_ended(
    caplog: pytest.LogCaptureFixture, state: str, level: str
) -> None:
    observer = LogObserver()
    with caplog.at_level(logging.DEBUG, LOGGER):
        observer.run_started(1, "p", 0, 1)
        observer.run_finished(1, 2, state, None)  # type: ignore[arg-type]
    assert caplog.records[-1].levelname == level


def test_failed_phase_is_an_error(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver()
    with caplog.at_level(logging.INFO, LOGGER):
        observer.phase_started(1, "compile", "scan", 1)
        observer.phase_finished(1, 2, "failed", ValueError("no"))
    (record,) = caplog.records
    assert record.levelname == "ERROR"
    assert record.getMessage().endswith("ValueError: no")


def test_own_logger_is_used(caplog: pytest.LogCaptureFixture) -> None:
    observer = LogObserver(logging.getLogger("mine"))
    with caplog.at_level(logging.INFO, "mine"):
        observer.run_started(1, "p", 0, 1)
    assert [record.name for record in caplog.records] == ["mine"]
