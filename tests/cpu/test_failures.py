"""What goes wrong in a kernel or the runtime is told, and ends no thread."""

from __future__ import annotations

import pytest

from accy_async.backends.cpu.operations import Copy
from accy_async.backends.cpu.pool import Job
from accy_async.backends.resources import Resource
from accy_async.dtypes import ScalarArgument
from accy_async.errors import DeviceError
from tests.conformance.devices import CpuDevice

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("where", [0, 1, 17, 999])
async def test_failing_block_anywhere_in_the_grid_is_reported(
    cpu: CpuDevice, where: int
) -> None:
    buffer = cpu.backend.allocate_buffer(4)
    scalars = [ScalarArgument.u64(where), ScalarArgument.i32(13)]
    for _ in range(5):
        cpu.backend.launch(
            cpu.request("fail", [buffer], scalars, grid=(10, 10, 10), node="the node")
        )
        with pytest.raises(DeviceError, match="assertion 13 failed") as caught:
            await cpu.backend.wait_default_stream()
        assert (caught.value.code, caught.value.node) == (13, "the node")


async def test_kernel_whose_other_blocks_do_not_fail_is_reported(
    cpu: CpuDevice,
) -> None:
    buffer = cpu.backend.allocate_buffer(4)
    scalars = [ScalarArgument.u64(1000), ScalarArgument.i32(13)]
    cpu.backend.launch(cpu.request("fail", [buffer], scalars, grid=(10, 10, 10)))
    await cpu.backend.wait_default_stream()


async def test_exception_in_a_launch_becomes_its_error(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = cpu.write([0])
    await cpu.backend.wait_default_stream()

    def broken(job: Job, begin: int, end: int, scratch: object) -> int:
        raise SystemExit("no such thing")

    with monkeypatch.context() as patch:
        patch.setattr("accy_async.backends.cpu.operations._LaunchJob.call", broken)
        for grid in ((1, 1, 1), (100, 1, 1)):
            cpu.backend.launch(cpu.request("count", [buffer], grid=grid, node="n"))
            with pytest.raises(DeviceError, match="no such thing") as caught:
                await cpu.backend.wait_default_stream()
            assert (caught.value.kernel, caught.value.node) == ("count", "n")
            assert isinstance(caught.value.__cause__, SystemExit)
    cpu.mix(buffer, 1)
    assert await cpu.read(buffer) == [1]


async def test_exception_in_a_copy_becomes_its_error(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = cpu.write([5])
    await cpu.backend.wait_default_stream()

    def broken(self: Copy, stream: object) -> None:
        raise MemoryError("nothing left")

    with monkeypatch.context() as patch:
        patch.setattr(Copy, "run", broken)
        cpu.backend.write_buffer(buffer, b"1234")
        with pytest.raises(DeviceError, match="nothing left") as caught:
            await cpu.backend.wait_default_stream()
        assert caught.value.call == "write_buffer"
    assert await cpu.read(buffer) == [5]


async def test_exception_while_freeing_ends_no_stream_and_is_told_on_closing(
    cpu: CpuDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is the stream's thread that frees what was destroyed while in use."""
    backend = cpu.backend
    stream = backend.create_stream()
    buffer, other = cpu.write([4], stream), cpu.write([5], stream)
    release = cpu.hold(stream)
    backend.write_buffer(buffer, b"1234", stream=stream)
    free = backend._table._free

    def broken(resource: Resource) -> None:
        free(resource)
        raise OSError("cannot unmap")

    with monkeypatch.context() as patch:
        patch.setattr(backend._table, "_free", broken)
        backend.destroy(buffer)
        assert len(backend.reaper.held()) == 1
        release()
        await backend.wait_stream(stream)
        assert await cpu.read(other, stream) == [5]  # so that the buffer was looked at
    assert not backend.reaper.held()
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="cannot unmap")) as caught:
        backend.close()
    (error,) = caught.value.exceptions
    assert "destroyed while in use" in error.__notes__[0]
