"""A kernel that computes for as long as it is told, on one core at a time."""

from __future__ import annotations

from accy_async import DType, FixedLaunch, KernelCallArtifact, ScalarArgument
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder
from accy_async.compiler.form.expressions import constant
from accy_async.graph import GraphBuffer, LaunchGraphBuilder, NodeRef

__all__ = ["add_grind", "grind", "scratch"]

_WIDTH = 8


def grind() -> KernelCallArtifact:
    """``x = x * a + b`` again and again: ``(out, x; turns: u32)``, of one block.

    A launch of one block keeps to one core, and each turn needs the last one's
    result, so only more launches at a time make it faster.
    """
    k = KernelBuilder("grind", threadgroup=(_WIDTH, 1, 1))
    out = k.buffer("out", DType.F32, "read_write")
    x = k.buffer("x", DType.F32, "read_only")
    turns = k.scalar("turns", DType.U32)
    with k.region():
        i = k.thread.cast(DType.U64)
        value = k.variable("value", out[i] + x[i])
        with k.count("turn", constant(DType.U32, 0), turns):
            value.set(value.value * 0.999 + 0.5)
        out[i] = value.value
    return KernelCallArtifact(
        target="bench.grind",
        version=1,
        format="cpu_machine_code",
        entry_name="grind",
        argument_count=3,
        runtime_scalar_argument_count=1,
        payload=compile_cpu([k.build()], format="cpu_machine_code"),
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(_WIDTH, 1, 1)),
        required_dtypes={DType.F32},
    )


def add_grind(
    graph: LaunchGraphBuilder,
    kernel: KernelCallArtifact,
    out: GraphBuffer,
    source: GraphBuffer,
    turns: int,
) -> NodeRef:
    """A node that grinds ``out``, beginning with what ``source`` holds."""
    return graph.kernel(
        kernel, (out.read_write, source.read), (ScalarArgument.u32(turns),)
    )


def scratch(graph: LaunchGraphBuilder, name: str) -> GraphBuffer:
    """A buffer for the kernel, filled."""
    buffer = graph.scratch(name, DType.F32, _WIDTH)
    graph.fill(buffer, 1.0)
    return buffer
