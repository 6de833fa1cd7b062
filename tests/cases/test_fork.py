"""C52: a backend of the parent process is of no use in a forked child."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

PROGRAM = """
import os, sys, threading, warnings
import anyio
import accy_async.backends  # importing opens nothing
from accy_async.errors import ForkedProcess
from accy_async.pipeline import launch_pipeline, load_pipeline_artifacts
from tests.harness.scan_chain import LAUNCH, PIPELINE, PTX, REGISTRY
from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend

warnings.simplefilter("ignore", DeprecationWarning)  # 3.12: threads and fork
make = {"recording": RecordingBackend, "cpu": CpuBackend}[sys.argv[1]]


def use(backend):
    buffer = backend.allocate_buffer(64)
    backend.write_buffer(buffer, bytes(64))
    anyio.run(backend.wait_device)
    backend.destroy(buffer)


def in_child(check):
    child = os.fork()
    if child == 0:
        status = 1
        try:
            check()
            status = 0
        finally:
            sys.stdout.flush()
            os._exit(status)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def fresh():
    backend = make()
    use(backend)
    backend.close()


in_child(fresh)  # import, fork, open in the child

backend = make()
kept = backend.allocate_buffer(64)
use(backend)
freed = backend.destroy_count if hasattr(backend, "destroy_count") else None


def misuse():
    for call in (
        lambda: backend.allocate_buffer(8),
        lambda: anyio.run(backend.wait_device),
        lambda: backend.create_stream(),
    ):
        try:
            call()
        except ForkedProcess as error:
            assert "fork" in str(error) and "spawn" in str(error), error
        else:
            raise AssertionError("a parent's backend was used")
    assert not backend.is_healthy
    backend.destroy(kept)
    backend.close()
    assert freed is None or backend.destroy_count == freed
    fresh()


held, go_on = threading.Event(), threading.Event()


def hold():
    with backend._lock:
        held.set()
        go_on.wait()


holder = threading.Thread(target=hold)  # whom the child never sees let go
holder.start()
held.wait()
in_child(misuse)
go_on.set()
holder.join()
assert backend.is_healthy and backend.is_alive(kept)
use(backend)
if sys.argv[1] == "recording":
    async def launch():
        await launch_pipeline(backend, LAUNCH)
    anyio.run(launch)
    assert backend.launch_count == 3
backend.close()
assert not any(backend.live_objects().values())
print("done")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
@pytest.mark.parametrize("backend", ["recording", "cpu"])
def test_c52_a_forked_child_cannot_use_or_harm_its_parents_backend(
    backend: str,
) -> None:
    """C52: use in the child raises and names fork and spawn; it frees nothing.

    A backend opened in the child works, and the parent's goes on unharmed.
    """
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, backend],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.stderr == ""
    assert result.stdout.endswith("done\n")
    assert result.returncode == 0
