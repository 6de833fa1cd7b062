"""Runs, nodes and phases as OpenTelemetry spans; needs ``accy-async[otel]``.

An OpenTelemetry span costs some 13 us, several times a launch. So a node's is
made when the node has ended, with the times it had, and may be left out.

Source: opentelemetry.io/docs/specs/otel/trace/api, Span.
"""

from __future__ import annotations

import time
from typing import Protocol, cast

from accy_async.observe.extras import import_extra
from accy_async.observe.trace import PhaseSpan, RunSpan, Span
from accy_async.observe.tracking import SpanTracker

__all__ = ["OpenTelemetryObserver"]

_Value = str | int | bool | tuple[int, ...]


class _Span(Protocol):
    def set_attribute(self, key: str, value: _Value) -> None: ...

    def set_status(self, status: object, description: str | None = None) -> None: ...

    def end(self, end_time: int | None = None) -> None: ...


class _Tracer(Protocol):
    def start_span(
        self,
        name: str,
        context: object = None,
        *,
        attributes: dict[str, _Value] | None = None,
        start_time: int | None = None,
    ) -> _Span: ...


class _TraceApi(Protocol):
    """What is used of the module ``opentelemetry.trace``."""

    def get_tracer(self, name: str) -> _Tracer: ...

    def set_span_in_context(self, span: _Span) -> object: ...

    def Status(self, code: object, description: str | None = None) -> object: ...  # noqa: N802 - theirs

    @property
    def StatusCode(self) -> _Codes: ...  # noqa: N802 - theirs


class _Codes(Protocol):
    ERROR: object


class OpenTelemetryObserver(SpanTracker):
    """A span for each run, with one for each node below it, and for each phase.

    A run's span is a child of the span that is current where the run starts.
    Attributes are named ``accy.`` and as in `accy_async.observe.logs`. A failed
    one has the status ERROR; a cancelled or skipped one has not: it was asked
    for.
    """

    def __init__(self, *, tracer: object | None = None, nodes: bool = True) -> None:
        """Report to a tracer.

        Args:
            tracer: an ``opentelemetry.trace.Tracer``; the global provider's if
                left out.
            nodes: False for runs and phases alone.

        Raises:
            RuntimeUnavailable: OpenTelemetry is not installed.
        """
        # Their clock is the wall's, ours counts from anywhere.
        super().__init__(origin_ns=time.perf_counter_ns() - time.time_ns())
        api = import_extra(
            "opentelemetry.trace", extra="otel", user="OpenTelemetryObserver"
        )
        self._api = cast(_TraceApi, api)
        self._tracer = (
            self._api.get_tracer("accy_async")
            if tracer is None
            else cast(_Tracer, tracer)
        )
        self._with_nodes = nodes
        self._begun: dict[tuple[str, int], _Span] = {}
        self._contexts: dict[int, object] = {}

    def _on_run_started(self, run: RunSpan) -> None:
        span = self._tracer.start_span(
            run.name,
            attributes={"accy.run": run.run_id, "accy.nodes": run.node_count},
            start_time=run.started_ns,
        )
        self._begun["run", run.run_id] = span
        self._contexts[run.run_id] = self._api.set_span_in_context(span)

    def _on_run_ended(self, run: RunSpan, error: BaseException | None) -> None:
        self._contexts.pop(run.run_id, None)
        self._report(self._begun.pop(("run", run.run_id), None), run)

    def _on_phase_started(self, phase: PhaseSpan) -> None:
        self._begun["phase", phase.phase_id] = self._tracer.start_span(
            phase.name,
            attributes={"accy.detail": phase.detail},
            start_time=phase.started_ns,
        )

    def _on_phase_ended(self, phase: PhaseSpan, error: BaseException | None) -> None:
        self._report(self._begun.pop(("phase", phase.phase_id), None), phase)

    def _on_node_ended(self, span: Span, error: BaseException | None) -> None:
        if not self._with_nodes:
            return
        attributes: dict[str, _Value] = {
            "accy.run": span.run_id,
            "accy.node": span.node_id,
            "accy.kind": span.kind,
            "accy.stream": span.stream_id,
        }
        if span.byte_count:
            attributes["accy.bytes"] = span.byte_count
        if span.grid is not None:
            attributes["accy.grid"] = span.grid
        if span.threadgroup is not None:
            attributes["accy.threadgroup"] = span.threadgroup
        made = self._tracer.start_span(
            span.name,
            self._contexts.get(span.run_id),
            attributes=attributes,
            start_time=span.start_ns,
        )
        self._report(made, span)

    def _report(self, made: _Span | None, span: Span | RunSpan | PhaseSpan) -> None:
        if made is None:
            return
        made.set_attribute("accy.state", span.state)
        if span.error is not None:
            made.set_attribute("accy.error", span.error)
        if span.state == "failed":
            made.set_status(self._api.Status(self._api.StatusCode.ERROR, span.error))
        made.end(span.finished_ns)
