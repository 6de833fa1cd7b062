"""Launch tuning's cache and artifact, on planned kernels made by hand."""

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import DeviceFeatures, SubgroupFeatures
from accy_async.backends import BufferBinding
from accy_async.backends.recording import RecordingBackend
from accy_async.backends.recording.records import SyncScope
from accy_async.errors import InvalidArtifact, LaunchArgumentMismatch
from accy_async.graph.options import LaunchOptions
from accy_async.tuning.launches import (
    LaunchCandidateBenchmarkOptions,
    LaunchTuningCache,
    LaunchTuningCacheKey,
    LaunchTuningCacheRecord,
    decode_launch_tuning_artifact,
    encode_launch_tuning_artifact,
    measure_launch_candidates,
)
from tests.tuning.samples import CAPABILITIES, candidate_record, kernel, measurement


def test_records_launch_candidate_records_and_applies_artifact_at_creation() -> None:
    measured = LaunchTuningCache(CAPABILITIES)
    assert kernel().launch_resources.candidate_count > 1
    measured.record_all(
        [kernel()],
        [candidate_record(kernel(), 0, 500, 8), candidate_record(kernel(), 1, 200, 4)],
    )
    assert len(measured) == 1
    replay = LaunchTuningCache(CAPABILITIES)
    replay.import_artifact(measured.export_artifact())
    assert len(replay) == 1
    selection = replay.selection(kernel())
    assert selection is not None
    assert selection.kernel_id == kernel().kernel_id
    assert selection.candidate_index == 1


def test_rejects_mismatched_launch_candidate_records() -> None:
    cache = LaunchTuningCache(CAPABILITIES)
    record = candidate_record(kernel(), 0, 500, 8)
    geometry, of = record.geometry, record.kernel
    wider = (geometry.threadgroup[0] + 1, *geometry.threadgroup[1:])
    mismatched = [
        attrs.evolve(record, geometry=attrs.evolve(geometry, threadgroup=wider)),
        attrs.evolve(
            record, geometry=attrs.evolve(geometry, dynamic_shared_memory_bytes=1)
        ),
        attrs.evolve(
            record,
            kernel=attrs.evolve(
                of, output_layout_fingerprint=of.output_layout_fingerprint ^ 1
            ),
        ),
        attrs.evolve(
            record,
            kernel=attrs.evolve(
                of, compile_required_features=DeviceFeatures(tensor_cores=True)
            ),
        ),
        attrs.evolve(
            record,
            kernel=attrs.evolve(
                of,
                compile_required_subgroup=SubgroupFeatures(
                    supported=True, shuffle=True
                ),
            ),
        ),
    ]
    for wrong in mismatched:
        with pytest.raises(LaunchArgumentMismatch):
            cache.record_all([kernel()], [wrong])
        assert len(cache) == 0
    cache.record_all([kernel()], [record])
    assert len(cache) == 1


def test_imports_launch_tuning_artifact_at_creation() -> None:
    measured = LaunchTuningCache(CAPABILITIES)
    measured.record_all(
        [kernel()],
        [candidate_record(kernel(), 0, 500, 8), candidate_record(kernel(), 1, 200, 4)],
    )
    records = decode_launch_tuning_artifact(measured.export_artifact())
    replay = LaunchTuningCache(CAPABILITIES, records)
    assert len(replay) == 1
    assert replay.selection(kernel()) == measurement(1, 200, 4)


def test_rejects_invalid_launch_tuning_artifacts_without_mutation() -> None:
    cache = LaunchTuningCache(CAPABILITIES)
    record = LaunchTuningCacheRecord(
        key=LaunchTuningCacheKey.of(CAPABILITIES, kernel()),
        selection=measurement(0, 500, 8),
    )
    artifact = encode_launch_tuning_artifact([record])
    cache.import_artifact(artifact)
    assert len(cache) == 1
    bad_magic = bytes([artifact[0] ^ 0xFF]) + artifact[1:]
    with pytest.raises(InvalidArtifact):
        cache.import_artifact(bad_magic)
    assert len(cache) == 1


def test_replaces_launch_tuning_artifacts() -> None:
    cache = LaunchTuningCache(CAPABILITIES)
    cache.record_all([kernel()], [candidate_record(kernel(), 1, 200, 4)])
    assert len(cache) == 1
    artifact = cache.export_artifact()
    cache.replace_artifact(b"")
    assert len(cache) == 0
    cache.replace_artifact(artifact)
    assert len(cache) == 1


def test_measured_tuning_skips_fixed_launch_candidates() -> None:
    fixed = kernel(widths=(32,))
    assert fixed.launch_resources.candidate_count == 1
    cache = LaunchTuningCache(CAPABILITIES)
    assert cache.record_all([fixed], []) == ()
    assert cache.record_candidates(fixed, [candidate_record(fixed, 0, 9)]) is None
    assert len(cache) == 0


@pytest.mark.anyio
async def test_launch_candidate_measurement_synchronizes_stream() -> None:
    backend = RecordingBackend(kind="cuda", format="cuda_ptx")
    planned = kernel()
    loaded = backend.load_artifact(planned.artifact)
    stream = backend.create_stream()
    buffers = [
        BufferBinding(handle=backend.allocate_buffer(32), access=argument.access)
        for argument in planned.arguments
    ]
    measurements = await measure_launch_candidates(
        backend,
        planned,
        loaded,
        buffers,
        options=LaunchCandidateBenchmarkOptions(
            warmup=1,
            samples=2,
            base_options=LaunchOptions(stream=stream),
            synchronize="stream",
        ),
    )
    count = planned.launch_resources.candidate_count
    assert len(measurements) == count
    assert backend.launch_count == count * 3
    assert backend.sync_count == count * 3
    assert backend.last_sync_scope is SyncScope.STREAM
    assert backend.last_sync_stream is not None
    assert backend.last_sync_stream.id == stream.id
