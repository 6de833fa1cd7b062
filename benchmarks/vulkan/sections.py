"""Launching, replaying and waking through Vulkan, beside CUDA and wgpu-py, in one run.

* ``launch``: host time of a launch, submitted alone and together with others;
* ``replay``: an awaited replay of 10, 100 and 1000 launches, by the node;
* ``wake``: from a launch until the task that awaits it goes on.

Every way launches the same kernel (an addition to one word, in place) and has its
turn in every round, on asyncio and on trio. What is not installed, or not here, is
named and left out. The bare driver is called through the same binding as ours, with
commands that were recorded before. wgpu-py has nothing to replay: it encodes anew.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

import anyio
import attrs
import numpy as np

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.backends import Backend, BufferBinding, LaunchRequest
from accy_async.backends.array import DeviceArray
from accy_async.backends.launch import PreparedLaunch
from accy_async.backends.vulkan import VulkanBackend
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import BackendUnavailable
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.session import Session, open_session
from benchmarks.measuring import Figure, show
from benchmarks.vulkan.peers import Bare, Wgpu

__all__ = ["SECTIONS", "Settings"]

U32 = DType.U32
ONE = ScalarArgument.u32(1)
CHAINS = {"one chain": 1, "eight chains": 8}
SIZES = (10, 100, 1000)
TOGETHER = 256
"""Launches that are submitted together."""

Sample = Callable[[], Awaitable[float]]


@attrs.frozen
class Settings:
    """How much is measured.

    Attributes:
        device: which Vulkan device, as `VulkanBackend` takes it.
        rounds: how often each way has its turn, on each loop.
        limit_s: after so long no round of a table is begun any more.
        loops: the loops.
    """

    device: int | str | None = None
    rounds: int = 11
    limit_s: float = 20.0
    loops: tuple[str, ...] = ("asyncio", "trio")


class Ours:
    """A session on a device, with the kernel."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self.backend: Backend = session.backend
        format = self.backend.default_format
        target = "accy.kernel.add"
        registry = library_registry(format, dtype=U32, targets=[target])
        self.entry: KernelCallArtifact = registry.get(target, 1, format)
        self.one = session.allocate(1, U32)
        self.backend.write_buffer(self.one.handle, np.ones(1, np.uint32))
        self.stream = self.backend.create_stream()
        self._words: list[DeviceArray] = []  # freed when nobody has them
        request = self.entry.artifact_request()
        self._artifact = self.backend.create_artifact(request)
        self._loaded = self.backend.load_artifact(self._artifact)

    def close(self) -> None:
        self.backend.destroy(self.stream)
        self.backend.destroy(self._loaded)

    def prepared(self, count: int = 1) -> list[PreparedLaunch]:
        """Launches, each on a word of its own."""
        found = []
        for _ in range(count):
            word = self.session.allocate(1, U32)
            self._words.append(word)
            buffers = [
                BufferBinding(handle=one.handle, access=access)
                for one, access in (
                    (word, "write_only"),
                    (word, "read_only"),
                    (self.one, "read_only"),
                )
            ]
            request = LaunchRequest(
                artifact=self._artifact,
                loaded=self._loaded,
                buffers=tuple(buffers),
                scalars=(ONE,),
                geometry=self.entry.launch.geometry((ONE,)),
            )
            found.append(self.backend.prepare_launch(request))
        return found

    def plan(
        self, count: int, chains: int
    ) -> tuple[LaunchGraphPlan, dict[str, object]]:
        """So many launches as so many chains, and their bindings."""
        b = LaunchGraphBuilder()
        names = [f"w{i}" for i in range(chains)]
        words, one = [b.buffer(name, U32, 1) for name in names], b.buffer("one", U32, 1)
        for number in range(count):
            word = words[number % chains]
            b.kernel(self.entry, [word.read_write, word.read_write, one.read], [ONE])
        bindings: dict[str, object] = {n: self.session.allocate(1, U32) for n in names}
        return b.build(), {**bindings, "one": self.one}


