"""The builder: names made up, edges found, loops and pipelines put in."""

from __future__ import annotations

import functools

import pytest

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import DerivedLaunch, Fixed, RuntimeCeilDiv
from accy_async.backends.handles import BufferAccess
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    GraphError,
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    KernelEntryMissing,
    LaunchArgumentMismatch,
)
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    CopyBuffer,
    Fill,
    HostSlot,
    KernelCall,
    LaunchGraphLoopCarry,
    RuntimeScalar,
)
from accy_async.pipeline.graph import add_pipeline
from accy_async.pipeline.model import (
    CeilDiv,
    Forward,
    Intermediate,
    KernelCallPipeline,
    Operand,
    PipelineIntermediate,
    PipelineStage,
    Result,
    RuntimeScalarBound,
)
from tests.graph.graphs import edges, host_function, kernel_entry

F32, U32 = DType.F32, ScalarArgument.u32
ADD = kernel_entry(3, "accy.kernel.add")
STEP = kernel_entry(2, "accy.kernel.step")


def test_diamond_from_dataflow() -> None:
    """Edges follow from the buffers; names from what the steps do."""
    g = LaunchGraphBuilder()
    a, b, c, d = (g.buffer(name, F32, 8) for name in "abcd")
    out = g.host("out", F32, 8)
    g.fill(a, 1)
    g.kernel(STEP, [a.read, b.write])
    g.kernel(STEP, [a.read, c.write])
    joined = g.kernel(ADD, [b.read, c.read, d.write], name="join")
    g.copy_out(d, out)
    assert joined.name == "join"
    plan = g.build()
    assert list(plan.node_index) == ["fill_a", "step", "step_1", "join", "copy_out_d"]
    assert plan.dependencies == edges(
        "fill_a>step fill_a>step_1 step>join step_1>join join>copy_out_d"
    )
    assert plan.node("fill_a").operation == Fill(
        target="a", value=ScalarArgument.f32(1)
    )
    assert plan.layout().stream_count == 2


def test_every_step_and_option() -> None:
    """What a step is told is what its node has."""
    g = LaunchGraphBuilder(edges="explicit")
    x, y = g.buffer("x", F32, (2, 4)), g.scratch("y", F32, 8)
    h = g.host("h", F32, 8)
    go, n = g.external_event("go"), g.runtime_scalar()
    entry = kernel_entry(2, "scale", runtime_scalar_argument_count=1)
    first = g.copy_in(h, x, wait=go)
    second = g.copy(x, y, after=first, stream="side", priority=-1)
    third = g.kernel(entry, [x, y.read], [n], after=[first, second.name], signal="e")
    fourth = g.wait_event("e")
    g.signal_event("done", after=(third, fourth))
    g.host_call(host_function, reads=[h], writes=[y], after=fourth, name="report")
    g.host_call(functools.partial(host_function), after="report")
    plan = g.build()
    assert plan.slots == (
        BufferSlot("x", F32, (2, 4)),
        BufferSlot("y", F32, 8, is_scratch=True),
        HostSlot("h", F32, 8),
    )
    assert plan.runtime_scalar_count == 1
    assert plan.external_events == ("go",)
    assert plan.nodes[0].wait_events == ("go",)
    copy = plan.node("copy_x_y")
    assert copy.operation == CopyBuffer(source="x", target="y")
    assert (copy.stream, copy.priority) == ("side", -1)
    scale = plan.node("scale")
    assert scale.runtime_scalars == (RuntimeScalar(0),)
    assert scale.signal_event == "e"
    assert isinstance(scale.operation, KernelCall)
    assert scale.operation.buffers == (
        BufferUse("x", BufferAccess.READ_WRITE),
        BufferUse("y", BufferAccess.READ_ONLY),
    )
    assert plan.dependencies == edges(
        "copy_in_x>copy_x_y copy_in_x>scale copy_x_y>scale scale>signal_done "
        "wait_e>signal_done wait_e>report report>host_function"
    )


