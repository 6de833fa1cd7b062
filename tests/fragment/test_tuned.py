"""Launch tuning records of a loaded fragment: what they change, and when."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import pytest

from accy_async import open_session
from accy_async.artifact import DerivedLaunch, Fixed, RuntimeCeilDiv, ScalarArgument
from accy_async.backends import RecordingBackend
from accy_async.errors import InvalidType, LaunchArgumentMismatch, SessionClosed
from accy_async.fragment import (
    FragmentCompilerOptions,
    LaunchTuning,
    LaunchTuningSelection,
    LoadedFragment,
    load_fragment,
)
from accy_async.graph import LaunchOptions
from accy_async.tuning import (
    LaunchCandidateBenchmarkOptions,
    LaunchCandidateMeasurement,
    LaunchCandidateRecord,
    launch_candidate_record,
)
from tests.fragment.plans import ADD, CHAIN, SCALED, add_of

pytestmark = pytest.mark.anyio

ONES = np.ones(8, np.float32)
FIRST, SECOND = (32, 1, 1), (4, 1, 1)
ONCE = LaunchCandidateBenchmarkOptions(warmup=0, samples=1)
u32 = ScalarArgument.u32


def won(
    fragment: LoadedFragment, index: int = 0, candidate: int = 1
) -> LaunchCandidateRecord:
    """A record that a kernel's candidate was the fastest."""
    kernel = fragment.planned_kernel(index)
    return launch_candidate_record(
        kernel,
        kernel.launch_resources.candidate(candidate),
        LaunchCandidateMeasurement(
            kernel_id=index, candidate_index=candidate, median_ns=10
        ),
    )


def threads(backend: RecordingBackend) -> list[tuple[int, int, int]]:
    """The threadgroups of all launches."""
    return [launch.threadgroup for launch in backend.launches]


async def test_an_invocation_in_flight_keeps_what_it_began_with() -> None:
    """One that begins after a record came launches what that says.

    Two of the kernels are the same, so that the record of one is the other's too.
    """
    backend = RecordingBackend()
    async with await load_fragment(backend, CHAIN) as fragment:
        await fragment(ONES)
        backend.hold_all()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(fragment, ONES)
            with anyio.fail_after(60):
                while backend.launch_count < 8:
                    await anyio.lowlevel.checkpoint()
            fragment.record_launch_candidate_records([won(fragment, 2)])
            tasks.start_soon(fragment, ONES)
            with anyio.fail_after(60):
                while backend.launch_count < 12:
                    await anyio.lowlevel.checkpoint()
            backend.release_all()
        for _ in range(3):  # on both lanes, and as a graph of the device
            await fragment(ONES)
    assert threads(backend)[:8] == [FIRST] * 8
    assert threads(backend)[8:] == [FIRST, SECOND, SECOND, FIRST] * 4
    assert not any(backend.live_objects().values())


async def test_graphs_with_scalars_and_graphs_of_before_are_made_anew() -> None:
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, SCALED) as fragment,
        await fragment.prepare_invocation_bindings([ONES, ONES]) as bindings,
    ):
        before = fragment.graph
        fragment.submit_invocation(bindings, runtime_scalars=[u32(3)])
        fragment.record_launch_candidate_records([won(fragment)])
        assert fragment.graph is not before
        fragment.submit_invocation(bindings, runtime_scalars=[u32(3)])
        fragment.submit_invocation(bindings, LaunchOptions(runtime_scalars=(u32(3),)))
        fragment.submit_invocation_with_graph(
            bindings, before, LaunchOptions(runtime_scalars=(u32(3),))
        )
        await fragment.complete_invocation()
        now = fragment.graph
        fragment.record_launch_candidate_records([won(fragment)])
        assert fragment.graph is now  # nothing new
        assert fragment.forget_launch_tuning(0)
        assert not fragment.forget_launch_tuning(0)
        assert fragment.graph.nodes[0].tuning_candidate is None
    assert threads(backend) == [FIRST, SECOND, SECOND, FIRST]


async def test_what_the_caller_names_overrides_the_record_of_that_kernel() -> None:
    """The other kernels keep theirs."""
    async with await load_fragment(RecordingBackend(), CHAIN) as fragment:
        records = [won(fragment, index) for index in range(4)]
        fragment.record_launch_candidate_records(records)
        explicit = LaunchTuning(
            selections=[LaunchTuningSelection(kernel_id=1, candidate_index=0)]
        )
        graph = fragment.create_launch_graph_plan(tuning=explicit)
        assert [node.tuning_candidate for node in graph.nodes] == [1, 0, 1, 1]


async def test_scalars_are_measured_with_what_the_run_would_bring() -> None:
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, SCALED) as fragment,
        await fragment.prepare_invocation_bindings([ONES, ONES]) as bindings,
    ):
        with pytest.raises(LaunchArgumentMismatch, match="takes 1"):
            await fragment.measure_invocation_launch_candidates(0, bindings, ONCE)
        options = attrs.evolve(
            ONCE, base_options=LaunchOptions(runtime_scalars=(u32(3),))
        )
        found = await fragment.measure_and_record_invocation_launch_candidates(
            bindings, options
        )
        assert [one.candidate_index for one in found] == [0, 1]
    assert [one.scalars for one in backend.launches] == [(u32(8), u32(3), u32(7))] * 2


async def test_a_geometry_that_follows_from_scalars_is_not_tuned() -> None:
    """What was measured for some scalars says nothing about others."""
    derived = DerivedLaunch(
        grid=(RuntimeCeilDiv(argument_index=0, divisor=4), Fixed(1), Fixed(1)),
        threadgroup=(4, 1, 1),
    )
    backend = RecordingBackend()
    compiled = add_of(runtime=1, launch=derived)
    async with await load_fragment(backend, compiled) as fragment:
        assert fragment.tunable_kernels == ()
        fragment.record_launch_candidate_records([won(fragment)])
        assert fragment.tuning_record_count == 0


async def test_what_is_no_record_and_what_is_closed_is_refused() -> None:
    fragment = await load_fragment(RecordingBackend(), ADD)
    with pytest.raises(InvalidType, match=r"records\[1\].*a LaunchCandidateRecord"):
        fragment.record_launch_candidate_records([won(fragment), "fast"])  # type: ignore[list-item]
    assert fragment.tuning_record_count == 0
    bindings = await fragment.prepare_invocation_bindings([ONES, ONES])
    await fragment.aclose()
    with pytest.raises(SessionClosed):
        await fragment.measure_invocation_launch_candidates(0, bindings)
    with pytest.raises(SessionClosed):
        await fragment.measure_and_record_invocation_launch_candidates(bindings)
    with pytest.raises(SessionClosed):
        fragment.loaded_kernel(0)
    await bindings.aclose()


async def test_a_session_loads_with_the_options_artifact() -> None:
    async with await load_fragment(RecordingBackend(), ADD) as fragment:
        fragment.record_launch_candidate_records([won(fragment)])
        artifact = fragment.export_launch_tuning_artifact()
    options = FragmentCompilerOptions(launch_tuning_artifact=artifact)
    async with (
        open_session(RecordingBackend()) as session,
        await session.load_fragment(ADD, options=options) as fragment,
    ):
        assert fragment.graph.nodes[0].tuning_candidate == 1
