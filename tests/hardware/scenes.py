"""What people do with a device, for tests that look at what is left of it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np

from accy_async.artifact import ArtifactFormat
from accy_async.backends import Backend
from accy_async.compiler.kernels import reference_scan
from accy_async.dtypes import DType, ScalarArgument
from accy_async.fragment import CompiledFragment, compile_fragment
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions
from accy_async.session import open_session
from tests.graphs.programs import library_kernels
from tests.hardware.kinds import Hardware
from tests.harness.scanning import scan_in
from tests.seeds import test_fragment_executor as seed

__all__ = ["SCENES", "Scene", "calls", "replays", "runs", "scans"]

LENGTH = 500

Scene = Callable[[Hardware, Backend], Coroutine[Any, Any, None]]


@functools.cache
def plan(format: ArtifactFormat) -> LaunchGraphPlan:
    """In, twice it in two steps, out."""
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", DType.U32, LENGTH), b.scratch("y", DType.U32, LENGTH)
    n = (ScalarArgument.u32(LENGTH),)
    b.copy_in(b.host("given", DType.U32, LENGTH), x)
    b.fill(y, 0)
    add = library_kernels(format).add
    b.kernel(add, [y.write, x.read, x.read], n, name="twice")
    b.copy_out(y, b.host("found", DType.U32, LENGTH))
    return b.build()


@functools.cache
def looping_plan(format: ArtifactFormat) -> LaunchGraphPlan:
    """In, three times doubled by turns in two buffers, out; another kernel beside."""
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", DType.U32, LENGTH), b.scratch("y", DType.U32, LENGTH)
    aside = b.scratch("aside", DType.U32, LENGTH)
    n = (ScalarArgument.u32(LENGTH),)
    add = library_kernels(format).add
    b.fill(aside, 7)
    b.kernel(add, [aside.read_write, aside.read, aside.read], n)
    b.copy_in(b.host("given", DType.U32, LENGTH), x)
    with b.loop(count=3, carries=[(x, y)]):
        b.kernel(add, [y.write, x.read, x.read], n, name="twice")
    b.copy_out(x, b.host("found", DType.U32, LENGTH))
    return b.build()


async def runs(hardware: Hardware, backend: Backend) -> None:
    """A plan, by its nodes, recorded, with a node awaited, with another buffer."""
    given = np.arange(LENGTH, dtype=np.uint32)
    async with open_session(backend) as session:
        arrays = [session.allocate(LENGTH, DType.U32) for _ in range(2)]
        for number in range(4):
            found = np.zeros(LENGTH, np.uint32)
            bindings = {"given": given, "found": found, "x": arrays[number == 3]}
            run = session.start(plan(hardware.format), bindings)
            if number == 1:
                await run["twice"]
            await run
            hardware.check(found, 2 * given)


async def replays(hardware: Hardware, backend: Backend) -> None:
    """A plan with a loop as a device graph, again, and with another buffer."""
    given = np.arange(LENGTH, dtype=np.uint32)
    async with open_session(backend) as session:
        arrays = [session.allocate(LENGTH, DType.U32) for _ in range(2)]
        for number in range(3):
            found = np.zeros(LENGTH, np.uint32)
            bindings = {"given": given, "found": found, "x": arrays[number == 2]}
            run = session.start(
                looping_plan(hardware.format),
                bindings,
                LaunchOptions(lowering="always"),
            )
            assert (await run).is_lowered
            hardware.check(found, 8 * given)


async def scans(hardware: Hardware, backend: Backend) -> None:
    """A pipeline of three kernels, loaded and launched twice."""
    data = np.random.default_rng(5).normal(size=LENGTH).astype(np.float32)
    async with open_session(backend) as session:
        found = await scan_in(session, data, times=2)
    hardware.check(found, reference_scan(data))


_compiled: dict[str, CompiledFragment] = {}


async def calls(hardware: Hardware, backend: Backend) -> None:
    """A fragment, loaded and called twice."""
    name = hardware.name
    if name not in _compiled:
        _compiled[name] = await compile_fragment(backend, seed.add_module("add"))
    async with (
        open_session(backend) as session,
        await session.load_fragment(_compiled[name]) as fragment,
    ):
        for _ in range(2):
            hardware.check(await fragment(seed.LHS, seed.RHS), seed.LHS + seed.RHS)


SCENES: tuple[Scene, ...] = (runs, replays, scans, calls)
