"""Loaded fragments step by step: kernels, graphs, bindings, launches, reading."""

from __future__ import annotations

import array

import attrs
import numpy as np
import pytest

from accy_async import open_session
from accy_async.artifact import (
    DerivedLaunch,
    ElementCountArgument,
    Fixed,
    RuntimeCeilDiv,
    ScalarArgument,
    SlotRole,
)
from accy_async.backends import RecordingBackend
from accy_async.backends.recording import SyncScope
from accy_async.errors import (
    CapabilityMismatch,
    InvalidArtifact,
    InvalidBuffer,
    InvalidType,
    LaunchArgumentMismatch,
    OutOfMemory,
    ReadBufferDestinationTooSmall,
    RuntimeUnavailable,
    SessionClosed,
    UnsupportedOperation,
)
from accy_async.fragment import (
    CompiledFragment,
    LaunchCandidateMeasurement,
    LaunchTuning,
    LaunchTuningSelection,
    load_fragment,
)
from accy_async.graph import LaunchGraphDependency, LaunchGraphPlan, LaunchOptions
from tests.fragment.plans import ADD, CHAIN, SCALED, UPDATE, add_of

pytestmark = pytest.mark.anyio

ONES = np.ones(8, np.float32)
u32 = ScalarArgument.u32


async def test_load_failures_release_what_was_loaded() -> None:
    backend = RecordingBackend(fail_load_after_count=1)
    with pytest.raises(RuntimeUnavailable):
        await load_fragment(backend, CHAIN)
    assert (backend.load_count, backend.destroy_count) == (1, 1)
    assert not any(backend.live_objects().values())


async def test_equal_code_is_loaded_once_and_unloaded_once() -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, CHAIN) as fragment:
        assert (fragment.kernel_count, fragment.loaded_kernel_count) == (4, 3)
        assert backend.load_count == 3
    await fragment.aclose()
    assert backend.destroy_count == 3
    assert fragment.is_closed
    assert fragment.loaded_kernel_count == 0


async def test_a_device_that_lacks_something_is_refused_before_loading() -> None:
    backend = RecordingBackend()
    needy = attrs.evolve(
        ADD.plan.kernels[0],
        required_features=attrs.evolve(
            ADD.plan.kernels[0].required_features, tensor_cores=True
        ),
    )
    with pytest.raises(CapabilityMismatch):
        await load_fragment(
            backend, CompiledFragment(attrs.evolve(ADD.plan, kernels=(needy,)))
        )
    with pytest.raises(InvalidType):
        await load_fragment(backend, ADD.plan)  # type: ignore[arg-type]
    with pytest.raises(UnsupportedOperation):
        await load_fragment(RecordingBackend("vulkan"), ADD)
    assert backend.load_count == 0


async def test_summaries_are_found_by_index_and_by_work() -> None:
    async with await load_fragment(RecordingBackend(), CHAIN) as fragment:
        summary = fragment.kernel_summary(2)
        assert summary == fragment.kernel_summary_for_work(12)
        assert summary == fragment.copy_kernel_summaries().summary_for_work(12)
        assert summary.entry_name == "again"
        assert summary.output_slot_ids == (5,)
        assert summary.candidate_count == 2
        assert fragment.copy_kernel_artifact(0) is CHAIN.plan.kernels[0].artifact
        assert fragment.compiled_fingerprint == CHAIN.fingerprint
        assert fragment.output_slot(1) is CHAIN.plan.slots[0]
        assert fragment.output_slot(4) is None
        assert fragment.launch_resource_candidate(0, 1).geometry.grid == (2, 1, 1)
        for wrong in (
            lambda: fragment.kernel_summary(4),
            lambda: fragment.kernel_summary(-1),
            lambda: fragment.kernel_summary_for_work(99),
            lambda: fragment.planned_kernel(4),
            lambda: fragment.copy_kernel_artifact(4),
            lambda: fragment.copy_kernel_summaries().summary(4),
            lambda: fragment.copy_kernel_summaries().summary_for_work(99),
        ):
            with pytest.raises(InvalidArtifact):
                wrong()
        with pytest.raises(LaunchArgumentMismatch):
            fragment.launch_resource_candidate(0, 2)


