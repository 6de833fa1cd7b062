"""Launching a pipeline: what the device gets, and what is waited for and freed."""

from __future__ import annotations

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async.artifact import (
    ScalarArgument,
)
from accy_async.backends import BufferAccess, RecordingBackend
from accy_async.errors import (
    CapabilityMismatch,
    DeviceError,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.pipeline import (
    FixedLaunch,
    KernelCallPipeline,
    KernelCallRegistry,
    PipelineArtifactPool,
    PipelineLaunch,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
    submit_pipeline,
)
from tests.harness.scan_chain import (
    ARGS,
    ENTRIES,
    LAUNCH,
    PIPELINE,
    PTX,
    REGISTRY,
)

pytestmark = pytest.mark.anyio


async def test_each_stage_is_launched_with_its_own_arguments() -> None:
    """Buffers in the stage's order, kernels by name, and stages as nodes."""
    backend = RecordingBackend()
    stream = backend.create_stream()
    await launch_pipeline(backend, attrs.evolve(LAUNCH, stream=stream))
    first, second = backend.allocated_buffer_ids
    assert [launch.buffer_ids for launch in backend.launches] == [
        (1002, 1001, first),
        (second, first),
        (1002, second),
    ]
    assert [launch.kernel_name for launch in backend.launches] == [
        entry.entry_name for entry in ENTRIES
    ]
    assert [launch.threadgroup[0] for launch in backend.launches] == [64, 96, 64]
    assert {launch.stream for launch in backend.launches} == {stream}
    assert {launch.buffer_access for launch in backend.launches} == {
        (BufferAccess.READ_WRITE,) * 3,
        (BufferAccess.READ_WRITE,) * 2,
    }
    assert [launch.diagnostic_id for launch in backend.launches] == [
        f"accy.kernel.test.device_scan[{number}] {entry.target}"
        for number, entry in enumerate(ENTRIES)
    ]
    assert backend.last_sync_stream == stream


async def test_a_diagnostic_id_is_passed_to_every_stage_and_error() -> None:
    """The caller's name for the launch is the node that a device error names."""
    backend = RecordingBackend()
    backend.fail_execution(2)
    with pytest.raises(DeviceError) as caught:
        await launch_pipeline(backend, attrs.evolve(LAUNCH, diagnostic_id="request 17"))
    assert caught.value.node == "request 17"
    assert caught.value.kernel == "accy.kernel.test.sums_scan"
    assert {launch.diagnostic_id for launch in backend.launches} == {"request 17"}


async def test_static_arguments_follow_the_derived_scalars() -> None:
    """A kernel gets its derived scalars first, then those of its entry."""
    backend = RecordingBackend()
    static = (ScalarArgument.f32(0.5), ScalarArgument.i64(-3))
    registry = KernelCallRegistry(
        [
            ENTRIES[0],
            attrs.evolve(ENTRIES[1], static_arguments=static, argument_count=5),
            ENTRIES[2],
        ]
    )
    await launch_pipeline(backend, attrs.evolve(LAUNCH, registry=registry))
    assert backend.launches[1].scalars == (ScalarArgument.u32(79), *static)
    assert backend.launches[1].grid == (1, 1, 1)


async def test_the_default_stream_means_the_whole_device_is_awaited() -> None:
    """Without a stream the call awaits the device, as the seed does."""
    backend = RecordingBackend()
    await launch_pipeline(backend, LAUNCH)
    assert [c.kind for c in backend.calls if c.kind.startswith("wait")] == [
        "wait_device"
    ]
    assert backend.last_sync_stream is None


@pytest.mark.parametrize("has_pool", [False, True])
@pytest.mark.parametrize("has_scratch", [False, True])
async def test_the_call_waits_only_for_what_it_owns(
    has_pool: bool, has_scratch: bool
) -> None:
    """With both of the caller's, no wait is made and nothing is destroyed."""
    backend = RecordingBackend()
    pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
    scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    await launch_pipeline(
        backend,
        attrs.evolve(
            LAUNCH,
            artifacts=pool if has_pool else None,
            intermediates=scratch if has_scratch else None,
        ),
    )
    assert backend.sync_count == (0 if has_pool and has_scratch else 1)
    assert backend.destroy_count == 3 * (not has_pool) + 2 * (not has_scratch)
    await pool.aclose()
    await scratch.aclose()
    assert not any(backend.live_objects().values())


async def test_a_geometry_beyond_the_device_is_refused_and_all_is_freed() -> None:
    """A limit is the device's to tell, at the launch: what was made is given back."""
    backend = RecordingBackend()
    wide = attrs.evolve(
        ENTRIES[1], launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(2048, 1, 1))
    )
    registry = KernelCallRegistry([ENTRIES[0], wide, ENTRIES[2]])
    with pytest.raises(CapabilityMismatch, match="2048"):
        await launch_pipeline(backend, attrs.evolve(LAUNCH, registry=registry))
    assert backend.launch_count == 1
    assert not any(backend.live_objects().values())


async def test_a_closed_backend_takes_no_launch() -> None:
    """SessionClosed, whatever the launch brings."""
    backend = RecordingBackend()
    backend.close()
    with pytest.raises(SessionClosed):
        await launch_pipeline(backend, LAUNCH)


async def load_both(
    backend: RecordingBackend, pipeline: KernelCallPipeline = PIPELINE
) -> tuple[PipelineArtifactPool, PipelineLaunch]:
    pool = await load_pipeline_artifacts(backend, pipeline, REGISTRY, PTX)
    scratch = await allocate_pipeline_intermediates(backend, pipeline, ARGS)
    return pool, attrs.evolve(LAUNCH, artifacts=pool, intermediates=scratch)


async def test_submit_pipeline_is_launch_pipeline_without_an_await() -> None:
    """The same launches, at once, for sync code with its own pool and scratch."""
    backend = RecordingBackend(is_holding=True)
    _, request = await load_both(backend)
    submit_pipeline(backend, request)
    await launch_pipeline(backend, request)
    assert backend.launch_count == 6
    assert backend.launches[:3] == backend.launches[3:]
    assert backend.sync_count == 0


async def test_submit_pipeline_needs_pool_and_scratch() -> None:
    """It can neither load nor wait, and says so."""
    backend = RecordingBackend()
    _, request = await load_both(backend)
    for lacking in ("artifacts", "intermediates"):
        with pytest.raises(LaunchArgumentMismatch, match="await launch_pipeline"):
            submit_pipeline(backend, attrs.evolve(request, **{lacking: None}))  # type: ignore[arg-type]
    with pytest.raises(LaunchArgumentMismatch, match="0 were given"):
        submit_pipeline(backend, attrs.evolve(request, operands=()))
    assert backend.launch_count == 0


async def test_a_launch_is_always_a_checkpoint() -> None:
    """Many launches from one task let the others have their turns."""
    backend = RecordingBackend()
    _, request = await load_both(backend)
    turns = 0

    async def ticker() -> None:
        nonlocal turns
        while True:
            turns += 1
            await anyio.lowlevel.checkpoint()

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(ticker)
        for _ in range(50):
            await launch_pipeline(backend, request)
        tasks.cancel_scope.cancel()
    assert turns >= 25
