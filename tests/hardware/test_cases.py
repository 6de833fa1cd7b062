"""Cases that each kind of device could spoil in its own way, by number."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.backends import Backend
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import OutOfMemory
from accy_async.graph import LaunchGraphBuilder, LaunchOptions
from accy_async.session import open_session
from tests.hardware.kinds import CUDA, FAKE_CUDA, VULKAN, Hardware, on

N = 1 << 16


@pytest.mark.anyio
@pytest.mark.parametrize("lowering", ["never", "always"])
@pytest.mark.parametrize("reader_first", [True, False])
async def test_c21_the_declared_order_decides_over_streams(
    hardware: Hardware, backend: Backend, *, reader_first: bool, lowering: str
) -> None:
    """Beside a change in place, a reader listed before it never gets the new values."""
    kernels, count = hardware.kernels, ScalarArgument.u32(N)
    b = LaunchGraphBuilder()
    x, out, five = (b.scratch(name, DType.U32, N) for name in ("x", "out", "five"))
    b.fill(x, 1)
    b.fill(five, 0)

    def change() -> None:
        b.kernel(
            kernels.axpy,
            [x.read_write, x.read_write, five.read],
            [count, ScalarArgument.u32(5)],
            stream="1",
        )

    if not reader_first:
        change()
    b.kernel(kernels.copy, [out.write, x.read], [count], stream="2")
    if reader_first:
        change()
    b.copy_out(out, b.host("read", DType.U32, N))
    plan, array = b.build(), np.zeros(N, np.uint32)
    async with open_session(backend) as session:
        for _ in range(10):
            run = session.start(plan, {"read": array}, LaunchOptions(lowering=lowering))
            await run
            assert set(array.tolist()) == ({1} if reader_first else {5})


@pytest.mark.parametrize("hardware", on(CUDA, FAKE_CUDA, VULKAN), indirect=True)
def test_c65_the_limit_is_of_what_buffers_take_together(
    hardware: Hardware, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the byte, and what was freed, or could not be had, counts no more."""
    hardware.faults(monkeypatch)
    backend = hardware.open(memory_limit_bytes=3000)
    first, second = backend.allocate_buffer(1000), backend.allocate_buffer(2000)
    for size in (1, 3001):
        with pytest.raises(OutOfMemory, match=rf"^{size} bytes .* 3000"):
            backend.allocate_buffer(size)
    backend.destroy(first)
    third = backend.allocate_buffer(1000)
    backend.destroy(second)
    backend.destroy(third)
    hardware.close(backend)


@pytest.mark.anyio
@pytest.mark.parametrize("lowering", ["never", "always"])
async def test_a_copy_in_gets_what_a_copy_out_before_it_wrote(
    hardware: Hardware, backend: Backend, lowering: str
) -> None:
    """Through host memory, straight and from turn to turn of a loop."""
    count = ScalarArgument.u32(N)
    b = LaunchGraphBuilder()
    x, y, two = (b.scratch(name, DType.U32, N) for name in ("x", "y", "two"))
    host, found = (b.host(name, DType.U32, N) for name in ("host", "found"))
    b.fill(x, 7)
    b.fill(two, 2)
    b.copy_out(x, host)
    with b.loop(count=3):
        b.copy_in(host, y)
        b.kernel(hardware.kernels.add, [y.read_write, y.read_write, two.read], [count])
        b.copy_out(y, host)
    b.copy_in(host, x)
    b.copy_out(x, found)
    plan = b.build()
    arrays = {name: np.zeros(N, np.uint32) for name in ("host", "found")}
    async with open_session(backend) as session:
        for _ in range(2):
            await session.run(plan, arrays, LaunchOptions(lowering=lowering))
            assert set(arrays["found"].tolist()) == {13}
            arrays["host"][:] = arrays["found"][:] = 0


@pytest.mark.anyio
@pytest.mark.parametrize("lowering", ["never", "always"])
async def test_a_copy_in_behind_a_call_gets_what_was_copied_out_before(
    hardware: Hardware, backend: Backend, lowering: str
) -> None:
    """The call comes after neither: what it waits for is done long before."""
    b = LaunchGraphBuilder()
    x, y = (b.scratch(name, DType.U32, N) for name in ("x", "y"))
    host, found = (b.host(name, DType.U32, N) for name in ("host", "found"))
    call = b.host_call(lambda: None)
    b.fill(x, 7)
    b.copy_out(x, host)
    b.copy_in(host, y, after=call)
    b.copy_out(y, found)
    plan = b.build()
    arrays = {name: np.zeros(N, np.uint32) for name in ("host", "found")}
    async with open_session(backend) as session:
        for _ in range(2):
            await session.run(plan, arrays, LaunchOptions(lowering=lowering))
            assert set(arrays["found"].tolist()) == {7}
            arrays["host"][:] = arrays["found"][:] = 0