async def test_edges_of_the_graph_follow_from_the_slots() -> None:
    async with await load_fragment(RecordingBackend(), CHAIN) as fragment:
        graph = fragment.graph
        names = ["kernel_0", "again", "again#2", "kernel_3"]
        assert [node.name for node in graph.nodes] == names
        assert set(graph.dependencies) == {
            LaunchGraphDependency("kernel_0", "again#2"),
            LaunchGraphDependency("again", "again#2"),
            LaunchGraphDependency("again#2", "kernel_3"),
        }
        assert graph == fragment.create_launch_graph_plan()
        # A folded constant has no slot; an element count has one for all kernels.
        assert [slot.name for slot in graph.slots] == [
            "input_0",
            "constant_1",
            "scratch_3",
            "scratch_4",
            "output_5",
            "count_8",
        ]


async def test_bindings_own_every_buffer_and_serve_many_invocations() -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, CHAIN) as fragment:
        bindings = await fragment.prepare_invocation_bindings([ONES])
        assert bindings.live_buffer_count == backend.buffer_allocate_count == 6
        assert backend.write_count == 3
        assert sorted(bindings.slot_bindings) == [0, 1, 3, 4, 5]
        assert sorted(bindings.element_count_bindings) == [0, 1, 2]
        assert str(bindings.slot_bindings[1].access) == "read_only"
        for _ in range(3):
            fragment.submit_invocation(bindings)
        assert backend.launch_count == 12
        assert backend.buffer_allocate_count == 6
        await fragment.complete_invocation()
        assert backend.last_sync_scope is SyncScope.DEFAULT_STREAM
        first = backend.launches[0]
        assert first.buffer_ids == tuple(
            binding.handle.id for binding in bindings.buffers_for_kernel(0)
        )
        with pytest.raises(InvalidArtifact):
            bindings.binding(2)
        with pytest.raises(InvalidArtifact):
            bindings.binding(6)
        await bindings.aclose()
        await bindings.aclose()
        assert backend.destroy_count == 6
        for used in (
            lambda: bindings.binding(0),
            lambda: fragment.submit_invocation(bindings),
            bindings.graph_bindings,
        ):
            with pytest.raises(LaunchArgumentMismatch, match="closed"):
                used()
    assert not any(backend.live_objects().values())


@pytest.mark.parametrize(
    "inputs", [[], [ONES], [ONES, ONES[:7]], [ONES, ONES, ONES], [ONES, bytes(33)]]
)
async def test_other_inputs_are_refused_before_anything_is_allocated(
    inputs: list[object],
) -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, ADD) as fragment:
        with pytest.raises(LaunchArgumentMismatch):
            await fragment.prepare_invocation_bindings(inputs)
        with pytest.raises(InvalidBuffer):
            await fragment.prepare_invocation_bindings([ONES, np.ones(16)[::2]])
        assert backend.buffer_allocate_count == 0


@pytest.mark.parametrize(
    "wrong",
    [
        np.ones(8, np.int32),
        np.ones(4, np.float64),
        np.ones(8, ">f4"),
        np.ones(32, np.bool_),
        array.array("i", range(8)),
    ],
    ids=lambda wrong: str(np.asarray(wrong).dtype),
)
async def test_numbers_of_another_dtype_are_no_input(wrong: object) -> None:
    """Though they have as many bytes; bytes alone say nothing of what they are."""
    backend = RecordingBackend()
    async with await load_fragment(backend, ADD) as fragment:
        with pytest.raises(LaunchArgumentMismatch, match=r"expected f32\[8\], or its"):
            await fragment.prepare_invocation_bindings([ONES, wrong])
        assert backend.buffer_allocate_count == 0
        for given in (ONES.tobytes(), ONES.view(np.uint8), array.array("f", ONES)):
            bindings = await fragment.prepare_invocation_bindings([ONES, given])
            await bindings.aclose()


