"""The scan kernels as one pipeline, on the CPU backend."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat
from accy_async.backends.cpu import CpuBackend
from accy_async.backends.handles import BufferBinding
from accy_async.compiler.kernels import reference_scan, scan_pipeline
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.pipeline import PipelineLaunch, launch_pipeline
from tests.compiler.harness import assert_same_bits


@pytest.mark.anyio
@pytest.mark.parametrize("format", ["cpu_machine_code", "cpu_object"])
@pytest.mark.parametrize("length", [1, 256, 5000, 4097 * 256 + 1])
async def test_pipeline_scans_on_the_cpu_backend(format: str, length: int) -> None:
    values = np.random.default_rng(length).normal(size=length).astype(np.float32)
    result = np.zeros_like(values)
    backend = CpuBackend(workers=2)
    try:
        handles = [backend.allocate_buffer(values.nbytes) for _ in range(2)]
        backend.write_buffer(handles[0], values)
        operand, output = (
            BufferBinding(handle=handle, access=access, byte_size=values.nbytes)
            for handle, access in zip(handles, ("read_only", "read_write"), strict=True)
        )
        await launch_pipeline(
            backend,
            PipelineLaunch(
                pipeline=scan_pipeline(DType.F32),
                registry=cpu_registry(format),
                format=ArtifactFormat(format),
                operands=(operand,),
                results=(output,),
                runtime_scalar_arguments=(ScalarArgument.u32(length),),
            ),
        )
        backend.read_buffer(handles[1], result)
        for handle in handles:
            backend.destroy(handle)
        await backend.wait_device()
        assert not any(backend.live_objects().values())
    finally:
        backend.close()
    assert_same_bits(result, reference_scan(values))
