"""The launch tuning seed's tests again, on devices whose clocks tell something.

Which candidate is the fastest is the device's to say. What is recorded is launched, and
computes the same.
"""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact import ScalarArgument
from accy_async.backends import Backend
from accy_async.backends.launch import LaunchRequest
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.errors import InvalidArtifact
from accy_async.fragment import LaunchTuning, LoadedFragment
from accy_async.graph import LaunchOptions
from accy_async.tuning import (
    LaunchCandidateBenchmarkOptions,
    decode_launch_tuning_artifact,
)
from tests.hardware.kinds import Hardware
from tests.seeds import test_fragment_executor as seed
from tests.seeds.test_fragment_executor import LHS, RHS
from tests.seeds.test_launch_tuning import candidate_record

pytestmark = pytest.mark.anyio

u32, f32 = ScalarArgument.u32, ScalarArgument.f32


async def check_launches_candidate(
    fragment: LoadedFragment, launches: list[LaunchRequest], index: int
) -> None:
    """The next invocation launches that candidate, and is right."""
    assert fragment.graph.nodes[0].tuning_candidate == index
    assert fragment.create_launch_graph_plan().nodes[0].tuning_candidate == index
    launches.clear()
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
        found = await fragment.read_invocation_output(bindings, 0)
    np.testing.assert_array_equal(found, LHS + RHS)
    (launch,) = launches
    assert launch.geometry == fragment.launch_resource_candidate(0, index).geometry


async def test_measuring_waits_for_the_stream_it_is_given(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    fragment = await seed.loaded(backend, seed.add_module("stream"))
    resources = fragment.planned_kernel(0).launch_resources
    stream = backend.create_stream()
    options = LaunchCandidateBenchmarkOptions(
        warmup=1,
        samples=2,
        base_options=LaunchOptions(stream=stream),
        synchronize="stream",
    )
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        records = await fragment.measure_invocation_launch_candidates(
            0, bindings, options
        )
        assert backend.is_stream_idle(stream)
    assert [record.geometry for record in records] == [
        candidate.geometry for candidate in resources.candidates
    ]
    for candidate in resources.candidates:
        geometries = [launch.geometry for launch in launches]
        assert geometries.count(candidate.geometry) == 3
    assert {launch.stream for launch in launches} == {stream}
    assert all(record.median_ns > 0 for record in records)
    backend.destroy(stream)
    await fragment.aclose()


async def test_what_was_measured_is_recorded_and_launched_after_a_reload(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    module = seed.add_module("recorded")
    fragment = await seed.loaded(backend, module)
    count = fragment.planned_kernel(0).launch_resources.candidate_count
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        records = await fragment.measure_and_record_invocation_launch_candidates(
            bindings, LaunchCandidateBenchmarkOptions(warmup=0, samples=1)
        )
    assert [record.candidate_index for record in records] == list(range(count))
    assert fragment.tuning_record_count == 1
    artifact = fragment.export_launch_tuning_artifact()
    await fragment.aclose()
    (decoded,) = decode_launch_tuning_artifact(artifact)
    best = decoded.selection.candidate_index
    assert records[best].median_ns == min(record.median_ns for record in records)
    replay = await seed.loaded(backend, module, launch_tuning_artifact=artifact)
    await check_launches_candidate(replay, launches, best)
    await replay.aclose()


async def test_kernels_of_one_candidate_are_not_measured(
    hardware: Hardware, backend: Backend, launches: list[LaunchRequest]
) -> None:
    target = "accy.kernel.axpy"
    fragment = await seed.loaded(
        backend,
        seed.call_module("fixed", target),
        kernel_call_registry=library_registry(hardware.format, targets=[target]),
    )
    assert fragment.planned_kernel(0).launch_resources.candidate_count == 1
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        records = await fragment.measure_and_record_invocation_launch_candidates(
            bindings, LaunchCandidateBenchmarkOptions(warmup=0, samples=1)
        )
    assert records == ()
    assert launches == []
    await fragment.aclose()


async def test_every_candidate_computes_the_same(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    """Recorded as the fastest, one after the other; named for a run, and taken back."""
    fragment = await seed.loaded(backend, seed.add_module("each"))
    count = fragment.planned_kernel(0).launch_resources.candidate_count
    assert count > 1
    for index in range(count):
        fragment.replace_launch_tuning_artifact(b"")
        fragment.record_launch_candidate_records(
            [candidate_record(fragment, index, 200, 4)]
        )
        await check_launches_candidate(fragment, launches, index)
    explicit = LaunchTuning(
        measurements=[candidate_record(fragment, 0, 1, 1).measurement]
    )
    by_name = LaunchOptions(tuning={fragment.graph.nodes[0].name: 0})
    launches.clear()
    async with await fragment.prepare_invocation_bindings([LHS, RHS]) as bindings:
        fragment.submit_invocation(bindings, tuning=explicit)
        fragment.submit_invocation(bindings, by_name)
        await fragment.complete_invocation()
        found = await fragment.read_invocation_output(bindings, 0)
    np.testing.assert_array_equal(found, LHS + RHS)
    first = fragment.launch_resource_candidate(0, 0).geometry
    assert [launch.geometry for launch in launches] == [first, first]
    await fragment.aclose()


async def test_bad_artifacts_change_nothing(
    backend: Backend, launches: list[LaunchRequest]
) -> None:
    module = seed.add_module("bad")
    fragment = await seed.loaded(backend, module)
    fragment.record_launch_candidate_records([candidate_record(fragment, 1, 200, 4)])
    artifact = fragment.export_launch_tuning_artifact()
    bad = bytes([artifact[0] ^ 0xFF]) + artifact[1:]
    for take in (
        fragment.import_launch_tuning_artifact,
        fragment.replace_launch_tuning_artifact,
    ):
        with pytest.raises(InvalidArtifact):
            take(bad)
    live = backend.live_objects()
    with pytest.raises(InvalidArtifact):
        await seed.loaded(backend, module, launch_tuning_artifact=bad)
    assert backend.live_objects() == live
    await check_launches_candidate(fragment, launches, 1)
    await fragment.aclose()
