"""Bindings and options are checked when a run is started, before anything happens."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.backends import BufferBinding, EventHandle, RecordingBackend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    AccyError,
    GraphError,
    InvalidType,
    LaunchArgumentMismatch,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.options import LaunchOptions
from accy_async.graph.plan import LaunchGraphPlan
from accy_async.session import Session, open_session
from tests.graphs.parts import check_empty, diamond

pytestmark = pytest.mark.anyio

U32 = DType.U32


def bound_plan() -> LaunchGraphPlan:
    b = LaunchGraphBuilder()
    x, s, h = b.buffer("x", U32, 4), b.scratch("s", U32, 4), b.host("h", U32, 4)
    b.external_event("go")
    b.copy_in(h, x, wait="go")
    b.copy(x, s)
    return b.build()


def good(session: Session) -> dict[str, object]:
    return {
        "x": session.allocate(4, U32),
        "h": np.zeros(4, np.uint32),
        "go": session.backend.create_event(),
    }


WRONG: dict[str, tuple[str, object, type[AccyError], str]] = {
    "missing": ("x", None, LaunchArgumentMismatch, "'x' is not bound"),
    "missing host": ("h", None, LaunchArgumentMismatch, "'h' is not bound"),
    "missing event": ("go", None, LaunchArgumentMismatch, "'go' is not bound"),
    "unknown": ("y", 1, LaunchArgumentMismatch, "no slot or external event 'y'"),
    "scratch": ("s", 1, LaunchArgumentMismatch, "scratch slot is the run's own"),
    "no buffer": ("x", 1, InvalidType, "bindings"),
    "no array": ("h", [1, 2], InvalidType, "a numpy array"),
    "no event": ("go", 1, LaunchArgumentMismatch, "not bound to an event"),
    "small": ("h", np.zeros(3, np.uint32), LaunchArgumentMismatch, r"shape \(3,\)"),
    "other dtype": ("h", np.zeros(4, np.int32), LaunchArgumentMismatch, "of int32"),
    "other shape": ("h", np.zeros((2, 2), np.uint32), LaunchArgumentMismatch, "shape"),
    "strided": ("h", np.zeros(8, np.uint32)[::2], LaunchArgumentMismatch, "contig"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_bindings_are_checked_before_anything_happens(wrong: str) -> None:
    """Starting raises, naming the slot; there is no run then."""
    name, value, error, words = WRONG[wrong]
    device = RecordingBackend()
    async with open_session(device) as session:
        bindings = good(session)
        if value is None:
            del bindings[name]
        else:
            bindings[name] = value
        with pytest.raises(error, match=words):
            session.start(bound_plan(), bindings)
        assert session.statistics().runs == 0
    check_empty(device)


async def test_buffers_are_checked_for_size_dtype_and_backend() -> None:
    """A DeviceArray knows its dtype, handles only their size and backend."""
    device = RecordingBackend()
    other = RecordingBackend("vulkan")
    async with open_session(device) as session:
        bindings = good(session)
        small = device.allocate_buffer(12)
        foreign = other.allocate_buffer(16)
        cases = {
            "12 bytes": small,
            "backend vulkan": foreign,
            "dtype": session.allocate(4, DType.F32),
        }
        for words, given in cases.items():
            with pytest.raises(LaunchArgumentMismatch, match=words):
                session.start(bound_plan(), {**bindings, "x": given})
        assert isinstance(bindings["go"], EventHandle)
        device.record_event(bindings["go"])
        handle = device.allocate_buffer(16)
        binding = BufferBinding(handle=handle, access="read_write", byte_size=16)
        await session.run(bound_plan(), {**bindings, "x": handle})
        await session.run(bound_plan(), {**bindings, "x": binding})
    other.close()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (LaunchOptions(runtime_scalars=[ScalarArgument.u32(1)]), "1 were given"),
        (LaunchOptions(tuning={"nosuch": 0}), "no node 'nosuch'; it has '"),
    ],
)
async def test_options_are_checked_before_anything_happens(
    options: LaunchOptions, words: str
) -> None:
    """So are scalars that the plan does not take and nodes that it does not have."""
    async with open_session(RecordingBackend()) as session:
        with pytest.raises(LaunchArgumentMismatch, match=words):
            session.start(diamond(), options=options)
        with pytest.raises(InvalidType, match="a LaunchGraphPlan"):
            session.start("diamond")  # type: ignore[arg-type]


async def test_names_that_a_plan_does_not_have_are_told_with_those_it_has() -> None:
    """For a slot that is bound, and for a node of a run."""
    async with open_session(RecordingBackend()) as session:
        bindings = {**good(session), "y": np.zeros(4, np.uint32)}
        has = "no slot or external event 'y'; it has 'x', 's', 'h', 'go'"
        with pytest.raises(LaunchArgumentMismatch, match=has):
            session.start(bound_plan(), bindings)
        run = session.start(diamond())
        names = ", ".join(repr(node.name) for node in diamond().nodes)
        with pytest.raises(GraphError, match=f"no node 'lef'; it has {names}"):
            run["lef"]
        await run
