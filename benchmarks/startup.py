"""What it costs to import accy_async, to open a session and to load a pipeline."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time

from accy_async import DType, open_session
from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from benchmarks.measuring import Figure, in_rounds, show

_PROGRAM = """
import time
started = time.perf_counter()
import {modules}
print(time.perf_counter() - started)
"""


def import_ms(modules: str) -> float:
    """Milliseconds that importing modules takes in a new process."""
    result = subprocess.run(
        [sys.executable, "-c", _PROGRAM.format(modules=modules)],
        check=True,
        capture_output=True,
        text=True,
    )
    return float(result.stdout) * 1e3


async def _session_us(rounds: int) -> list[Figure]:
    taken: dict[str, list[float]] = {
        "open and leave a session": [],
        "the same, with one stream used": [],
        "load the scan pipeline's pool": [],
        "lease and return a stream": [],
    }
    opened, used, loaded, leased = taken.values()
    registry, pipeline = cpu_registry(), scan_pipeline(DType.F32)
    for _ in range(rounds):
        started = time.perf_counter()
        async with open_session("cpu"):
            pass
        opened.append((time.perf_counter() - started) * 1e6)
        started = time.perf_counter()
        async with open_session("cpu") as session, session.stream() as stream:
            buffer = session.backend.allocate_buffer(64)
            session.backend.write_buffer(buffer, bytes(64), stream=stream)
        used.append((time.perf_counter() - started) * 1e6)
        async with open_session("cpu") as session:
            started = time.perf_counter()
            async with await session.load_pipeline(pipeline, registry):
                loaded.append((time.perf_counter() - started) * 1e6)
            async with session.stream():
                pass
            started = time.perf_counter()
            async with session.stream():
                pass
            leased.append((time.perf_counter() - started) * 1e6)
    return [Figure(name, tuple(samples)) for name, samples in taken.items()]


def main(rounds: int = 11) -> None:
    peers = "numpy, trio, anyio, attrs"
    show(
        "Import in a new process",
        in_rounds(
            {
                peers: lambda: import_ms(peers),
                "accy_async": lambda: import_ms("accy_async"),
                "accy_async.compiler.kernels.catalogue": lambda: import_ms(
                    "accy_async.compiler.kernels.catalogue"
                ),
            },
            rounds,
        ),
        unit="ms",
        baseline=peers,
    )
    show("Opening and loading", asyncio.run(_session_us(3 * rounds)), unit="us")


if __name__ == "__main__":
    main()