async def test_bindings_of_another_fragment_are_refused() -> None:
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, ADD) as fragment,
        await load_fragment(backend, SCALED) as other,
    ):
        bindings = await fragment.prepare_invocation_bindings([ONES, ONES])
        with pytest.raises(LaunchArgumentMismatch, match="another fragment"):
            other.submit_invocation(bindings)
        with pytest.raises(LaunchArgumentMismatch, match="another fragment"):
            await other.read_invocation_output(bindings, 0)
        await bindings.aclose()
        assert (backend.launch_count, backend.read_count) == (0, 0)


async def test_bindings_without_room_leave_nothing() -> None:
    backend = RecordingBackend(fail_buffer_allocate_after_count=3)
    async with await load_fragment(backend, ADD) as fragment:
        with pytest.raises(OutOfMemory):
            await fragment.prepare_invocation_bindings([ONES, ONES])
        assert backend.live_objects()["buffers"] == 0


async def test_reading_takes_exactly_the_size_of_the_result() -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, CHAIN) as fragment:
        bindings = await fragment.prepare_invocation_bindings([ONES])
        out = np.full(8, 7, np.float32)
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        assert (await fragment.read_invocation_output(bindings, 0, out) == 0).all()
        assert (out == 0).all()
        known = await fragment.read_invocation_output(bindings, 2)
        assert known.shape == (8,)
        assert known.dtype == np.float32
        assert backend.read_count == 1
        for index in (4, -1, "0", None, 0.0):
            with pytest.raises(InvalidArtifact, match="it has 4"):
                await fragment.read_invocation_output(bindings, index)  # type: ignore[arg-type]
        with pytest.raises(ReadBufferDestinationTooSmall):
            await fragment.read_invocation_output(bindings, 0, out[:1])
        with pytest.raises(InvalidBuffer, match="out has 36"):
            await fragment.read_invocation_output(bindings, 0, bytearray(36))
        await bindings.aclose()


async def test_scalars_of_each_launch_come_between_count_and_statics() -> None:
    backend = RecordingBackend()
    derived = DerivedLaunch(
        grid=(RuntimeCeilDiv(argument_index=0, divisor=4), Fixed(1), Fixed(1)),
        threadgroup=(4, 1, 1),
    )
    compiled = CompiledFragment(
        attrs.evolve(
            SCALED.plan,
            kernels=(attrs.evolve(SCALED.plan.kernels[0], launch=derived),),
        )
    )
    async with await load_fragment(backend, compiled) as fragment:
        async with await fragment.prepare_invocation_bindings([ONES, ONES]) as bindings:
            fragment.submit_invocation(bindings, runtime_scalars=(u32(13),))
            assert backend.launches[-1].scalars == (u32(8), u32(13), u32(7))
            assert backend.launches[-1].grid == (4, 1, 1)
            graph = fragment.create_launch_graph_plan(runtime_scalars={0: (u32(5),)})
            fragment.submit_invocation_with_graph(bindings, graph)
            assert backend.launches[-1].scalars == (u32(8), u32(5), u32(7))
            fragment.submit_invocation(
                bindings, LaunchOptions(runtime_scalars=(u32(3),))
            )
            assert backend.launches[-1].scalars == (u32(8), u32(3), u32(7))
            with pytest.raises(LaunchArgumentMismatch):
                fragment.submit_invocation(bindings)
        for wrong in ((), (u32(1), u32(2))), {0: (u32(1), u32(2))}, {1: (u32(1),)}:
            given = wrong if isinstance(wrong, dict) else wrong[1]
            with pytest.raises(LaunchArgumentMismatch):
                fragment.create_launch_graph_plan(runtime_scalars=given)
        results = await fragment.invoke([ONES, ONES], runtime_scalars=[u32(9)])
        assert len(results) == 1
        assert backend.launches[-1].scalars == (u32(8), u32(9), u32(7))
    async with await load_fragment(backend, ADD) as fragment:
        with pytest.raises(LaunchArgumentMismatch, match="no kernel"):
            fragment.create_launch_graph_plan(runtime_scalars=(u32(1),))


