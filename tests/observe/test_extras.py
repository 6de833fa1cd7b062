"""What only an extra installs: OpenTelemetry and NVTX, there or not."""

from __future__ import annotations

import importlib
import time
from types import ModuleType
from typing import Any

import pytest

from accy_async.errors import RuntimeUnavailable
from accy_async.observe import NvtxObserver, Observer, OpenTelemetryObserver
from accy_async.observe import extras as extras_module
from tests.observe.samples import tell_everything


@pytest.mark.parametrize(
    ("observer", "package", "extra"),
    [
        (OpenTelemetryObserver, "opentelemetry", "otel"),
        (NvtxObserver, "nvtx", "nvtx"),
    ],
)
def test_missing_extra_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
    observer: type[Observer],
    package: str,
    extra: str,
) -> None:
    def absent(name: str) -> ModuleType:
        raise ModuleNotFoundError(f"No module named {package!r}", name=package)

    monkeypatch.setattr(extras_module, "import_module", absent)
    with pytest.raises(RuntimeUnavailable) as caught:
        observer()
    assert str(caught.value) == (
        f"{observer.__name__} needs the package {package}, which is not installed: "
        f'pip install "accy-async[{extra}]"'
    )


# ---------------------------------------------------------------- OpenTelemetry


class Exporter:
    """Keeps what the SDK finishes, where the SDK is installed."""

    def __init__(self) -> None:
        sdk = pytest.importorskip("opentelemetry.sdk.trace")
        export = importlib.import_module("opentelemetry.sdk.trace.export")
        memory = importlib.import_module(
            "opentelemetry.sdk.trace.export.in_memory_span_exporter"
        )
        self.kept = memory.InMemorySpanExporter()
        self.provider = sdk.TracerProvider()
        self.provider.add_span_processor(export.SimpleSpanProcessor(self.kept))
        self.tracer = self.provider.get_tracer("test")

    def spans(self) -> dict[str, Any]:
        return {span.name: span for span in self.kept.get_finished_spans()}


@pytest.fixture
def exporter() -> Exporter:
    return Exporter()


def test_otel_spans_nest_and_keep_their_times(exporter: Exporter) -> None:
    """A span for each node below its run's, with the times the device had."""
    tell_everything(OpenTelemetryObserver(tracer=exporter.tracer))
    spans = exporter.spans()
    assert list(spans) == ["compile", "load", "scan", "store", "plan"]
    run = spans["plan"]
    for name in ("load", "scan", "store"):
        assert spans[name].parent.span_id == run.context.span_id
    assert spans["load"].end_time - spans["load"].start_time == 1_000
    assert run.end_time - run.start_time == 6_000
    assert dict(spans["scan"].attributes) == {
        "accy.run": 1,
        "accy.node": 1,
        "accy.kind": "kernel",
        "accy.stream": 2,
        "accy.bytes": 128,
        "accy.grid": (4, 1, 1),
        "accy.threadgroup": (32, 1, 1),
        "accy.state": "failed",
        "accy.error": "RuntimeError: bad",
    }


def test_otel_status_is_error_only_for_failures(exporter: Exporter) -> None:
    tell_everything(OpenTelemetryObserver(tracer=exporter.tracer))
    status = {name: span.status for name, span in exporter.spans().items()}
    assert {n for n, s in status.items() if s.status_code.name == "ERROR"} == {
        "scan",
        "plan",
    }
    assert status["scan"].description == "RuntimeError: bad"


def test_otel_times_are_of_the_wall_clock(exporter: Exporter) -> None:
    before = time.time_ns()
    observer = OpenTelemetryObserver(tracer=exporter.tracer)
    observer.run_started(1, "plan", 0, 0)
    observer.run_finished(1, 0, "ok", None)
    span = exporter.spans()["plan"]
    slack = 100_000_000  # the wall's clock may be set meanwhile
    assert before - slack <= span.start_time <= span.end_time
    assert span.end_time <= time.time_ns() + slack


def test_otel_run_is_below_the_current_span(exporter: Exporter) -> None:
    with exporter.tracer.start_as_current_span("request"):
        tell_everything(OpenTelemetryObserver(tracer=exporter.tracer, nodes=False))
    spans = exporter.spans()
    assert list(spans) == ["compile", "plan", "request"]
    assert spans["plan"].parent.span_id == spans["request"].context.span_id


def test_otel_ends_what_is_open(exporter: Exporter) -> None:
    """A span that is never ended is never exported: closing ends them."""
    observer = OpenTelemetryObserver(tracer=exporter.tracer)
    observer.run_started(1, "plan", 1, 0)
    observer.phase_started(2, "load", "", 0)
    observer.node_submitted(1, 0, "n", "kernel", 1, 0)
    observer.close()
    assert sorted(exporter.spans()) == ["load", "n", "plan"]
    states = {s.attributes["accy.state"] for s in exporter.spans().values()}
    assert states == {"cancelled"}


def test_otel_without_a_provider_does_nothing() -> None:
    """The API alone, without an SDK, is enough, and costs little."""
    pytest.importorskip("opentelemetry.trace")
    tell_everything(OpenTelemetryObserver())


# ---------------------------------------------------------------- NVTX


class Ranges(ModuleType):
    """A stand-in for nvtx that keeps which ranges are open."""

    def __init__(self) -> None:
        super().__init__("nvtx")
        self.begun: list[tuple[str, str, str]] = []
        self.open: set[int] = set()

    def start_range(self, *, message: str, domain: str, category: str) -> int:
        self.begun.append((message, domain, category))
        self.open.add(len(self.begun))
        return len(self.begun)

    def end_range(self, range_id: int) -> None:
        self.open.remove(range_id)


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    fake = Ranges()
    monkeypatch.setattr(extras_module, "import_module", lambda name: fake)
    return fake


def test_nvtx_ranges_end_once_each(ranges: Ranges) -> None:
    tell_everything(NvtxObserver())
    assert ranges.begun == [
        ("compile scan", "accy_async", "phase"),
        ("plan", "accy_async", "run"),
        ("load", "accy_async", "copy"),
        ("scan", "accy_async", "kernel"),
    ]
    assert ranges.open == set()


def test_nvtx_run_ends_its_nodes(ranges: Ranges) -> None:
    observer = NvtxObserver()
    observer.run_started(1, "plan", 1, 0)
    observer.node_submitted(1, 0, "n", "kernel", 1, 0)
    observer.node_finished(1, 7, 0, "ok", None)
    observer.run_finished(1, 0, "cancelled", None)
    observer.node_finished(1, 0, 0, "ok", None)
    assert ranges.open == set()


def test_nvtx_may_leave_nodes_out(ranges: Ranges) -> None:
    tell_everything(NvtxObserver(nodes=False))
    assert [category for *_, category in ranges.begun] == ["phase", "run"]


def test_nvtx_itself_takes_the_calls() -> None:
    pytest.importorskip("nvtx")
    tell_everything(NvtxObserver())
