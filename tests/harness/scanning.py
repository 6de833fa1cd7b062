"""A scan through a session's pipeline: three kernels, with scratch between them."""

from __future__ import annotations

import numpy as np

from accy_async.compiler.kernels import scan_pipeline
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.pipeline import PipelineLaunch
from accy_async.session import Session

__all__ = ["scan_in"]


async def scan_in(session: Session, data: np.ndarray, times: int = 1) -> np.ndarray:
    """Load the pipeline, launch it so many times, and bring the sums back."""
    dtype = DType.from_numpy(data.dtype)
    pipeline = scan_pipeline(dtype)
    registry = library_registry(session.backend.default_format, dtype=dtype)
    operand = await session.upload(data)
    result = session.allocate(data.shape, dtype)
    async with await session.load_pipeline(pipeline, registry) as pool:
        launch = PipelineLaunch(
            pipeline=pipeline,
            registry=registry,
            format=pool.format,
            operands=(operand.binding("read_only"),),
            results=(result.binding("write_only"),),
            runtime_scalar_arguments=(ScalarArgument.u32(data.size),),
            artifacts=pool,
        )
        for _ in range(times):
            await session.launch_pipeline(launch)
    found = await session.download(result)
    for array in (operand, result):
        array.free()  # and not when it is collected, which could tell nobody it failed
    return found
