"""The pipeline seed's tests again, on devices that run what is launched.

The chain is the library's scan of 5000 elements in three kernels, whose results are
exact; the seed's figures of a recording device are in tests/seeds.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat, ScalarArgument
from accy_async.backends import BufferBinding, LoadedArtifact
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.errors import (
    AccyError,
    InvalidArtifact,
    LaunchArgumentMismatch,
    OutOfMemory,
)
from accy_async.pipeline import (
    KernelCallPipeline,
    KernelCallRegistry,
    PipelineLaunch,
    RuntimeScalarBound,
    allocate_pipeline_intermediates,
    intermediate_byte_size,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.hardware.kinds import Hardware

pytestmark = pytest.mark.anyio

LENGTH = 5000
ARGS = (ScalarArgument.u32(LENGTH),)
PIPELINE = scan_pipeline()
DATA = np.random.default_rng(9).normal(size=LENGTH).astype(np.float32)


@functools.cache
def registry(format: ArtifactFormat) -> KernelCallRegistry:
    return library_registry(format, targets=[stage.target for stage in PIPELINE.stages])


class World:
    """A device, and a launch of the chain there."""

    def __init__(
        self, hardware: Hardware, memory_limit_bytes: int | None = None
    ) -> None:
        self.hardware = hardware
        self.format = hardware.format
        self.registry = registry(hardware.format)
        self.backend = hardware.open(memory_limit_bytes)
        self.operand, self.result = (
            BufferBinding(
                handle=self.backend.allocate_buffer(4 * LENGTH), access="read_write"
            )
            for _ in range(2)
        )
        self.backend.write_buffer(self.operand.handle, DATA)
        self.backend.fill_buffer(self.result.handle, b"\0")
        self.launch = PipelineLaunch(
            pipeline=PIPELINE,
            registry=self.registry,
            format=self.format,
            operands=(self.operand,),
            results=(self.result,),
            runtime_scalar_arguments=ARGS,
        )

    async def run(self, **changes: Any) -> None:
        """Launch the chain, with changes; nothing of it is left, whatever it does."""
        mine = self.backend.live_objects()
        try:
            await launch_pipeline(self.backend, attrs.evolve(self.launch, **changes))
            await self.backend.wait_default_stream()
        finally:
            assert self.backend.live_objects() == mine

    async def found(self) -> np.ndarray:
        """What the result holds; 0 again afterwards."""
        out = np.empty(LENGTH, np.float32)
        self.backend.read_buffer(self.result.handle, out)
        self.backend.fill_buffer(self.result.handle, b"\0")
        await self.backend.wait_default_stream()
        return out

    async def check_right(self) -> None:
        np.testing.assert_array_equal(await self.found(), reference_scan(DATA))

    async def check_untouched(self) -> None:
        assert not (await self.found()).any()

    def close(self) -> None:
        self.backend.destroy(self.operand.handle)
        self.backend.destroy(self.result.handle)
        self.hardware.close(self.backend)


@pytest.fixture
def world(hardware: Hardware) -> Iterator[World]:
    world = World(hardware)
    yield world
    world.close()


async def test_derives_intermediates_scalars_and_geometry_per_stage(
    world: World,
) -> None:
    await world.run()
    await world.check_right()


@pytest.mark.parametrize("count", [0, 1])
async def test_scans_nothing_and_one_element(world: World, count: int) -> None:
    """C54: as everywhere else."""
    args = (ScalarArgument.u32(count),)
    await world.run(runtime_scalar_arguments=args)
    found = await world.found()
    assert found[:count].tolist() == DATA[:count].tolist()
    assert not found[count:].any()


async def test_rejects_what_does_not_fit_before_any_launch(world: World) -> None:
    bounded = attrs.evolve(
        PIPELINE,
        runtime_scalar_bounds=(RuntimeScalarBound(argument_index=0, max_u32=4999),),
    )
    for changes in (
        {"operands": ()},
        {"runtime_scalar_arguments": ()},
        {"pipeline": bounded},
    ):
        with pytest.raises(LaunchArgumentMismatch):
            await world.run(**changes)
    with pytest.raises(LaunchArgumentMismatch):
        await allocate_pipeline_intermediates(world.backend, bounded, ARGS)
    lacking = KernelCallRegistry(list(world.registry.entries)[:1])
    with pytest.raises(InvalidArtifact):
        await world.run(registry=lacking)
    await world.check_untouched()


@pytest.fixture
def full_world(hardware: Hardware) -> Iterator[World]:
    """One with room for the first of the intermediates, and for no more."""
    first = intermediate_byte_size(PIPELINE.intermediates[0], ARGS)
    world = World(hardware, memory_limit_bytes=2 * 4 * LENGTH + first)
    yield world
    world.close()


async def test_releases_intermediates_after_partial_allocation_failure(
    full_world: World,
) -> None:
    assert len(PIPELINE.intermediates) > 1
    with pytest.raises(OutOfMemory):
        await full_world.run()
    await full_world.check_untouched()


async def test_releases_artifacts_after_staged_load_failure(world: World) -> None:
    """The second kernel is none at all; of a launch and of a pool alike."""
    entries = list(world.registry.entries)
    second = next(
        n for n, one in enumerate(entries) if one.target == PIPELINE.stages[1].target
    )
    entries[second] = attrs.evolve(entries[second], payload=world.hardware.no_kernel)
    broken = KernelCallRegistry(entries)
    with pytest.raises(InvalidArtifact, match=world.hardware.refusal):
        await world.run(registry=broken)
    with pytest.raises(InvalidArtifact, match=world.hardware.refusal):
        await load_pipeline_artifacts(world.backend, PIPELINE, broken, world.format)
    await world.backend.wait_default_stream()


async def test_launches_from_a_pool_and_provided_intermediates(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many there are, nothing is loaded or allocated for them."""
    backend = world.backend
    async with (
        await load_pipeline_artifacts(
            backend, PIPELINE, world.registry, world.format
        ) as pool,
        await allocate_pipeline_intermediates(backend, PIPELINE, ARGS) as provided,
    ):
        for pool_entry, stage in zip(pool.entries, PIPELINE.stages, strict=True):
            found = world.registry.get(stage.target, stage.version, world.format)
            artifact = pool_entry.artifact
            assert artifact.scalar_argument_count == found.runtime_scalar_argument_count
        calls: list[str] = []
        for name in ("_load", "_allocate"):
            monkeypatch.setattr(backend, name, lambda *_, name=name: calls.append(name))
        for _ in range(3):
            await world.run(artifacts=pool, intermediates=provided)
            await world.check_right()
        assert calls == []
        with pytest.raises(LaunchArgumentMismatch):
            await world.run(artifacts=pool, intermediates=tuple(provided)[:1])
        small = attrs.evolve(provided[0], byte_size=4)
        for wrong in (
            (small, *tuple(provided)[1:]),
            (provided[0],) * len(provided),
            (world.operand, *tuple(provided)[1:]),
        ):
            with pytest.raises(LaunchArgumentMismatch):
                await world.run(artifacts=pool, intermediates=wrong)
        await world.check_untouched()