def test_loops_carry_and_nest() -> None:
    """A loop spans the steps of its block; what is after it is after its last."""
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", F32, 8), g.scratch("y", F32, 8)
    more = g.scratch("more", DType.U32, 1)
    with g.loop(while_=more, carries=[(x, y)], max_iterations=9) as outer:
        g.kernel(ADD, [x.read, y.write, more.write])
        with g.loop(count=g.runtime_scalar(), name="inner"):
            g.kernel(STEP, [x.read, y.read_write])
    after = g.signal_event("done", after=outer)
    plan = g.build()
    loop, inner = plan.loop("loop"), plan.loop("inner")
    assert (loop.first, loop.last) == (outer.first, outer.last) == ("add", "step")
    assert (loop.condition, loop.max_iterations) == ("more", 9)
    assert loop.carries == (LaunchGraphLoopCarry("x", "y"),)
    assert (inner.first, inner.last, inner.count) == ("step", "step", RuntimeScalar(0))
    assert plan.dependencies == edges(f"step>{after.name} add>step")
    assert plan.precedes("add", after.name)


def test_made_up_names_avoid_those_given() -> None:
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", F32, 8), g.buffer("y", F32, 8)
    g.kernel(STEP, [x.read, y.read], name="step_1")
    names = [g.kernel(STEP, [x.read, y.read]).name for _ in range(3)]
    assert names == ["step", "step_2", "step_3"]
    assert g.host_call(lambda: None).name == "lambda"


def test_after_adds_to_dataflow() -> None:
    """Both kinds of edges are in the plan, each once; contradictions are cycles."""
    g = LaunchGraphBuilder()
    x = g.buffer("x", F32, 8)
    first = g.fill(x, 0)
    g.fill(x, 1, after=first)
    assert g.build().dependencies == edges("fill_x>fill_x_1")
    g.fill(x, 2, name="last", after=())
    g.kernel(kernel_entry(0), name="free", after="last")
    assert g.build().precedes("fill_x", "free")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (lambda g, x: g.buffer("x", F32, 1), "a slot is named 'x' already"),
        (lambda g, x: g.fill(x, 1, name="first"), "a node or loop is named 'first'"),
        (
            lambda g, x: g.external_event("e") + g.external_event("e"),
            "event 'e' exists",
        ),
        (
            lambda g, x: g.kernel(STEP, [BufferUse("z"), x], name="k"),
            "node 'k' uses slot 'z', which this builder has not made",
        ),
    ],
)
def test_wrong_step_is_refused_at_once(wrong: object, message: str) -> None:
    """And leaves nothing behind."""
    g = LaunchGraphBuilder()
    x = g.buffer("x", F32, 8)
    g.fill(x, 1, name="first")
    before = g.build()
    with pytest.raises(GraphError, match=message):
        wrong(g, x)  # type: ignore[operator]
    assert g.build().nodes == before.nodes
    assert g.build().slots == before.slots


def test_what_is_no_kernel_and_no_slot_is_refused() -> None:
    g = LaunchGraphBuilder()
    x = g.buffer("x", F32, 8)
    with pytest.raises(InvalidType, match=r"kernel\.entry.*'axpy'.*KernelCallArtifact"):
        g.kernel("axpy", [x])  # type: ignore[arg-type]
    with pytest.raises(InvalidType, match=r"fill.*'x'.*a slot that this builder"):
        g.fill("x", 1.0)  # type: ignore[arg-type]
    assert not g.build().nodes


