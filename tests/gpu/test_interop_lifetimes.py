"""What is lent is given back, whatever others do meanwhile; nothing is left of it."""

from __future__ import annotations

import contextlib
import gc
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import numpy as np
import pytest

import accy_async
from accy_async.interop import dlpack
from tests.gpu.sessions import until

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

N = 1 << 16


async def test_nothing_is_left_of_capsules(torch: Any) -> None:
    gc.collect()
    before = dlpack.outstanding()
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(np.zeros(8, np.float32))
        capsule = array.__dlpack__(stream=1)
        del capsule
        kept = [torch.from_dlpack(array) for _ in range(100)]
        del kept
        gc.collect()
        await until(lambda: dlpack.outstanding() <= before)
        array.free()
    await until(lambda: not any(session.live_objects().values()))


async def test_letting_go_during_a_capture_of_others(torch: Any) -> None:
    """A capture in the context is ended by it: the memory comes back all the same."""
    async with accy_async.open_session("cuda") as session:
        array = await session.upload(np.zeros(N, np.float32))
        taken = [torch.from_dlpack(array)]
        array.free()
        x = torch.zeros(4, device="cuda")
        torch.cuda.synchronize()
        side, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
        survived = True
        try:
            with torch.cuda.stream(side):
                graph.capture_begin(capture_error_mode="relaxed")
                x.add_(1)
                taken.clear()
                await anyio.sleep(0.1)
                x.add_(1)
                graph.capture_end()
        except RuntimeError:
            survived = False
            with torch.cuda.stream(side), contextlib.suppress(RuntimeError):
                graph.capture_end()  # until it is over, the memory cannot come back
        print("a relaxed capture survives the end of a loan:", survived)
    await until(lambda: not any(session.live_objects().values()))


def test_lifetimes_are_clean_under_compute_sanitizer() -> None:
    sanitizer = (
        shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
    )
    if not Path(sanitizer).exists():
        pytest.skip("there is no compute-sanitizer here")
    ended = subprocess.run(
        [sanitizer, "--error-exitcode", "9", sys.executable, "-c", _LIVES],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip
    if "not supported" in ended.stdout:
        pytest.skip(ended.stdout.strip().splitlines()[-1])
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-2000:]
    assert "ERROR SUMMARY: 0 errors" in ended.stdout


_LIVES = """
import cupy, numpy as np, accy_async
from accy_async import DType
async def main():
    async with accy_async.open_session("cuda") as session:
        kept = []
        for turn in range(10):
            ours = await session.upload(np.full(1000, turn, np.float32))
            side = cupy.cuda.Stream(non_blocking=True)
            with side:
                taken = cupy.from_dlpack(ours)
                ours.free()
                taken += 1
                given = cupy.arange(1000, dtype=cupy.float32) + taken
                back = session.adopt(given)
            del taken, given
            out = session.allocate(1000, DType.F32)
            session.backend.copy_buffer(back.handle, out.handle)
            back.free()
            kept.append(out)
        for turn, out in enumerate(kept):
            found = await session.download(out)
            assert (found == np.arange(1000) + turn + 1).all()
    print(session.live_objects())
accy_async.run(main)
"""
