"""A pipeline inside a launch graph: its stages as nodes, its scratch as slots."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import Fixed
from accy_async.dtypes import ScalarArgument
from accy_async.errors import GraphError, InvalidArtifact, LaunchArgumentMismatch
from accy_async.graph.builder import GraphBuffer, LaunchGraphBuilder, NodeRef
from accy_async.graph.nodes import BufferUse, RuntimeScalar
from accy_async.pipeline.model import (
    Derivation,
    Forward,
    KernelCallPipeline,
    Operand,
    PipelineIntermediate,
    Result,
)
from accy_async.pipeline.resolved import ResolvedPipeline, resolve_pipeline

__all__ = ["add_pipeline"]

Scalar = ScalarArgument | RuntimeScalar


def add_pipeline(
    builder: LaunchGraphBuilder,
    pipeline: KernelCallPipeline,
    registry: KernelCallRegistry,
    format: ArtifactFormat,
    operands: Iterable[GraphBuffer | BufferUse],
    results: Iterable[GraphBuffer | BufferUse],
    scalars: Iterable[Scalar] = (),
    *,
    name: str | None = None,
) -> tuple[NodeRef, ...]:
    """Add a pipeline's stages to a graph; returns their nodes, in their order.

    The intermediates become scratch slots, which each run allocates. With edges
    from dataflow, stages wait only for those whose buffers they share; with
    explicit ones each waits for the one before.

    A scalar may be one that each run brings. It can then only be forwarded to
    kernels as it is; intermediates sized by it are made for its bound, so it
    needs a `RuntimeScalarBound` if there are any.

    With scalars that leave no work at all nothing is added.

    Args:
        builder: the graph that is being built.
        pipeline: the chain.
        registry: where its kernels are found.
        format: the artifact format to take from it.
        operands: buffers it reads; without a use they count as read only.
        results: buffers it writes; without a use they count as read and written.
        scalars: its runtime scalars.
        name: what the names of nodes and slots begin with; the target's last
            part, numbered where it comes again, if left out.

    Raises:
        LaunchArgumentMismatch: operands, results or scalars do not fit the chain.
        KernelEntryMissing, InvalidArtifact: the chain does not fit its registry,
            or an intermediate has no elements.
        GraphError: a run's scalar is used for more than it can be.
    """
    resolved = resolve_pipeline(pipeline, registry, format)
    reads = [use.read if isinstance(use, GraphBuffer) else use for use in operands]
    writes = [
        use.read_write if isinstance(use, GraphBuffer) else use for use in results
    ]
    values = tuple(scalars)
    _check_counts(pipeline, reads, writes, values)
    if _is_empty(resolved, values):
        return ()
    prefix = name or builder.group(pipeline.target.rpartition(".")[2] or "pipeline")
    derived = [
        tuple(_derive(pipeline, d, values) for d in stage.stage.scalars)
        for stage in resolved.stages
    ]
    extents = [_extent(pipeline, spec, values) for spec in pipeline.intermediates]
    scratch = [
        builder.scratch(f"{prefix}.scratch{number}", spec.dtype, extent).read_write
        for number, (spec, extent) in enumerate(
            zip(pipeline.intermediates, extents, strict=True)
        )
    ]
    nodes: list[NodeRef] = []
    for number, stage in enumerate(resolved.stages):
        buffers = [
            reads[ref.index]
            if isinstance(ref, Operand)
            else writes[ref.index]
            if isinstance(ref, Result)
            else scratch[ref.index]
            for ref in stage.stage.buffers
        ]
        short = stage.stage.target.rpartition(".")[2]
        nodes.append(
            builder.kernel(
                stage.entry,
                buffers,
                derived[number],
                name=f"{prefix}[{number}] {short}",
                after=nodes[-1:] if builder.edges == "explicit" else (),
            )
        )
    return tuple(nodes)


def _check_counts(
    pipeline: KernelCallPipeline,
    operands: Sequence[BufferUse],
    results: Sequence[BufferUse],
    scalars: Sequence[Scalar],
) -> None:
    for what, given, taken in (
        ("operands", len(operands), pipeline.operand_count),
        ("results", len(results), pipeline.result_count),
        ("runtime scalars", len(scalars), pipeline.runtime_scalar_argument_count),
    ):
        if given != taken:
            raise LaunchArgumentMismatch(
                f"pipeline {pipeline.target!r} takes {taken} {what}, {given} were given"
            )
    for bound in pipeline.runtime_scalar_bounds:
        scalar = scalars[bound.argument_index]
        if isinstance(scalar, ScalarArgument) and scalar.value > bound.max_u32:
            raise LaunchArgumentMismatch(
                f"pipeline {pipeline.target!r}: runtime scalar {bound.argument_index} "
                f"is {scalar.value}, expected at most {bound.max_u32}"
            )


def _known(scalars: Sequence[Scalar]) -> list[ScalarArgument] | None:
    """The scalars, where all of them are known already."""
    known = [scalar for scalar in scalars if isinstance(scalar, ScalarArgument)]
    return known if len(known) == len(scalars) else None


def _is_empty(resolved: ResolvedPipeline, scalars: Sequence[Scalar]) -> bool:
    known = _known(scalars)
    if known is None:
        return not resolved.stages
    resolved.pipeline.validate_runtime_scalar_arguments(known)
    return resolved.is_empty(known, resolved.launches(known))


def _derive(
    pipeline: KernelCallPipeline, derivation: Derivation, scalars: Sequence[Scalar]
) -> Scalar:
    scalar = scalars[derivation.argument_index]
    if isinstance(derivation, Forward):
        return scalar
    if isinstance(scalar, RuntimeScalar):
        raise GraphError(
            f"pipeline {pipeline.target!r}: {derivation!r} cannot be derived from "
            f"{scalar!r}, which is not known before the graph runs; expected a "
            "ScalarArgument"
        )
    return derivation.resolve_scalar([scalar] * (derivation.argument_index + 1))


def _extent(
    pipeline: KernelCallPipeline,
    spec: PipelineIntermediate,
    scalars: Sequence[Scalar],
) -> int:
    if isinstance(spec.extent, Fixed):
        extent = spec.extent.value
    else:
        index = spec.extent.argument_index
        scalar = scalars[index]
        if isinstance(scalar, RuntimeScalar):
            bounds = {b.argument_index: b for b in pipeline.runtime_scalar_bounds}
            if index not in bounds:
                raise GraphError(
                    f"pipeline {pipeline.target!r}: {spec!r} is sized by {scalar!r}, "
                    "which is not known before the graph runs; expected a "
                    f"RuntimeScalarBound for argument {index}, or a ScalarArgument"
                )
            scalar = ScalarArgument.u32(bounds[index].max_u32)
        extent = spec.extent.resolve_extent([scalar] * (index + 1))
    if extent == 0:
        raise InvalidArtifact(f"{spec!r}: no elements, expected at least 1")
    return extent
