"""The fragment seed's tests of measuring and recording launch candidates, by its names.

All on loaded fragments, compiled from the seed's programs. Figures are the seed's.
"""

# ruff: noqa: E501 - the names of the tests are the seed's

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import (
    DeviceFeatures,
    ElementCountArgument,
    FixedLaunch,
    KernelSource,
    SubgroupFeatures,
)
from accy_async.backends import RecordingBackend
from accy_async.backends.recording.records import SyncScope
from accy_async.errors import InvalidArtifact, LaunchArgumentMismatch
from accy_async.fragment import (
    FragmentCompilerOptions,
    FragmentPhase,
    LaunchTuning,
    LoadedFragment,
)
from accy_async.graph import LaunchOptions
from accy_async.tuning import (
    LaunchCandidateBenchmarkOptions,
    LaunchCandidateMeasurement,
    LaunchCandidateRecord,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    decode_launch_tuning_artifact,
    encode_launch_tuning_artifact,
    launch_candidate_record,
)
from tests.seeds.test_fragment_executor import (
    ONES,
    TWOS,
    add_module,
    call_module,
    loaded,
    scale_registry,
    u32,
)

pytestmark = pytest.mark.anyio

ONCE = LaunchCandidateBenchmarkOptions(warmup=0, samples=1)


def candidate_record(
    fragment: LoadedFragment, index: int, median_ns: int, sample_count: int
) -> LaunchCandidateRecord:
    """A measured candidate of the fragment's first kernel."""
    kernel = fragment.planned_kernel(0)
    assert kernel.launch_resources.candidate_count > 1
    return launch_candidate_record(
        kernel,
        fragment.launch_resource_candidate(0, index),
        LaunchCandidateMeasurement(
            kernel_id=kernel.kernel_id,
            candidate_index=index,
            median_ns=median_ns,
            sample_count=sample_count,
        ),
    )


async def check_launches_candidate(
    backend: RecordingBackend, fragment: LoadedFragment, index: int
) -> None:
    """The next invocation launches that candidate, step by step and by call."""
    assert fragment.graph.nodes[0].tuning_candidate == index
    assert fragment.create_launch_graph_plan().nodes[0].tuning_candidate == index
    selected = fragment.launch_resource_candidate(0, index).geometry
    before = backend.launch_count
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()
    await fragment(ONES, TWOS)
    assert backend.launch_count == before + 2
    for launch in backend.launches[-2:]:
        assert launch.grid == selected.grid
        assert launch.threadgroup == selected.threadgroup


async def test_choir_executable_launch_candidate_measurement_synchronizes_stream() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(backend, add_module("choir_cuda_measure_stream_sync"))
    count = fragment.planned_kernel(0).launch_resources.candidate_count
    stream = backend.create_stream()
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        syncs = backend.sync_count
        await fragment.measure_invocation_launch_candidates(
            0,
            bindings,
            LaunchCandidateBenchmarkOptions(
                warmup=1,
                samples=2,
                base_options=LaunchOptions(stream=stream),
                synchronize="stream",
            ),
        )
    assert backend.launch_count == count * 3
    assert backend.sync_count - syncs == count * 3
    assert backend.last_sync_scope is SyncScope.STREAM
    assert backend.last_sync_stream is not None
    assert backend.last_sync_stream.id == stream.id
    await fragment.aclose()


async def test_choir_executable_fragment_measures_launch_candidates_through_prepared_bindings() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend, add_module("choir_loaded_fragment_measure_candidates")
    )
    assert fragment.kernel_count == 1
    kernel = fragment.planned_kernel(0)
    resources = kernel.launch_resources
    assert resources.candidate_count > 1
    summary = fragment.kernel_summary(0)
    assert summary.source is KernelSource.TENSOR
    assert summary.kernel_id == kernel.kernel_id
    assert summary.work_item_id == kernel.work_item_id
    assert summary.element_count == kernel.element_count
    assert summary.op_count == kernel.op_count
    assert summary.output_layout_fingerprint == kernel.output_layout_fingerprint
    assert summary.input_layout_fingerprint == kernel.input_layout_fingerprint
    assert summary.candidate_count == resources.candidate_count
    assert summary.launch_resource_class == str(resources.resource_class)
    copied = fragment.copy_kernel_artifact(0)
    assert copied.format is kernel.artifact.format
    assert copied.kernel_name == kernel.artifact.kernel_name

    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        records = await fragment.measure_invocation_launch_candidates(
            0, bindings, LaunchCandidateBenchmarkOptions(warmup=1, samples=2)
        )
    first = resources.candidates[0].geometry
    assert len(records) == resources.candidate_count
    assert backend.launch_count == resources.candidate_count * 3
    record = records[0]
    assert record.kernel.kernel_id == kernel.kernel_id
    assert record.kernel.output_layout_fingerprint == kernel.output_layout_fingerprint
    assert record.kernel.input_layout_fingerprint == kernel.input_layout_fingerprint
    assert record.candidate_index == 0
    assert record.geometry.threadgroup[0] == first.threadgroup[0]
    assert record.sample_count == 2

    candidate = fragment.launch_resource_candidate(0, record.candidate_index)
    assert candidate.geometry.threadgroup[0] == first.threadgroup[0]
    with pytest.raises(InvalidArtifact):
        fragment.planned_kernel(fragment.kernel_count)
    with pytest.raises(LaunchArgumentMismatch):
        fragment.launch_resource_candidate(0, resources.candidate_count)
    await fragment.aclose()