@pytest.mark.parametrize(
    ("call", "use"),
    [
        ("kernel", lambda g, x, h: g.kernel(kernel_entry(1), [x])),
        ("kernel", lambda g, x, h: g.kernel(kernel_entry(1), [x.read_write])),
        ("copy_in", lambda g, x, h: g.copy_in(h, x)),
        ("copy_out", lambda g, x, h: g.copy_out(x, h)),
        ("copy", lambda g, x, h: g.copy(x, x)),
        ("fill", lambda g, x, h: g.fill(x, 1.0)),
        ("host_call", lambda g, x, h: g.host_call(print, writes=[x])),
        ("loop", lambda g, x, h: g.loop(while_=x).__enter__()),
        ("loop", lambda g, x, h: g.loop(count=2, carries=[(x, x)]).__enter__()),
    ],
)
def test_a_slot_of_another_builder_is_refused(call: str, use: object) -> None:
    """Even where both have one of that name, and all else is the same."""
    g, other = LaunchGraphBuilder(), LaunchGraphBuilder()
    for b in (g, other):
        slots = b.buffer("x", F32, 8), b.host("h", F32, 8)
    with pytest.raises(GraphError, match=rf"{call}.*: slot '[xh]' is another"):
        use(g, *slots)  # type: ignore[operator]
    assert not g.build().nodes


def test_wrong_loops_are_refused() -> None:
    g = LaunchGraphBuilder()
    with (
        pytest.raises(GraphError, match="loop 'L' has no steps"),
        g.loop(count=1, name="L"),
    ):
        pass
    g = LaunchGraphBuilder()
    with g.loop(count=1, name="L"):
        g.host_call(host_function)
        with pytest.raises(GraphError, match="loop 'L' has not ended yet"):
            g.build()
    with pytest.raises(RuntimeError, match="mine"), g.loop(count=1, name="M"):
        raise RuntimeError("mine")
    assert list(g.build().loop_index) == ["L"]
    with pytest.raises(GraphError, match="node 'nobody' is unknown"):
        g.host_call(host_function, after="nobody")
        g.build()


def test_wrong_edges_are_refused() -> None:
    with pytest.raises(InvalidValue, match="'dataflow' or 'explicit'"):
        LaunchGraphBuilder(edges="none")  # type: ignore[arg-type]


# ---------------------------------------------------------------- pipelines

FORMAT = ArtifactFormat.CUDA_PTX
DERIVED = DerivedLaunch(
    grid=(RuntimeCeilDiv(argument_index=0, divisor=4), Fixed(1), Fixed(1)),
    threadgroup=(4, 1, 1),
)
PARTIAL = kernel_entry(2, "t.partial", runtime_scalar_argument_count=1, launch=DERIVED)
FINISH = kernel_entry(2, "t.finish", runtime_scalar_argument_count=1, launch=DERIVED)
REGISTRY = KernelCallRegistry([PARTIAL, FINISH])


def reduction(
    *, is_divided: bool = True, bound: int | None = None
) -> KernelCallPipeline:
    extent = CeilDiv(argument_index=0, divisor=4)
    derivation = extent if is_divided else Forward(0)
    bounds = (
        () if bound is None else (RuntimeScalarBound(argument_index=0, max_u32=bound),)
    )
    return KernelCallPipeline(
        target="t.reduction",
        version=1,
        operand_count=1,
        result_count=1,
        stages=[
            PipelineStage(
                target="t.partial",
                version=1,
                buffers=[Operand(0), Intermediate(0)],
                scalars=[Forward(0)],
            ),
            PipelineStage(
                target="t.finish",
                version=1,
                buffers=[Intermediate(0), Result(0)],
                scalars=[derivation],
            ),
        ],
        intermediates=[PipelineIntermediate(dtype=F32, extent=extent)],
        runtime_scalar_argument_count=1,
        runtime_scalar_bounds=bounds,
    )


