"""Artifact pools: loaded once, shared by launches, closed once."""

from __future__ import annotations

import functools
from contextlib import AsyncExitStack

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async.artifact import ArtifactFormat
from accy_async.backends import RecordingBackend
from accy_async.errors import (
    DeviceError,
    InvalidArtifact,
    InvalidValue,
    KernelEntryMissing,
    UnsupportedOperation,
)
from accy_async.pipeline import (
    KernelCallRegistry,
    PipelineArtifactPool,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.scan_chain import (
    ARGS,
    ENTRIES,
    LAUNCH,
    PIPELINE,
    PTX,
    REGISTRY,
    binding,
)

pytestmark = pytest.mark.anyio


async def load(backend: RecordingBackend) -> PipelineArtifactPool:
    return await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)


async def test_a_pool_is_labelled_and_holds_one_kernel_for_each_stage() -> None:
    """Target, version and format are the chain's; entries follow the stages."""
    backend = RecordingBackend()
    async with await load(backend) as pool:
        assert (pool.target, pool.version, pool.format) == (
            "accy.kernel.test.device_scan",
            1,
            PTX,
        )
        assert pool.backend is backend
        assert len(pool) == 3
        assert [entry.artifact.kernel_name for entry in pool] == [
            entry.target for entry in ENTRIES
        ]
        assert repr(pool) == (
            "<PipelineArtifactPool accy.kernel.test.device_scan v1 cuda_ptx: 3 kernels>"
        )
        assert not pool.is_closed
    assert pool.is_closed
    assert "closed" in repr(pool)


async def test_a_format_may_be_given_by_its_name() -> None:
    """``"cuda_ptx"`` is the format of that name; an unknown one is refused."""
    backend = RecordingBackend()
    async with await load_pipeline_artifacts(
        backend, PIPELINE, REGISTRY, "cuda_ptx"
    ) as pool:
        assert pool.format is PTX
    with pytest.raises((InvalidValue, InvalidArtifact)):
        await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, "cuda_elf")


async def test_an_unresolvable_stage_loads_nothing() -> None:
    """The chain is checked as a whole before its first kernel is made."""
    backend = RecordingBackend()
    for registry in (KernelCallRegistry(ENTRIES[:2]), KernelCallRegistry()):
        with pytest.raises(KernelEntryMissing):
            await load_pipeline_artifacts(backend, PIPELINE, registry, PTX)
    assert backend.calls == []


async def test_a_format_that_no_entry_has_is_unsupported() -> None:
    """As the seed says, it is UnsupportedOperation; InvalidArtifact catches it too."""
    backend = RecordingBackend()
    for error in (UnsupportedOperation, InvalidArtifact):
        with pytest.raises(error, match="format metal_msl"):
            await load_pipeline_artifacts(
                backend, PIPELINE, REGISTRY, ArtifactFormat.METAL_MSL
            )
    assert backend.calls == []


async def test_a_format_that_the_backend_does_not_load_is_unsupported() -> None:
    """Entries there may be, but the device loads another format: nothing is left."""
    backend = RecordingBackend()
    metal = KernelCallRegistry(
        [attrs.evolve(one, format=ArtifactFormat.METAL_MSL) for one in ENTRIES]
    )
    with pytest.raises(UnsupportedOperation) as caught:
        await load_pipeline_artifacts(
            backend, PIPELINE, metal, ArtifactFormat.METAL_MSL
        )
    assert not isinstance(caught.value, KernelEntryMissing)
    assert "metal_msl is not one of cuda_ptx" in str(caught.value)
    assert backend.load_count == 0


async def test_closing_twice_destroys_once() -> None:
    """`aclose` and `close` are idempotent, and follow each other in any order."""
    backend = RecordingBackend()
    pool = await load(backend)
    await pool.aclose()
    await pool.aclose()
    pool.close()
    assert backend.destroyed_ids == [1, 2, 3]
    async with pool:
        pass
    assert backend.destroyed_ids == [1, 2, 3]


async def test_closing_under_a_cancellation_destroys_everything() -> None:
    """`aclose` in a cancelled scope does all of its work."""
    backend = RecordingBackend()
    pool = await load(backend)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await pool.aclose()
    assert backend.destroyed_ids == [1, 2, 3]


async def test_a_kernel_destroyed_by_hand_is_left_out_of_closing() -> None:
    """What somebody destroyed already is no error when the pool is closed."""
    backend = RecordingBackend()
    pool = await load(backend)
    backend.destroy(pool.entries[1].loaded)
    await pool.aclose()
    assert backend.destroyed_ids == [2, 1, 3]


