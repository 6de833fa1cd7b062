"""The benchmark for two GPUs computes what it says, here on the processor twice."""

from __future__ import annotations

import sys

import attrs
import pytest

from accy_async.artifact import ArtifactFormat
from accy_async.compiler.kernels import SCAN_TILE
from accy_async.session import open_session
from benchmarks.multigpu import __main__ as program
from benchmarks.multigpu import chains, scan, service

NAMES = ("cpu:0", "cpu:1")
FORMAT = ArtifactFormat.CPU_MACHINE_CODE


@pytest.mark.anyio
@pytest.mark.parametrize(
    "length", [2, 2 * SCAN_TILE, 10 * SCAN_TILE, 6 * SCAN_TILE + 14]
)
async def test_a_scan_in_two_parts_is_the_scan(length: int) -> None:
    async with open_session(devices=NAMES) as session:
        for devices in (NAMES[:1], NAMES):
            one = await scan.open_scan(session, devices, FORMAT, length)
            for _ in range(2):
                await one.run()
                assert await scan.check(session, one) == "right"
        one.arrays["out0"].free()
        backend = session.on(1).backend
        backend.fill_buffer(one.arrays["out1"].handle, bytes(4))
        assert "WRONG" in await scan.check(
            session, attrs.evolve(one, results=(one.arrays["x0"], one.results[1]))
        )


@pytest.mark.anyio
async def test_chains_are_on_their_devices_and_end() -> None:
    async with open_session(devices=NAMES) as session:
        plan = chains.chains(NAMES, FORMAT, 3, 64)
        assert session.locate(plan).used == (0, 1)
        await session.run(plan)


@pytest.mark.anyio
async def test_requests_are_answered_rightly() -> None:
    load = service.Load(name="tiny", runs=4, callers=2, given=4, length=8, kernels=3)
    assert len(await service.serve(load, NAMES, FORMAT, 2)) == 2


def test_a_section_that_fails_or_hangs_is_told_and_costs_no_other() -> None:
    assert program.run_apart("good", 30.0, sys.executable, "-c", "pass") == ""
    failing = program.run_apart("bad", 30.0, sys.executable, "-c", "exit(3)")
    assert failing == "ended with 3"
    hanging = (sys.executable, "-c", "input = __import__('signal').pause()")
    assert program.run_apart("hung", 0.3, *hanging) == "took longer than 0.3 s"


def test_sections_exist_and_others_are_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert program.main(["scam"]) == 2
    assert "scam; there are copies, chains, scan, service" in capsys.readouterr().out
    for name in program.LIMITS_S:
        module = __import__(f"benchmarks.multigpu.{name}", fromlist=["measure"])
        assert callable(module.measure)
