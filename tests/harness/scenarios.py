"""Every public pipeline operation as a scenario that can be run again and again."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio.lowlevel
import attrs

from accy_async.backends import Handle, RecordingBackend, StreamHandle
from accy_async.pipeline import (
    PipelineArtifactPool,
    PipelineIntermediates,
    PipelineLaunch,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.scan_chain import ARGS, LAUNCH, PIPELINE, PTX, REGISTRY

__all__ = ["LAUNCHES", "SCENARIOS", "Scenario", "World"]


@attrs.define(kw_only=True)
class World:
    """A backend, and what the caller owns there while an operation runs."""

    backend: RecordingBackend
    pool: PipelineArtifactPool | None = None
    scratch: PipelineIntermediates | None = None
    stream: StreamHandle | None = None

    @property
    def request(self) -> PipelineLaunch:
        """A launch with all that the caller has."""
        return attrs.evolve(
            LAUNCH,
            artifacts=self.pool,
            intermediates=self.scratch,
            stream=self.stream,
        )

    def callers(self) -> list[Handle]:
        """The handles of everything that is the caller's."""
        handles: list[Handle] = []
        if self.pool is not None:
            handles += [entry.loaded for entry in self.pool.entries]
        if self.scratch is not None:
            handles += [binding.handle for binding in self.scratch]
        if self.stream is not None:
            handles.append(self.stream)
        return handles

    def check_untouched(self) -> None:
        """Assert that the caller's objects are alive, and that there are no others."""
        handles = self.callers()
        assert all(self.backend.is_alive(handle) for handle in handles)
        assert sum(self.backend.live_objects().values()) == len(handles)

    async def aclose(self) -> None:
        """Close what is the caller's, and assert that nothing is left."""
        self.backend.release_all()
        if self.pool is not None:
            await self.pool.aclose()
        if self.scratch is not None:
            await self.scratch.aclose()
        if self.stream is not None:
            self.backend.destroy(self.stream)
        assert not any(self.backend.live_objects().values())
        assert len(self.backend.reaper) == 0


@attrs.frozen(kw_only=True)
class Scenario:
    """An operation, and the world it runs in.

    Attributes:
        name: for test ids.
        open: makes a new world.
        act: the operation.
        launches: how many launches one run submits.
        is_held: True where the device finishes only once somebody waits.
    """

    name: str
    open: Callable[[], Awaitable[World]]
    act: Callable[[World], Coroutine[Any, Any, object]]
    launches: int
    is_held: bool = False

    async def start(self) -> World:
        """A new world, holding if that is what it is for."""
        world = await self.open()
        if self.is_held:
            world.backend.hold_all()
        return world

    async def check_works(self, world: World) -> None:
        """Assert that the operation succeeds now, then close the world."""
        world.backend.release_all()
        before = world.backend.launch_count
        await self.act(world)
        assert world.backend.launch_count == before + self.launches
        world.check_untouched()
        await world.aclose()


async def _load_pool(world: World) -> None:
    async with await load_pipeline_artifacts(world.backend, PIPELINE, REGISTRY, PTX):
        await anyio.lowlevel.checkpoint()


async def _allocate(world: World) -> None:
    async with await allocate_pipeline_intermediates(world.backend, PIPELINE, ARGS):
        await anyio.lowlevel.checkpoint()


async def _launch(world: World) -> None:
    await launch_pipeline(world.backend, world.request)


async def _empty_world() -> World:
    return World(backend=RecordingBackend())


def _launch_world(*, pool: bool, scratch: bool, stream: bool) -> Callable[..., Any]:
    async def open_world() -> World:
        backend = RecordingBackend()
        world = World(backend=backend)
        if pool:
            world.pool = await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX)
        if scratch:
            world.scratch = await allocate_pipeline_intermediates(
                backend, PIPELINE, ARGS
            )
        if stream:
            world.stream = backend.create_stream()
        return world

    return open_world


def _launch_scenario(
    *, pool: bool, scratch: bool, stream: bool, is_held: bool
) -> Scenario:
    words = [
        "launch",
        "callers_pool" if pool else "own_pool",
        "callers_scratch" if scratch else "own_scratch",
        "stream" if stream else "default_stream",
        *(["held"] if is_held else []),
    ]
    return Scenario(
        name="-".join(words),
        open=_launch_world(pool=pool, scratch=scratch, stream=stream),
        act=_launch,
        launches=3,
        is_held=is_held,
    )


LAUNCHES = tuple(
    _launch_scenario(pool=pool, scratch=scratch, stream=stream, is_held=is_held)
    for pool in (False, True)
    for scratch in (False, True)
    for stream in (False, True)
    for is_held in (False, True)
)

SCENARIOS = (
    Scenario(name="load_pool", open=_empty_world, act=_load_pool, launches=0),
    Scenario(name="allocate_scratch", open=_empty_world, act=_allocate, launches=0),
    *LAUNCHES,
)
