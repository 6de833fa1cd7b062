"""What is taken from a GPU is given back to it: as much is free as before."""

from __future__ import annotations

from contextlib import closing
from typing import Any, cast

import anyio
import numpy as np
import pytest

from accy_async.backends import Backend
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda.driver import check, load_driver
from accy_async.dtypes import DType
from accy_async.session import open_session
from tests.hardware.kinds import CUDA
from tests.hardware.scenes import SCENES

pytestmark = [pytest.mark.gpu, pytest.mark.anyio]

ROUNDS = 5
COUNT = 1 << 24
"""Of u32: 64 MiB an array."""


def free_bytes() -> int:
    """What the driver says is free on the device, once it stands still."""
    driver: Any = load_driver()
    device = check(driver, driver.cuDeviceGet(0), "cuDeviceGet")
    answer = driver.cuDevicePrimaryCtxRetain(device)
    context = check(driver, answer, "cuDevicePrimaryCtxRetain")
    check(driver, driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    check(driver, driver.cuCtxSynchronize(), "cuCtxSynchronize")
    free, _ = check(driver, driver.cuMemGetInfo(), "cuMemGetInfo")
    check(driver, driver.cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease")
    return int(free)


async def work(backend: Backend) -> None:
    """Something of everything, and then large arrays, left in one of three ways."""
    for scene in SCENES:
        await scene(CUDA, backend)
    values = np.arange(COUNT, dtype=np.uint32)
    async with open_session(backend) as session:
        array = await session.upload(values)
        np.testing.assert_array_equal(await session.download(array), values)
    with pytest.raises(LookupError):
        async with open_session(backend) as session:
            raise LookupError(session.allocate(COUNT, DType.U32))
    with anyio.CancelScope() as scope:
        async with open_session(backend) as session:
            kept = session.allocate(COUNT, DType.U32)
            scope.cancel()
            await session.download(kept)
    assert scope.cancelled_caught


def check_kept(found: list[int]) -> None:
    """Assert that no round but the first leaves less memory free, by a whole array.

    What the driver keeps for itself comes and goes by smaller pieces.
    """
    assert min(found[2:]) > found[1] - 4 * COUNT, found


async def test_free_memory_is_back_to_its_start_after_each_backend() -> None:
    found = []
    for _ in range(ROUNDS):
        with closing(CUDA.open()) as backend:
            await work(backend)
            CUDA.check_quiet(backend)
            statistics = cast("CudaBackend", backend).memory_statistics()
            assert statistics["reserved_bytes"] >= 4 * COUNT
        await anyio.to_thread.run_sync(CUDA.join_threads, backend)
        CUDA.check_closed(backend)
        found.append(free_bytes())
    check_kept(found)


async def test_a_backend_takes_no_more_memory_the_more_sessions_it_had() -> None:
    found = []
    with closing(CUDA.open()) as backend:
        for _ in range(ROUNDS):
            await work(backend)
            CUDA.check_quiet(backend)
            found.append(free_bytes())
    check_kept(found)