class World:
    """Every way that there is here, and why there are no others."""

    def __init__(self) -> None:
        self.ours: dict[str, Ours] = {}
        self.absent: dict[str, str] = {}
        self.bare: tuple[Bare, Ours] | None = None
        self.device = ""

    def wgpu(self, chains: int = 1) -> Wgpu | None:
        """wgpu-py on the same device, where it can be had."""
        try:
            return Wgpu(self.device, chains)
        except Exception as error:  # noqa: BLE001 - a peer's, told and left out
            self.absent["wgpu-py"] = f"left out: {error}"
            return None


@asynccontextmanager
async def opened(settings: Settings) -> AsyncIterator[World]:
    """Sessions on the Vulkan device, once more for the bare driver, and on CUDA."""
    world = World()
    async with AsyncExitStack() as stack:

        async def open_on(backend: Backend | str) -> Ours:
            ours = Ours(await stack.enter_async_context(open_session(backend)))
            stack.callback(ours.close)
            return ours

        for name in ("Vulkan", "bare Vulkan"):
            backend = VulkanBackend(settings.device)
            stack.callback(backend.close)
            ours = await open_on(backend)
            if name == "Vulkan":
                world.ours[name] = ours
                world.device = backend.capabilities.identity.name
            else:
                await backend.wait_device()
                world.bare = Bare(backend), ours
        try:
            world.ours["CUDA"] = await open_on("cuda")
        except BackendUnavailable as error:
            world.absent["CUDA"] = f"left out: {str(error).partition(';')[0]}"
        yield world


def microseconds(call: Callable[[], object], count: int) -> float:
    """Of one of so many calls."""
    begun = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - begun) / count * 1e6


async def in_turns(
    settings: Settings, ways: Mapping[str, Sample], taken: dict[str, list[float]]
) -> None:
    """Let every way take a sample in each round; the first is thrown away."""
    until = time.monotonic() + settings.limit_s
    for number in range(settings.rounds + 1):
        for name, sample in ways.items():
            value = await sample()
            if number:
                taken.setdefault(name, []).append(value)
        if number and time.monotonic() > until:
            return


def table(
    title: str, taken: dict[str, list[float]], absent: Mapping[str, str], base: str
) -> None:
    figures = [Figure(name, tuple(samples)) for name, samples in taken.items()]
    show(title, figures, unit="us", baseline=base)
    for name, why in absent.items():
        print(f"{name}: {why}")


# Launching