@pytest.mark.parametrize("refused", [1, 2, 3])
async def test_a_kernel_that_cannot_be_destroyed_keeps_no_other(refused: int) -> None:
    """The one error comes out as it is; all kernels are gone."""
    backend = RecordingBackend()
    pool = await load(backend)
    backend.fail("destroy", refused)
    with pytest.raises(DeviceError) as caught:
        await pool.aclose()
    assert caught.value.call == "destroy"
    assert backend.destroyed_ids == [1, 2, 3]
    await pool.aclose()


async def test_kernels_that_cannot_be_destroyed_are_reported_together() -> None:
    """Several errors come as a group, and join the block's own error."""
    backend = RecordingBackend()
    own = ValueError("the block's")
    with pytest.raises(ExceptionGroup) as caught:
        async with await load(backend):
            for nth in (1, 3):
                backend.fail("destroy", nth)
            raise own
    assert caught.value.exceptions[0] is own
    nested = caught.value.exceptions[1]
    assert isinstance(nested, ExceptionGroup)
    assert [type(error) for error in nested.exceptions] == [DeviceError, DeviceError]
    assert backend.destroyed_ids == [1, 2, 3]


async def test_a_pool_closed_during_a_launch_is_freed_when_that_is_done() -> None:
    """Its busy kernels go to the reaper, are named there, and are freed once."""
    backend = RecordingBackend()
    pool = await load(backend)
    scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
    backend.hold()
    await launch_pipeline(
        backend, attrs.evolve(LAUNCH, artifacts=pool, intermediates=scratch)
    )
    await pool.aclose()
    assert backend.destroyed_ids == []
    assert backend.reaper.held() == tuple(
        f"artifact {number} ({entry.target})" for number, entry in enumerate(ENTRIES, 1)
    )
    assert backend.live_objects()["artifacts"] == 3

    backend.step(count=1)
    assert backend.destroyed_ids == [1]
    backend.release()
    assert backend.destroyed_ids == [1, 2, 3]
    await scratch.aclose()
    assert not any(backend.live_objects().values())


async def test_a_pool_closed_while_a_launch_waits_leaves_that_launch_alone() -> None:
    """A launch with scratch of its own goes on to its end."""
    backend = RecordingBackend(is_holding=True)
    pool = await load(backend)
    request = attrs.evolve(LAUNCH, artifacts=pool)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(functools.partial(launch_pipeline, backend, request))
        while backend.sync_count == 0:
            await anyio.lowlevel.checkpoint()
        await pool.aclose()
        assert backend.destroyed_ids == []
        backend.release_all()
    assert backend.launch_count == 3
    assert not any(backend.live_objects().values())


async def test_one_pool_serves_launches_on_several_streams_at_once() -> None:
    """Concurrent launches, each with its own scratch and stream, share the kernels."""
    backend = RecordingBackend(is_holding=True)
    async with AsyncExitStack() as stack:
        pool = await stack.enter_async_context(await load(backend))
        requests = []
        for number in range(8):
            stream = backend.create_stream()
            stack.callback(backend.destroy, stream)
            scratch = await stack.enter_async_context(
                await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
            )
            requests.append(
                attrs.evolve(
                    LAUNCH,
                    artifacts=pool,
                    intermediates=scratch,
                    stream=stream,
                    results=(binding(3000 + number),),
                )
            )
        async with anyio.create_task_group() as tasks:
            for request in requests:
                tasks.start_soon(launch_pipeline, backend, request)

        assert backend.load_count == 3
        assert backend.launch_count == 24
        assert backend.sync_count == 0
        for request in requests:
            mine = [one for one in backend.launches if one.stream == request.stream]
            assert [one.loaded_id for one in mine] == [1, 2, 3]
            assert mine[0].buffer_ids[0] == request.results[0].handle.id
            assert request.intermediates is not None
            assert mine[1].buffer_ids == (
                request.intermediates[1].handle.id,
                request.intermediates[0].handle.id,
            )
        backend.release_all()
    assert not any(backend.live_objects().values())


def test_one_pool_serves_two_event_loops() -> None:
    """A pool belongs to its backend, not to the loop that it was loaded on."""
    backend = RecordingBackend()

    async def launch(pool: PipelineArtifactPool) -> None:
        await launch_pipeline(backend, attrs.evolve(LAUNCH, artifacts=pool))

    pool = anyio.run(load, backend, backend="asyncio")
    anyio.run(launch, pool, backend="trio")
    anyio.run(launch, pool, backend="asyncio")
    anyio.run(pool.aclose, backend="trio")
    assert backend.launch_count == 6
    assert not any(backend.live_objects().values())
