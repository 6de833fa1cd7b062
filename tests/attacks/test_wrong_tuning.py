"""What is no kernel, no bindings, no records: refused by name where one tunes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from accy_async.backends import BufferBinding, RecordingBackend
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    InvalidType,
    LaunchArgumentMismatch,
)
from accy_async.fragment import LoadedFragment, load_fragment
from accy_async.session import open_session
from tests.fragment.plans import ADD, CHAIN

pytestmark = pytest.mark.anyio

ONES = np.ones(8, np.float32)
CALLS: dict[str, tuple[type[AccyError], Callable[[Any, Any], object]]] = {
    "record": (InvalidArtifact, lambda f, _: f.launch_tuning_record(0.5)),
    "key": (InvalidArtifact, lambda f, _: f.launch_tuning_key("0")),
    "scalars of": (InvalidArtifact, lambda f, _: f.scalars_for_kernel(None)),
    "scalars": (InvalidType, lambda f, _: f.scalars_for_kernel(0, 3)),
    "preferred": (
        LaunchArgumentMismatch,
        lambda f, _: f.prefer_launch_candidate(0, "1"),
    ),
    "records": (InvalidType, lambda f, _: f.record_launch_candidate_records(None)),
    "cache": (InvalidType, lambda f, _: f.learn_launch_tuning(b"")),
    "no bindings": (InvalidType, lambda f, _: f.submit_invocation([ONES])),
    "bindings": (
        InvalidType,
        lambda f, _: f.measure_invocation_launch_candidates(0, ONES),
    ),
    "options": (
        InvalidType,
        lambda f, b: f.measure_invocation_launch_candidates(0, b, 3),
    ),
    "arguments": (InvalidType, lambda f, _: f.invoke(3)),
    "runtime": (InvalidType, lambda f, _: f.invoke([ONES], runtime_scalars=3)),
    "inputs": (InvalidType, lambda f, _: f.prepare_invocation_bindings(3)),
}


@pytest.mark.parametrize("call", CALLS)
async def test_wrong_arguments_are_refused_by_name(call: str) -> None:
    kind, make = CALLS[call]
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, CHAIN) as fragment,
        await fragment.prepare_invocation_bindings([ONES]) as bindings,
    ):
        before = backend.launch_count
        with pytest.raises(kind):
            await make(fragment, bindings)  # type: ignore[misc]
        assert backend.launch_count == before


@pytest.mark.parametrize(
    "given",
    [{"inputs": 3}, {"options": "fast"}, {"exclusive": "no"}],
    ids=lambda given: next(iter(given)),
)
async def test_tuning_begins_with_nothing_wrong(given: dict[str, Any]) -> None:
    async with open_session(RecordingBackend()) as session:
        fragment = await session.load_fragment(ADD, tuning=None)
        with pytest.raises(InvalidType, match=f"tuning.{next(iter(given))}"):
            async with session.tuning(fragment, store=None, **given):
                pytest.fail("it began")


async def test_a_kernel_gets_no_buffers_that_it_would_reach_beyond() -> None:
    """Those of another fragment, and smaller ones of the caller's."""
    backend = RecordingBackend()

    async def opened(plan: Any) -> LoadedFragment:
        return await load_fragment(backend, plan)

    async with (
        await opened(CHAIN) as fragment,
        await opened(ADD) as other,
        await other.prepare_invocation_bindings([ONES, ONES]) as bindings,
        await fragment.prepare_invocation_bindings([ONES]) as own,
    ):
        with pytest.raises(LaunchArgumentMismatch, match="of another fragment than"):
            await fragment.measure_invocation_launch_candidates(0, bindings)
        small = backend.allocate_buffer(4)
        first, *rest = own.buffers_for_kernel(0)
        wrong = [BufferBinding(handle=small, access=first.access), *rest]
        scalars = fragment.scalars_for_kernel(0)
        with pytest.raises(LaunchArgumentMismatch, match="buffer 0 has 4 bytes, it ta"):
            fragment.launch_kernel_with_arguments(0, wrong, scalars)
        assert backend.launch_count == 0
        backend.destroy(small)
