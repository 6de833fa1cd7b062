"""``python -m benchmarks.multigpu [SECTION ...]``: all sections, or those named.

* ``copies``: 4 MiB to 1 GiB from GPU to GPU, against the driver's own call.
* ``chains``: two independent chains of kernels on two GPUs, against one on one.
* ``scan``: 2**30 elements split over two GPUs, against all of them on one.
* ``service``: many runs at a time, placed on two GPUs, against one.

It needs two GPUs, and says so where there are none. Each section is a process of its
own with a limit of time: one that fails, hangs or loses a device costs the others
nothing.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import traceback

import anyio

from accy_async.backends.catalogue import gpu_names
from accy_async.errors import BackendUnavailable

LIMITS_S = {"copies": 60.0, "chains": 40.0, "scan": 60.0, "service": 60.0}
"""The sections in their order, and how long each may take, in seconds."""

ROUNDS = 15
HERE = "--here"


def main(arguments: list[str]) -> int:
    """Run the sections; 1 where one failed."""
    here = HERE in arguments
    names = [name for name in arguments if name != HERE]
    unknown = [name for name in names if name not in LIMITS_S]
    if unknown:
        known = ", ".join(LIMITS_S)
        print(f"no such section: {', '.join(unknown)}; there are {known}")
        return 2
    if here:
        return max(run_here(name) for name in names or LIMITS_S)
    try:
        count = len(gpu_names())
    except BackendUnavailable as error:
        print(f"two GPUs are needed: {error}")
        return 0
    if count < 2:
        print("two GPUs are needed: there is one")
        return 0
    failed = [
        f"{name} {why}"
        for name in names or LIMITS_S
        if (why := run_apart(name, LIMITS_S[name]))
    ]
    for one in failed:
        print(f"FAILED: {one}")
    return int(bool(failed))


def run_here(name: str) -> int:
    """Run a section in this process; 1 where it fails, which is told."""
    section = importlib.import_module(f"benchmarks.multigpu.{name}")
    try:
        anyio.run(section.measure, ROUNDS)
    except Exception:  # noqa: BLE001 - all of it is reported
        traceback.print_exc()
        return 1
    return 0


def run_apart(name: str, limit_s: float, *command: str) -> str:
    """Run a section in a process of its own; how it failed, or nothing.

    What it has printed until then stays. Where it takes longer than its limit, it is
    killed with all that it started.
    """
    command = command or (
        *(sys.executable, "-u", "-m"),
        *("benchmarks.multigpu", HERE, name),
    )
    sys.stdout.flush()
    process = subprocess.Popen(command, start_new_session=True)
    try:
        code = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return f"took longer than {limit_s:g} s"
    return f"ended with {code}" if code else ""


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
