"""Launch a kernel that Triton compiled, on PyTorch's tensors, in a graph."""

import sys

import accy_async
from accy_async import DType, KernelCallArtifact, RuntimeCeilDiv, ScalarArgument
from accy_async.errors import BackendUnavailable
from accy_async.graph import LaunchGraphBuilder
from accy_async.interop import triton_kernel

try:
    import torch
    import triton
    import triton.language as tl
except ImportError:
    print("Triton or PyTorch is not installed here: nothing to show")
    sys.exit(0)

COUNT, BLOCK = 100_003, 512


@triton.jit
def add(x, y, out, n, block: tl.constexpr):  # type: ignore[no-untyped-def] # noqa: ANN001, ANN201
    """``out = x + y``."""
    i = tl.program_id(0) * block + tl.arange(0, block)
    mask = i < n
    tl.store(out + i, tl.load(x + i, mask=mask) + tl.load(y + i, mask=mask), mask=mask)


def compile_add() -> KernelCallArtifact:
    """Compiled for counts of any kind: 1001 is no multiple of 16."""
    array = torch.float32
    compiled = add.warmup(array, array, array, 1001, block=BLOCK, grid=(1,))
    grid = [RuntimeCeilDiv(argument_index=0, divisor=BLOCK)]
    return triton_kernel(compiled, grid=grid)


async def main() -> None:
    async with accy_async.open_session("cuda") as session:
        entry = compile_add()
        g = LaunchGraphBuilder()
        x, y, out = (g.buffer(name, DType.F32, COUNT) for name in ("x", "y", "out"))
        g.kernel(entry, [x.read, y.read, out.write], [ScalarArgument.u32(COUNT)])
        tensors = [torch.rand(COUNT, device="cuda") for _ in range(2)]
        total = torch.empty(COUNT, device="cuda")
        bindings = {"x": tensors[0], "y": tensors[1], "out": total}
        await session.run(g.build(), bindings)
    assert bool((total == tensors[0] + tensors[1]).all())
    threads = entry.launch.threadgroup[0]
    print(f"{entry.format} of {entry.entry_name!r}, {threads} threads a block: right")


if __name__ == "__main__":
    try:
        accy_async.run(main)
    except BackendUnavailable as error:
        print(error)