@pytest.mark.parametrize(
    "other",
    [
        attrs.evolve(PIPELINE, target="accy.kernel.test.other_pipeline"),
        attrs.evolve(PIPELINE, version=9),
    ],
    ids=["renamed", "reversioned"],
)
async def test_rejects_mismatched_artifact_pools(
    world: World, other: KernelCallPipeline
) -> None:
    async with await load_pipeline_artifacts(
        world.backend, PIPELINE, world.registry, world.format
    ) as pool:
        with pytest.raises(LaunchArgumentMismatch):
            await world.run(pipeline=other, artifacts=pool)
        metal = ArtifactFormat.METAL_MSL
        changed = [attrs.evolve(one, format=metal) for one in world.registry.entries]
        with pytest.raises(LaunchArgumentMismatch):
            await world.run(
                registry=KernelCallRegistry(changed), format=metal, artifacts=pool
            )
    await world.check_untouched()


async def test_pool_destroys_what_it_loaded(world: World) -> None:
    pool = await load_pipeline_artifacts(
        world.backend, PIPELINE, world.registry, world.format
    )
    loaded: list[LoadedArtifact] = [entry.loaded for entry in pool.entries]
    await pool.aclose()
    assert not any(world.backend.is_alive(one) for one in loaded)
    with pytest.raises(AccyError):
        await world.run(artifacts=pool)