@pytest.mark.parametrize("how", ["dataflow", "explicit"])
def test_pipeline_becomes_nodes(how: str) -> None:
    """Stages are nodes, scratch a slot of the size that the scalars give."""
    g = LaunchGraphBuilder(edges=how)  # type: ignore[arg-type]
    x, y = g.buffer("x", F32, 10), g.buffer("y", F32, 1)
    added = add_pipeline(g, reduction(), REGISTRY, FORMAT, [x], [y.write], [U32(10)])
    assert [node.name for node in added] == [
        "reduction[0] partial",
        "reduction[1] finish",
    ]
    plan = g.build()
    assert plan.slot("reduction.scratch0") == BufferSlot(
        "reduction.scratch0", F32, 3, is_scratch=True
    )
    assert [node.runtime_scalars for node in plan.nodes] == [(U32(10),), (U32(3),)]
    assert len(plan.dependencies) == 1
    assert plan.nodes[0].uses()[0] == ("x", BufferAccess.READ_ONLY)
    assert plan.nodes[1].uses()[1] == ("y", BufferAccess.WRITE_ONLY)


def test_pipeline_twice_is_two_pipelines() -> None:
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", F32, 10), g.buffer("y", F32, 1)
    for name in (None, None, "mine"):
        add_pipeline(g, reduction(), REGISTRY, FORMAT, [x], [y], [U32(10)], name=name)
    assert [name.split("[")[0] for name in g.build().node_index] == [
        *["reduction"] * 2,
        *["reduction_2"] * 2,
        *["mine"] * 2,
    ]


def test_pipeline_takes_a_scalar_of_the_run() -> None:
    """It is forwarded; scratch has the size for its bound."""
    g = LaunchGraphBuilder()
    x, y, n = g.buffer("x", F32, 10), g.buffer("y", F32, 1), g.runtime_scalar()
    pipeline = reduction(is_divided=False, bound=9)
    add_pipeline(g, pipeline, REGISTRY, FORMAT, [x], [y], [n])
    plan = g.build()
    assert [node.runtime_scalars for node in plan.nodes] == [(n,), (n,)]
    assert plan.slot("reduction.scratch0").shape == (3,)


def test_pipeline_without_work_adds_nothing() -> None:
    g = LaunchGraphBuilder()
    x, y = g.buffer("x", F32, 0), g.buffer("y", F32, 1)
    assert add_pipeline(g, reduction(), REGISTRY, FORMAT, [x], [y], [U32(0)]) == ()
    assert g.build().nodes == ()


def test_pipeline_that_does_not_fit_is_refused() -> None:
    """With the pipeline's own errors, and nothing added."""
    g = LaunchGraphBuilder()
    x, y, n = g.buffer("x", F32, 10), g.buffer("y", F32, 1), g.runtime_scalar()
    fits = functools.partial(add_pipeline, g, registry=REGISTRY, format=FORMAT)
    ten = [U32(10)]
    with pytest.raises(LaunchArgumentMismatch, match="takes 1 operands, 0 were given"):
        fits(pipeline=reduction(), operands=[], results=[y], scalars=ten)
    with pytest.raises(LaunchArgumentMismatch, match="takes 1 runtime scalars, 0"):
        fits(pipeline=reduction(), operands=[x], results=[y])
    with pytest.raises(LaunchArgumentMismatch, match="is 10, expected at most 9"):
        fits(pipeline=reduction(bound=9), operands=[x], results=[y], scalars=ten)
    with pytest.raises(GraphError, match=r"CeilDiv.* cannot be derived from"):
        fits(pipeline=reduction(bound=9), operands=[x], results=[y], scalars=[n])
    with pytest.raises(
        GraphError, match="expected a RuntimeScalarBound for argument 0"
    ):
        fits(
            pipeline=reduction(is_divided=False),
            operands=[x],
            results=[y],
            scalars=[n],
        )
    with pytest.raises(InvalidArtifact, match="no elements"):
        fits(
            pipeline=reduction(is_divided=False, bound=0),
            operands=[x],
            results=[y],
            scalars=[n],
        )
    with pytest.raises(KernelEntryMissing):
        add_pipeline(g, reduction(), KernelCallRegistry(), FORMAT, [x], [y], [U32(10)])
    assert g.build().nodes == ()
    assert len(g.build().slots) == 2
