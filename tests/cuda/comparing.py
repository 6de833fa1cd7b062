"""Plans as CUDA graphs that are carried out on the host, and node by node beside."""

from __future__ import annotations

from collections.abc import Callable

import anyio

from accy_async.backends.array import DeviceArray
from accy_async.graph import LaunchGraphPlan, LaunchOptions
from accy_async.session import Session, open_session
from tests.cuda.playing import words
from tests.cuda.test_loops import KERNELS
from tests.graphs.limits import Outcome, outcome
from tests.graphs.programs import Kernels, cpu_kernels

__all__ = ["ALWAYS", "PLAIN", "compare"]

ALWAYS = LaunchOptions(lowering="always")
PLAIN = LaunchOptions(lowering="never")


async def _read(session: Session, array: DeviceArray) -> list[int]:
    """What an array holds on the device that plays: it copies nothing but in graphs."""
    address = session.backend.buffer_address(array.handle)
    return [int(word) for word in words(address, array.size)]


def compare(make: Callable[[Kernels], LaunchGraphPlan], times: int = 2) -> Outcome:
    """Run a plan lowered, each time with the outcome that it has node by node.

    That has one stream, so that what is beside a loop in a turn is done before it.
    """

    async def plainly() -> Outcome:
        async with open_session("cpu", max_streams=1) as session:
            return (await outcome(session, make(cpu_kernels()), PLAIN))[0]

    async def main(expected: Outcome) -> None:
        plan = make(KERNELS)
        async with open_session("cuda") as session:
            for _ in range(times):
                found, run = await outcome(session, plan, ALWAYS, _read)
                assert run.statistics().is_lowered
                assert found.errors == expected.errors
                assert found.states == expected.states
                assert found.arrays == expected.arrays
        assert not any(session.live_objects().values())

    expected = anyio.run(plainly)
    anyio.run(main, expected)
    return expected
