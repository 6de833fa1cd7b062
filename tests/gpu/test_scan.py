"""The scan kernels as one pipeline, on a GPU."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.compiler.kernels import reference_scan
from accy_async.dtypes import DType
from accy_async.session import open_session
from tests.compiler.harness import assert_same_bits
from tests.harness.scanning import scan_in

pytestmark = pytest.mark.gpu

LENGTHS = [1, 63, 64, 65, 255, 256, 257, 5000, 4097 * 64 - 1, 4097 * 64 + 1]


@pytest.mark.anyio
@pytest.mark.parametrize("length", [*LENGTHS, 10**7])
@pytest.mark.parametrize("dtype", [DType.F32, DType.I32], ids=str)
async def test_pipeline_scans_to_the_bit(dtype: DType, length: int) -> None:
    random = np.random.default_rng(length)
    values = random.normal(scale=1000, size=length).astype(dtype.numpy)
    async with open_session("cuda") as session:
        scanned = await scan_in(session, values)
    assert_same_bits(scanned, reference_scan(values))
    assert not any(session.live_objects().values())