async def test_choir_executable_fragment_measures_and_records_launch_candidates() -> (
    None
):
    backend = RecordingBackend()
    module = add_module("choir_loaded_fragment_measure_record_candidates")
    measured = await loaded(backend, module)
    kernel = measured.planned_kernel(0)
    count = kernel.launch_resources.candidate_count
    assert count > 1
    async with await measured.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        records = await measured.measure_and_record_invocation_launch_candidates(
            bindings, ONCE
        )
    assert len(records) == count
    assert backend.launch_count == count
    assert measured.tuning_record_count == 1
    for index, record in enumerate(records):
        assert record.kernel.kernel_id == kernel.kernel_id
        assert record.candidate_index == index
        assert record.sample_count == 1

    artifact = measured.export_launch_tuning_artifact()
    (decoded,) = decode_launch_tuning_artifact(artifact)
    assert decoded.selection.kernel_id == kernel.kernel_id
    assert decoded.selection.candidate_index < count

    replay = await loaded(backend, module, launch_tuning_artifact=artifact)
    await check_launches_candidate(backend, replay, decoded.selection.candidate_index)
    await measured.aclose()
    await replay.aclose()


async def test_choir_executable_fragment_measured_tuning_skips_fixed_launch_candidates() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend,
        call_module("choir_loaded_fragment_measure_record_fixed_candidates"),
        kernel_call_registry=scale_registry(
            argument_count=5,
            launch=FixedLaunch(grid=(2, 3, 1), threadgroup=(8, 2, 1)),
            runtime_scalar_argument_count=0,
            element_count_argument=ElementCountArgument.SCALAR_U32,
            static_arguments=(u32(7),),
        ),
    )
    assert fragment.planned_kernel(0).launch_resources.candidate_count == 1
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        records = await fragment.measure_and_record_invocation_launch_candidates(
            bindings, ONCE
        )
    assert records == ()
    assert fragment.tuning_record_count == 0
    assert backend.launch_count == 0
    await fragment.aclose()


async def test_choir_executable_fragment_records_launch_candidate_records_and_applies_artifact_at_creation() -> (
    None
):
    backend = RecordingBackend()
    module = add_module("choir_loaded_fragment_tuning_records")
    measured = await loaded(backend, module)
    assert measured.graph.nodes[0].tuning_candidate is None
    measured.record_launch_candidate_records(
        [candidate_record(measured, 0, 500, 8), candidate_record(measured, 1, 200, 4)]
    )
    assert measured.tuning_record_count == 1
    await check_launches_candidate(backend, measured, 1)
    artifact = measured.export_launch_tuning_artifact()

    replay = await loaded(backend, module, launch_tuning_artifact=artifact)
    assert replay.tuning_record_count == 1
    record = replay.launch_tuning_record(0)
    assert record is not None
    assert record.selection.candidate_index == 1
    await check_launches_candidate(backend, replay, 1)
    await measured.aclose()
    await replay.aclose()


async def test_choir_executable_fragment_rejects_mismatched_launch_candidate_records() -> (
    None
):
    backend = RecordingBackend()
    fragment = await loaded(
        backend, add_module("choir_loaded_fragment_bad_candidate_records")
    )
    record = candidate_record(fragment, 0, 500, 8)
    geometry, kernel = record.geometry, record.kernel
    wider = (geometry.threadgroup[0] + 1, *geometry.threadgroup[1:])
    shared = geometry.dynamic_shared_memory_bytes + 1
    layout = kernel.output_layout_fingerprint ^ 1
    shuffling = SubgroupFeatures(supported=True, shuffle=True)
    for changed in (
        attrs.evolve(record, geometry=attrs.evolve(geometry, threadgroup=wider)),
        attrs.evolve(
            record,
            geometry=attrs.evolve(geometry, dynamic_shared_memory_bytes=shared),
        ),
        attrs.evolve(
            record, kernel=attrs.evolve(kernel, output_layout_fingerprint=layout)
        ),
        attrs.evolve(
            record,
            kernel=attrs.evolve(
                kernel, compile_required_features=DeviceFeatures(tensor_cores=True)
            ),
        ),
        attrs.evolve(
            record, kernel=attrs.evolve(kernel, compile_required_subgroup=shuffling)
        ),
    ):
        with pytest.raises(LaunchArgumentMismatch):
            fragment.record_launch_candidate_records([record, changed])
        assert fragment.tuning_record_count == 0
    fragment.record_launch_candidate_records([record])
    assert fragment.tuning_record_count == 1
    await fragment.aclose()


