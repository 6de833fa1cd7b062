"""The protocol: nothing for nothing, and clocks that agree."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.errors import InvalidType, InvalidValue
from accy_async.observe import ClockAlignment, Observer, new_id, phase, state_of
from tests.observe.samples import EVENTS, Log, tell_everything

HOST_TIMES = st.integers(0, 2**60)


def test_protocol_loads_no_exporter() -> None:
    """Who only tells what happens loads the protocol, and nothing that listens."""
    program = (
        "import accy_async.observe.protocol, json, sys;"
        "print(json.dumps(list(sys.modules)))"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    loaded = set(json.loads(result.stdout))
    parts = {name for name in loaded if name.startswith("accy_async.observe")}
    assert parts == {"accy_async.observe", "accy_async.observe.protocol"}
    assert loaded.isdisjoint({"msgspec", "rich", "opentelemetry", "nvtx"})


def test_nothing_is_made_without_an_observer() -> None:
    """An unobserved phase is one shared object; its block behaves as none."""
    assert phase(None, "compile") is phase(None, "load")
    with pytest.raises(ZeroDivisionError), phase(None, "compile"):
        _ = 1 / 0


def test_base_observer_does_nothing() -> None:
    """A new observer overrides what it wants; the rest has no effect, and no dict."""
    observer = Observer()
    tell_everything(observer)
    assert not hasattr(observer, "__dict__")
    log = Log()
    tell_everything(log)
    assert set(log.names()) == set(EVENTS)


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (None, "ok"),
        (ValueError(), "failed"),
        (KeyboardInterrupt(), "cancelled"),
        (BaseExceptionGroup("", [KeyboardInterrupt()]), "cancelled"),
        (BaseExceptionGroup("", [KeyboardInterrupt(), ValueError()]), "failed"),
        (ExceptionGroup("", [ValueError()]), "failed"),
    ],
)
def test_state_follows_from_what_was_raised(
    error: BaseException | None, state: str
) -> None:
    assert state_of(error) == state


def test_phase_tells_its_begin_and_end() -> None:
    """However the block is left, its end is told, with why."""
    log = Log()
    with phase(log, "compile", "scan"):
        pass
    with pytest.raises(ValueError, match="bad"), phase(log, "load"):
        raise ValueError("bad")
    (begin, (first, *said)), (end, (last, *ended)) = log.events[:2]
    assert (begin, said[:2]) == ("phase_started", ["compile", "scan"])
    assert (end, first, ended[1:]) == ("phase_finished", last, ["ok", None])
    assert log.events[3][1][2] == "failed"
    assert log.events[2][1][0] != first


@pytest.mark.anyio
async def test_cancelled_phase_is_cancelled() -> None:
    """A cancellation inside a phase is no failure of it, on either loop."""
    import anyio

    log = Log()
    with anyio.move_on_after(0), phase(log, "upload"):
        await anyio.sleep_forever()
    assert log.events[-1][1][2] == "cancelled"


def test_ids_are_unique() -> None:
    ids = {new_id() for _ in range(100)}
    assert len(ids) == 100
    assert min(ids) > 0


@given(device=HOST_TIMES, host=HOST_TIMES, passed=st.integers(-(2**60), 2**60))
def test_alignment_is_exact_at_any_offset(device: int, host: int, passed: int) -> None:
    """What lies a nanosecond apart on the device does so on the host."""
    alignment = ClockAlignment(device_ns=device, host_ns=host)
    assert alignment.to_host_ns(device + passed) == host + passed


def test_alignment_follows_drift() -> None:
    """Two readings ten days apart give the rate, to the nanosecond."""
    day = 86_400 * 10**9
    first = ClockAlignment(device_ns=50, host_ns=1_000, uncertainty_ns=3)
    second = ClockAlignment(
        device_ns=50 + 10 * day, host_ns=1_000 + 10 * day + 10 * 86_400 * 20_000
    )
    both = ClockAlignment.between(first, second)
    assert both.to_host_ns(50) == 1_000
    assert both.to_host_ns(second.device_ns) == second.host_ns
    assert both.to_host_ns(50 + 5 * day) == 1_000 + 5 * day + 5 * 86_400 * 20_000
    assert both.uncertainty_ns == 3
    assert ClockAlignment.between(first, first) == first


def test_alignment_keeps_the_tightest_reading() -> None:
    """The pair whose host readings lie closest together is the one to believe."""
    host = iter([0, 100, 200, 210, 300, 400])
    device = iter([5_000, 5_155, 5_300])
    alignment = ClockAlignment.measure(
        lambda: next(device), samples=3, host_clock=lambda: next(host)
    )
    assert alignment == ClockAlignment(device_ns=5_155, host_ns=205, uncertainty_ns=5)


def test_alignment_refuses_what_is_no_time() -> None:
    with pytest.raises(InvalidType, match=r"ClockAlignment\.device_ns"):
        ClockAlignment(device_ns=1.5, host_ns=0)  # type: ignore[arg-type]
    with pytest.raises(InvalidValue, match=r"ClockAlignment\.uncertainty_ns"):
        ClockAlignment(device_ns=1, host_ns=0, uncertainty_ns=-1)