async def test_defaults_serve_where_a_launch_brings_no_scalars() -> None:
    backend = RecordingBackend()
    compiled = add_of(counted=ElementCountArgument.NONE, runtime=1, defaults=(u32(8),))
    async with (
        await load_fragment(backend, compiled) as fragment,
        await fragment.prepare_invocation_bindings([ONES, ONES]) as bindings,
    ):
        fragment.submit_invocation(bindings)
        fragment.submit_invocation(bindings, runtime_scalars=(u32(4),))
        assert [one.scalars for one in backend.launches] == [(u32(8),), (u32(4),)]


async def test_tuning_chooses_the_candidates() -> None:
    backend = RecordingBackend()
    measured = LaunchTuning(
        measurements=(
            LaunchCandidateMeasurement(kernel_id=0, candidate_index=0, median_ns=200),
            LaunchCandidateMeasurement(kernel_id=0, candidate_index=1, median_ns=100),
        )
    )
    selected = LaunchTuning(
        selections=(LaunchTuningSelection(kernel_id=0, candidate_index=0),),
        measurements=measured.measurements,
    )
    async with (
        await load_fragment(backend, ADD) as fragment,
        await fragment.prepare_invocation_bindings([ONES, ONES]) as bindings,
    ):
        fragment.submit_invocation(bindings, tuning=measured)
        fragment.submit_invocation(bindings, tuning=selected)
        fragment.submit_invocation(bindings, LaunchOptions(tuning={"kernel_0": 1}))
        fragment.submit_invocation(bindings)
        grids = [launch.grid[0] for launch in backend.launches]
        assert grids == [2, 1, 2, 1]
        graph = fragment.create_launch_graph_plan(tuning=measured)
        assert graph.nodes[0].tuning_candidate == 1
        with pytest.raises(LaunchArgumentMismatch):
            fragment.submit_invocation(bindings, LaunchOptions(tuning={"other": 1}))
        with pytest.raises(InvalidArtifact):
            fragment.create_launch_graph_plan(
                tuning=LaunchTuning(
                    selections=(LaunchTuningSelection(kernel_id=1, candidate_index=0),)
                )
            )
        with pytest.raises(LaunchArgumentMismatch, match="it has 2"):
            fragment.create_launch_graph_plan(
                tuning=LaunchTuning(
                    selections=(LaunchTuningSelection(kernel_id=0, candidate_index=2),)
                )
            )


async def test_streams_and_events_order_an_invocation() -> None:
    backend = RecordingBackend()
    stream = backend.create_stream()
    before, after = backend.create_event(), backend.create_event()
    backend.record_event(before)
    options = LaunchOptions(stream=stream, wait_events=(before,), signal_event=after)
    async with (
        await load_fragment(backend, CHAIN) as fragment,
        await fragment.prepare_invocation_bindings([ONES]) as bindings,
    ):
        fragment.submit_invocation(bindings, options)
        assert {launch.stream for launch in backend.launches} == {stream}
        kinds = [call.kind for call in backend.calls[-6:]]
        assert kinds == ["stream_wait_event", *["launch"] * 4, "record_event"]
        await fragment.complete_invocation(options)
        assert str(backend.last_sync_scope) == "event"
        await fragment.complete_invocation_graph(
            fragment.graph, LaunchOptions(stream=stream)
        )
        assert str(backend.last_sync_scope) == "stream"
        with pytest.raises(InvalidArtifact):
            await fragment.complete_invocation_graph(LaunchGraphPlan())


async def test_graphs_of_others_are_refused() -> None:
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, CHAIN) as fragment,
        await load_fragment(backend, ADD) as other,
        await fragment.prepare_invocation_bindings([ONES]) as bindings,
    ):
        with pytest.raises(InvalidArtifact):
            fragment.submit_invocation_with_graph(bindings, other.graph)
        with pytest.raises(InvalidArtifact):
            fragment.submit_invocation_with_graph(bindings, LaunchGraphPlan())
        waiting = attrs.evolve(
            fragment.graph,
            nodes=(
                attrs.evolve(fragment.graph.nodes[0], wait_events=("given",)),
                *fragment.graph.nodes[1:],
            ),
            external_events=("given",),
        )
        with pytest.raises(UnsupportedOperation, match=r"Session\.start"):
            fragment.submit_invocation_with_graph(bindings, waiting)
        assert backend.launch_count == 0


