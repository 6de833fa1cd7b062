"""What all launches of the demo share, and who watches them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import attrs

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.backends.array import DeviceArray
from accy_async.cli.demo.source import Source
from accy_async.dtypes import ScalarArgument
from accy_async.pipeline import (
    KernelCallPipeline,
    PipelineArtifactPool,
    PipelineIntermediates,
    PipelineLaunch,
)
from accy_async.session import Session

if TYPE_CHECKING:
    from accy_async.backends.handles import StreamHandle

__all__ = ["Bench", "Watcher"]


class Watcher(Protocol):
    """Who is told how far the demo has come."""

    def begin(self, what: str, steps: int) -> None:
        """A part of the work begins, of so many steps."""

    def step(self) -> None:
        """One step of it is done."""


@attrs.frozen(eq=False)
class Bench:
    """The session, the pipeline with its pool, and the values on the device.

    Attributes:
        executes: False on a backend that only records.
    """

    session: Session
    source: Source
    pipeline: KernelCallPipeline
    registry: KernelCallRegistry
    pool: PipelineArtifactPool
    operand: DeviceArray
    executes: bool
    watcher: Watcher

    @property
    def scalars(self) -> tuple[ScalarArgument, ...]:
        """The pipeline's runtime scalars: the length."""
        return (ScalarArgument.u32(len(self.source.values)),)

    def request(
        self,
        result: DeviceArray,
        scratch: PipelineIntermediates | None,
        stream: StreamHandle,
    ) -> PipelineLaunch:
        """A launch from the pool into that array."""
        return PipelineLaunch(
            pipeline=self.pipeline,
            registry=self.registry,
            format=self.session.backend.default_format,
            operands=(self.operand.binding("read_only"),),
            results=(result.binding("read_write"),),
            runtime_scalar_arguments=self.scalars,
            artifacts=self.pool,
            intermediates=scratch,
            stream=stream,
        )