async def test_choir_executable_fragment_imports_launch_tuning_artifact_at_creation() -> (
    None
):
    backend = RecordingBackend()
    module = add_module("choir_loaded_fragment_tuning_artifact")
    measured = await loaded(backend, module)
    measured.record_launch_candidate_records(
        [candidate_record(measured, 0, 500, 8), candidate_record(measured, 1, 200, 4)]
    )
    artifact = measured.export_launch_tuning_artifact()
    await measured.aclose()
    phases: list[FragmentPhase] = []
    told = attrs.evolve(
        FragmentCompilerOptions().instrumentation,
        observe=lambda phase, _: phases.append(phase),
    )
    replay = await loaded(
        backend, module, launch_tuning_artifact=artifact, instrumentation=told
    )
    assert phases[-2:] == [
        FragmentPhase.IMPORT_LAUNCH_TUNING,
        FragmentPhase.LOAD_BACKEND_ARTIFACTS,
    ]
    assert replay.tuning_record_count == 1
    await check_launches_candidate(backend, replay, 1)
    await replay.aclose()


async def test_choir_executable_fragment_rejects_invalid_launch_tuning_artifacts_without_mutation() -> (
    None
):
    backend = RecordingBackend()
    module = add_module("choir_loaded_fragment_bad_tuning_artifact")
    fragment = await loaded(backend, module)
    kernel = fragment.planned_kernel(0)
    record = LaunchTuningCacheRecord(
        key=LaunchTuningCacheKey.of(backend.capabilities, kernel),
        selection=candidate_record(fragment, 1, 500, 8).measurement,
    )
    artifact = encode_launch_tuning_artifact([record])
    fragment.import_launch_tuning_artifact(artifact)
    assert fragment.tuning_record_count == 1
    graph = fragment.graph
    bad_magic = bytes([artifact[0] ^ 0xFF]) + artifact[1:]
    for take in (
        fragment.import_launch_tuning_artifact,
        fragment.replace_launch_tuning_artifact,
    ):
        with pytest.raises(InvalidArtifact):
            take(bad_magic)
        assert fragment.tuning_record_count == 1
        assert fragment.graph is graph
    loads = backend.load_count
    with pytest.raises(InvalidArtifact):
        await loaded(backend, module, launch_tuning_artifact=bad_magic)
    assert backend.load_count == loads
    await fragment.aclose()


async def test_choir_executable_fragment_replaces_launch_tuning_artifacts() -> None:
    backend = RecordingBackend()
    fragment = await loaded(
        backend, add_module("choir_loaded_fragment_replace_tuning_artifact")
    )
    fragment.record_launch_candidate_records([candidate_record(fragment, 1, 200, 4)])
    assert fragment.tuning_record_count == 1
    artifact = fragment.export_launch_tuning_artifact()
    fragment.replace_launch_tuning_artifact(b"")
    assert fragment.tuning_record_count == 0
    assert fragment.graph.nodes[0].tuning_candidate is None
    fragment.replace_launch_tuning_artifact(artifact)
    assert fragment.tuning_record_count == 1
    await check_launches_candidate(backend, fragment, 1)
    await fragment.aclose()


async def test_choir_executable_fragment_explicit_launch_tuning_overrides_cached_records() -> (
    None
):
    """Also where the run names the node's candidate, as ours can."""
    backend = RecordingBackend()
    fragment = await loaded(
        backend, add_module("choir_loaded_fragment_tuning_override")
    )
    fragment.record_launch_candidate_records([candidate_record(fragment, 1, 200, 4)])
    assert fragment.tuning_record_count == 1
    explicit = LaunchTuning(
        measurements=[candidate_record(fragment, 0, 1, 1).measurement]
    )
    graph = fragment.create_launch_graph_plan(tuning=explicit)
    assert graph.nodes[0].tuning_candidate == 0
    by_name = LaunchOptions(tuning={fragment.graph.nodes[0].name: 0})
    selected = fragment.launch_resource_candidate(0, 0).geometry
    async with await fragment.prepare_invocation_bindings([ONES, TWOS]) as bindings:
        fragment.submit_invocation(bindings, tuning=explicit)
        fragment.submit_invocation(bindings, by_name)
        await fragment.complete_invocation()
    assert backend.launch_count == 2
    for launch in backend.launches:
        assert launch.grid == selected.grid
        assert launch.threadgroup == selected.threadgroup
    await fragment.aclose()