async def test_one_kernel_is_launched_with_arguments_of_the_callers() -> None:
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, SCALED) as fragment,
        await fragment.prepare_invocation_bindings([ONES, ONES]) as bindings,
    ):
        buffers = bindings.buffers_for_kernel(0)
        scalars = (u32(8), u32(2), u32(7))
        fragment.launch_kernel_with_arguments(0, buffers, scalars)
        assert backend.launches[-1].scalars == scalars
        assert backend.launches[-1].grid == (1, 1, 1)
        fragment.launch_kernel_with_arguments(0, buffers, scalars, candidate_index=1)
        assert backend.launches[-1].grid == (2, 1, 1)
        fragment.launch_kernel_with_arguments(
            0, buffers, scalars, LaunchOptions(tuning={"kernel_0": 1})
        )
        assert backend.launches[-1].grid == (2, 1, 1)
        count = backend.launch_count
        with pytest.raises(InvalidArtifact):
            fragment.launch_kernel_with_arguments(1, buffers, scalars)
        with pytest.raises(LaunchArgumentMismatch):
            fragment.launch_kernel_with_arguments(0, buffers[:2], scalars)
        with pytest.raises(LaunchArgumentMismatch):
            fragment.launch_kernel_with_arguments(0, buffers, scalars[:2])
        with pytest.raises(LaunchArgumentMismatch):
            fragment.launch_kernel_with_arguments(
                0, buffers, scalars, candidate_index=2
            )
        assert backend.launch_count == count


async def test_a_graph_runs_in_a_session_and_its_nodes_are_awaited() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        fragment = await session.load_fragment(CHAIN)
        bindings = await fragment.prepare_invocation_bindings([ONES])
        run = session.start(fragment.graph, bindings.graph_bindings())
        await run["again"]
        await run
        assert backend.launch_count == 4
    assert not any(backend.live_objects().values())


async def test_runs_of_its_graph_use_its_kernels_until_it_is_closed() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        fragment = await session.load_fragment(CHAIN)
        bindings = await fragment.prepare_invocation_bindings([np.ones(8, np.float32)])
        graph, bound = fragment.graph, bindings.graph_bindings()
        loaded = backend.load_count
        await session.run(graph, bound)
        assert backend.load_count == loaded
        await fragment.aclose()
        for _ in range(2):
            await session.run(graph, bound)  # which loads them once, for itself
        assert backend.load_count == loaded + len(graph.entries)


async def test_after_closing_a_fragment_refuses_everything() -> None:
    backend = RecordingBackend()
    fragment = await load_fragment(backend, ADD)
    bindings = await fragment.prepare_invocation_bindings([ONES, ONES])
    await fragment.aclose()
    with pytest.raises(SessionClosed):
        fragment.submit_invocation(bindings)
    with pytest.raises(SessionClosed):
        fragment.launch_kernel_with_arguments(0, bindings.buffers_for_kernel(0))
    with pytest.raises(SessionClosed):
        await fragment(ONES, ONES)
    with pytest.raises(SessionClosed):
        await fragment.prepare_invocation_bindings([ONES, ONES])
    with pytest.raises(SessionClosed):
        await fragment.read_invocation_output(bindings, 0)
    await bindings.aclose()
    assert not any(backend.live_objects().values())


async def test_an_input_that_is_written_is_bound_read_write() -> None:
    backend = RecordingBackend()
    async with (
        await load_fragment(backend, UPDATE) as fragment,
        await fragment.prepare_invocation_bindings([ONES]) as bindings,
    ):
        fragment.submit_invocation(bindings)
        launch = backend.launches[-1]
        assert launch.buffer_ids[0] == launch.buffer_ids[1]
        assert [str(one) for one in launch.buffer_access] == ["read_write", "read_only"]
        assert UPDATE.plan.slots[0].role is SlotRole.INPUT
