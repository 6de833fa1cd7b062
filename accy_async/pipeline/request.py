"""What a launch of a pipeline brings: buffers, scalars, kernels, scratch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import attrs

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.handles import BufferBinding, StreamHandle
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidType
from accy_async.interop.foreign import is_foreign
from accy_async.pipeline.model import KernelCallPipeline
from accy_async.pipeline.pool import PipelineArtifactPool
from accy_async.values import (
    enum,
    field_name,
    instances,
    optional,
    text,
    to_tuple,
    tuple_of,
)

if TYPE_CHECKING:
    from attrs import Attribute

    from accy_async.backends.base import Backend

__all__ = ["PipelineLaunch", "check_request"]


def _buffers(value: Iterable[Any]) -> tuple[Any, ...]:
    """Converter: device arrays as bindings; arrays of other libraries as they are."""
    given: object = to_tuple(value)
    if not isinstance(given, tuple):
        return cast("tuple[Any, ...]", given)  # the validator refuses it
    return tuple(
        one.binding() if isinstance(one, DeviceArray) else one for one in given
    )


def _check_buffers(instance: object, attribute: Attribute[Any], value: object) -> None:
    """An attrs validator: what `_buffers` takes."""
    name = field_name(instance, attribute)
    expected = "a sequence of BufferBinding values, or of arrays"
    if not isinstance(value, tuple):
        raise InvalidType(name, value, expected)
    for index, one in enumerate(value):
        if not isinstance(one, BufferBinding) and not is_foreign(one):
            raise InvalidType(f"{name}[{index}]", one, "a BufferBinding or an array")


def _intermediates(
    value: Sequence[BufferBinding] | None,
) -> Sequence[BufferBinding] | None:
    if value is None:
        return None
    given = cast("object", value)
    if isinstance(given, (str, bytes)) or not isinstance(given, Sequence):
        raise InvalidType(
            "PipelineLaunch.intermediates",
            value,
            "a sequence of BufferBinding, or None",
        )
    for index, binding in enumerate(value):
        if not isinstance(binding, BufferBinding):
            raise InvalidType(
                f"PipelineLaunch.intermediates[{index}]", binding, "a BufferBinding"
            )
    return tuple(value) if isinstance(value, list) else value


@attrs.frozen(kw_only=True, eq=False)
class PipelineLaunch:
    """One launch of a pipeline.

    Attributes:
        pipeline: the chain.
        registry: where its kernels are found.
        format: the artifact format to take from it.
        operands: the buffers it reads: bindings, device arrays, or arrays of other
            libraries, which every launch adopts anew (see `Session.adopt`).
        results: the buffers it writes, likewise.
        runtime_scalar_arguments: its scalars.
        intermediates: the caller's scratch buffers, or None for the launch to
            allocate its own.
        artifacts: the caller's loaded kernels, or None for the launch to load
            its own.
        stream: where the stages run; None for the default stream.
        diagnostic_id: a name of the caller's for error messages; each stage's
            own name if left out.
    """

    pipeline: KernelCallPipeline = attrs.field(validator=instances(KernelCallPipeline))
    registry: KernelCallRegistry = attrs.field(validator=instances(KernelCallRegistry))
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    operands: tuple[BufferBinding, ...] = attrs.field(
        default=(),
        converter=_buffers,
        validator=_check_buffers,
    )
    results: tuple[BufferBinding, ...] = attrs.field(
        default=(),
        converter=_buffers,
        validator=_check_buffers,
    )
    runtime_scalar_arguments: tuple[ScalarArgument, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(ScalarArgument, expected="ScalarArgument values"),
    )
    intermediates: Sequence[BufferBinding] | None = attrs.field(
        default=None, converter=_intermediates
    )
    artifacts: PipelineArtifactPool | None = attrs.field(
        default=None, validator=optional(instances(PipelineArtifactPool))
    )
    stream: StreamHandle | None = attrs.field(
        default=None, validator=optional(instances(StreamHandle))
    )
    diagnostic_id: str | None = attrs.field(default=None, validator=optional(text()))

    def bound_on(self, backend: Backend) -> PipelineLaunch:
        """The launch with arrays of other libraries adopted; itself if it has none.

        Raises:
            ExchangeRefused: one cannot be taken as it is.
        """
        if all(isinstance(one, BufferBinding) for one in self.operands + self.results):
            return self
        known: dict[int, DeviceArray] = {}

        def bind(field: str, given: tuple[object, ...]) -> tuple[object, ...]:
            bound = []
            for index, one in enumerate(given):
                if not isinstance(one, BufferBinding):
                    if id(one) not in known:
                        where = f"{field}[{index}]"
                        known[id(one)] = adopt_array(backend, one, what=where)
                    one = known[id(one)].binding()
                bound.append(one)
            return tuple(bound)

        return attrs.evolve(
            self,
            operands=bind("operands", self.operands),
            results=bind("results", self.results),
        )


def check_request(call: str, request: object) -> None:
    """Refuse what is no launch of a pipeline.

    Raises:
        InvalidType: it is none.
    """
    if not isinstance(request, PipelineLaunch):
        raise InvalidType(f"{call}.request", request, "a PipelineLaunch")
