"""The scan kernels as one pipeline, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.pipeline import PipelineLaunch
from accy_async.session import open_session
from tests.compiler.harness import assert_same_bits

pytestmark = pytest.mark.gpu

LENGTHS = [1, 63, 64, 65, 255, 256, 257, 5000, 4097 * 64 - 1, 4097 * 64 + 1]


@pytest.mark.anyio
@pytest.mark.parametrize("length", [*LENGTHS, 10**7])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32], ids=str)
async def test_pipeline_scans_to_the_bit(dtype: DType, length: int) -> None:
    random = np.random.default_rng(length)
    values = random.normal(scale=1000, size=length).astype(dtype.numpy)
    pipeline = scan_pipeline(dtype)
    async with open_session("cuda") as session:
        registry = library_registry(session.backend.default_format, dtype=dtype)
        operand = await session.upload(values)
        result = session.allocate(values.shape, dtype)
        async with await session.load_pipeline(pipeline, registry) as pool:
            launch = PipelineLaunch(
                pipeline=pipeline,
                registry=registry,
                format=pool.format,
                operands=(operand.binding("read_only"),),
                results=(result.binding("write_only"),),
                runtime_scalar_arguments=(ScalarArgument.u32(length),),
                artifacts=pool,
            )
            await session.launch_pipeline(launch)
            scanned = await session.download(result)
    assert_same_bits(scanned, reference_scan(values))
    assert not any(session.live_objects().values())