async def _launching(settings: Settings, taken: dict[str, list[float]]) -> World:
    async with opened(settings) as world:
        ways: dict[str, Sample] = {}
        assert world.bare is not None
        bare, owner = world.bare
        alone = bare.record([owner.prepared()])

        async def bare_alone() -> float:
            found = microseconds(alone, TOGETHER)
            bare.wait()
            return found

        ways["bare vkQueueSubmit, each alone"] = bare_alone
        for name, ours in world.ours.items():
            prepared = ours.prepared() * TOGETHER

            async def ours_alone(
                ours: Ours = ours, prepared: list[PreparedLaunch] = prepared
            ) -> float:
                one, stream, submit = (
                    prepared[0],
                    ours.stream,
                    ours.backend.submit_launch,
                )
                found = microseconds(lambda: submit(one, stream), TOGETHER)
                await ours.backend.wait_stream(stream)
                return found

            async def ours_together(
                ours: Ours = ours, prepared: list[PreparedLaunch] = prepared
            ) -> float:
                submit = ours.backend.submit_launches
                found = microseconds(lambda: submit(prepared, ours.stream), 1)
                await ours.backend.wait_stream(ours.stream)
                return found / TOGETHER

            ways[f"ours on {name}, each alone"] = ours_alone
            ways[f"ours on {name}, {TOGETHER} together"] = ours_together
        wgpu = world.wgpu()
        if wgpu is not None:

            async def wgpu_alone() -> float:
                found = microseconds(wgpu.submit, TOGETHER // 4)
                wgpu.wait()
                return found

            async def wgpu_together() -> float:
                found = microseconds(lambda: wgpu.submit(TOGETHER), 1)
                wgpu.wait()
                return found / TOGETHER

            ways["wgpu-py, each alone"] = wgpu_alone
            ways[f"wgpu-py, {TOGETHER} in a pass"] = wgpu_together
        await in_turns(settings, ways, taken)
        return world


def launch(settings: Settings) -> None:
    """Host time of a launch."""
    taken: dict[str, list[float]] = {}
    for loop in settings.loops:
        world = anyio.run(_launching, settings, taken, backend=loop)
    table("A launch, host time", taken, world.absent, "bare vkQueueSubmit, each alone")


# Replaying


async def _per_node(run: Callable[[], Awaitable[object]], count: int) -> float:
    begun = time.perf_counter()
    await run()
    return (time.perf_counter() - begun) / count * 1e6


async def _replaying(
    settings: Settings, taken: dict[str, list[float]], count: int, chains: int
) -> World:
    async with opened(settings) as world:
        ways: dict[str, Sample] = {}
        assert world.bare is not None
        bare, owner = world.bare
        launches = owner.prepared(chains)
        levels = [
            launches[: min(chains, count - first)] for first in range(0, count, chains)
        ]
        replay = bare.record(levels)

        async def bare_replay() -> float:
            begun = time.perf_counter()
            replay()
            bare.wait()
            return (time.perf_counter() - begun) / count * 1e6

        ways["bare Vulkan, recorded"] = bare_replay
        for name, ours in world.ours.items():
            plan, bindings = ours.plan(count, chains)
            prepared = await ours.session.prepare(plan, bindings)
            assert prepared.is_lowered, prepared.obstacles
            by_node = partial(
                ours.session.run, plan, bindings, LaunchOptions(lowering="never")
            )
            ways[f"ours on {name}, prepared"] = partial(_per_node, prepared.run, count)
            ways[f"ours on {name}, node by node"] = partial(_per_node, by_node, count)
        wgpu = world.wgpu(chains)
        if wgpu is not None:

            async def wgpu_replay() -> float:
                begun = time.perf_counter()
                wgpu.submit(count)
                wgpu.wait()
                return (time.perf_counter() - begun) / count * 1e6

            ways["wgpu-py, encoded anew"] = wgpu_replay
        await in_turns(settings, ways, taken)
        return world


def replay(settings: Settings) -> None:
    """An awaited replay, by the node."""
    for title, chains in CHAINS.items():
        for count in SIZES:
            taken: dict[str, list[float]] = {}
            for loop in settings.loops:
                world = anyio.run(
                    _replaying, settings, taken, count, chains, backend=loop
                )
            table(
                f"A node of a replay of {count}, {title}, awaited",
                taken,
                world.absent,
                "bare Vulkan, recorded",
            )


# Waking

_WAKES = 100


async def _waking(
    settings: Settings, taken: dict[str, list[float]], loop: str
) -> World:
    async with opened(settings) as world:
        ways: dict[str, Sample] = {}
        assert world.bare is not None
        bare, owner = world.bare
        submit = bare.record([owner.prepared()])

        def bare_once() -> None:
            submit()
            bare.wait()

        async def bare_wake() -> float:
            return microseconds(bare_once, _WAKES)

        ways["bare Vulkan, submit and wait"] = bare_wake
        for name, ours in world.ours.items():
            (prepared,) = ours.prepared()

            async def ours_wake(
                ours: Ours = ours, prepared: PreparedLaunch = prepared
            ) -> float:
                backend, stream = ours.backend, ours.stream
                begun = time.perf_counter()
                for _ in range(_WAKES):
                    backend.submit_launch(prepared, stream)
                    await backend.wait_stream(stream)
                return (time.perf_counter() - begun) / _WAKES * 1e6

            ways[f"ours on {name}, {loop}"] = ours_wake
        wgpu = world.wgpu()
        if wgpu is not None:

            def wgpu_once() -> None:
                wgpu.submit()
                wgpu.wait()

            async def wgpu_wake() -> float:
                return microseconds(wgpu_once, _WAKES // 4)

            ways["wgpu-py, submit and read 4 bytes"] = wgpu_wake
        await in_turns(settings, ways, taken)
        return world


def wake(settings: Settings) -> None:
    """From a launch until who awaits it goes on."""
    taken: dict[str, list[float]] = {}
    for loop in settings.loops:
        world = anyio.run(_waking, settings, taken, loop, backend=loop)
    table("Launch and await", taken, world.absent, "bare Vulkan, submit and wait")


SECTIONS: dict[str, Callable[[Settings], None]] = {
    "launch": launch,
    "replay": replay,
    "wake": wake,
}
