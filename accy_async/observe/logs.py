"""Runs and nodes as log records with structured fields.

Every record has fields named ``accy_...`` (``extra`` of `logging`), for a
formatter that writes JSON: ``accy_event`` always, and of the others what applies:
``accy_run``, ``accy_plan``, ``accy_nodes``, ``accy_node``, ``accy_name``,
``accy_kind``, ``accy_stream``, ``accy_bytes``, ``accy_phase``, ``accy_detail``,
``accy_state``, ``accy_duration_ns``, ``accy_error``.

Levels: a run that began or ended well is INFO, one that was cancelled WARNING,
one that failed ERROR; a failed node ERROR, with its traceback; every other node
and phase DEBUG, and a failed phase ERROR.
"""

from __future__ import annotations

import logging

from accy_async.observe.protocol import State
from accy_async.observe.trace import PhaseSpan, RunSpan, Span, stream_name
from accy_async.observe.tracking import SpanTracker

__all__ = ["LOGGER_NAME", "LogObserver"]

LOGGER_NAME = "accy_async.runs"
_RUN_LEVELS: dict[State, int] = {
    "ok": logging.INFO,
    "failed": logging.ERROR,
    "cancelled": logging.WARNING,
    "skipped": logging.WARNING,
}


class LogObserver(SpanTracker):
    """Logs what happens.

    A level that the logger has switched off costs a look at it, no record.
    """

    def __init__(self, logger: logging.Logger | None = None) -> None:
        """Log to a logger; ``accy_async.runs`` if left out."""
        super().__init__()
        self._logger = logging.getLogger(LOGGER_NAME) if logger is None else logger

    def _on_run_started(self, run: RunSpan) -> None:
        if self._logger.isEnabledFor(logging.INFO):
            self._logger.info(
                "run %d of %s: %d nodes",
                run.run_id,
                run.name,
                run.node_count,
                extra={
                    "accy_event": "run_started",
                    "accy_run": run.run_id,
                    "accy_plan": run.name,
                    "accy_nodes": run.node_count,
                },
            )

    def _on_run_ended(self, run: RunSpan, error: BaseException | None) -> None:
        level = _RUN_LEVELS[run.state]
        if self._logger.isEnabledFor(level):
            duration = run.finished_ns - run.started_ns
            self._logger.log(
                level,
                "run %d of %s: %s after %.3f ms%s",
                run.run_id,
                run.name,
                run.state,
                duration / 1e6,
                _because(run.error),
                extra={
                    "accy_event": "run_finished",
                    "accy_run": run.run_id,
                    "accy_plan": run.name,
                    "accy_nodes": run.node_count,
                    "accy_state": run.state,
                    "accy_duration_ns": duration,
                    "accy_error": run.error,
                },
            )

    def _on_node_submitted(self, span: Span) -> None:
        if self._logger.isEnabledFor(logging.DEBUG):
            self._logger.debug(
                "run %d: %s %s submitted to %s",
                span.run_id,
                span.kind,
                span.name,
                stream_name(span.stream_id),
                extra=_node_fields("node_submitted", span),
            )

    def _on_node_ended(self, span: Span, error: BaseException | None) -> None:
        level = logging.ERROR if span.state == "failed" else logging.DEBUG
        if self._logger.isEnabledFor(level):
            self._logger.log(
                level,
                "run %d: %s %s: %s after %.3f ms%s",
                span.run_id,
                span.kind,
                span.name,
                span.state,
                span.duration_ns / 1e6,
                _because(span.error),
                extra={
                    **_node_fields("node_finished", span),
                    "accy_state": span.state,
                    "accy_duration_ns": span.duration_ns,
                    "accy_bytes": span.byte_count,
                    "accy_error": span.error,
                },
                exc_info=error if span.state == "failed" else None,
            )

    def _on_phase_ended(self, phase: PhaseSpan, error: BaseException | None) -> None:
        level = logging.ERROR if phase.state == "failed" else logging.DEBUG
        if self._logger.isEnabledFor(level):
            duration = phase.finished_ns - phase.started_ns
            self._logger.log(
                level,
                "%s %s: %s after %.3f ms%s",
                phase.name,
                phase.detail,
                phase.state,
                duration / 1e6,
                _because(phase.error),
                extra={
                    "accy_event": "phase_finished",
                    "accy_phase": phase.name,
                    "accy_detail": phase.detail,
                    "accy_state": phase.state,
                    "accy_duration_ns": duration,
                    "accy_error": phase.error,
                },
            )


def _node_fields(event: str, span: Span) -> dict[str, object]:
    return {
        "accy_event": event,
        "accy_run": span.run_id,
        "accy_node": span.node_id,
        "accy_name": span.name,
        "accy_kind": span.kind,
        "accy_stream": span.stream_id,
    }


def _because(error: str | None) -> str:
    return "" if error is None else f": {error}"
