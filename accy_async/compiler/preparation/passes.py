"""Running the passes of a phase: timed, named in failures, and cancellable.

A pass is a function. What it raises tells the caller whose fault it is:

* `UnsupportedOperation` (and `CapabilityMismatch`, `KernelEntryMissing`): this
  device or format cannot do it, another may. It is raised as it is.
* `OutOfMemory`: a limit was exceeded. As it is.
* Any other error of ours: the pass refuses the program or its options. It becomes
  `PassFailed`, which names pass and operation, with the error as its cause.
* What is no error of ours is a bug, and is left alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import attrs

from accy_async.compiler.semantic import Operation
from accy_async.errors import AccyError, OutOfMemory, PassFailed, UnsupportedOperation
from accy_async.values import instances, integer, text, tuple_of

__all__ = [
    "PassContext",
    "PassStatistics",
    "PhaseStatistics",
    "Pipeline",
    "PreparationRun",
]

_P = ParamSpec("_P")
_T = TypeVar("_T")
_NS = integer(0, 2**63 - 1)


@attrs.frozen
class PassStatistics:
    """One run of a pass.

    Attributes:
        name: the pass.
        elapsed_ns: how long it took.
    """

    name: str = attrs.field(validator=text())
    elapsed_ns: int = attrs.field(validator=_NS)


@attrs.frozen
class PhaseStatistics:
    """One run of a phase.

    Attributes:
        name: the phase.
        passes: its passes in the order in which they ran.
        elapsed_ns: how long all of it took.
    """

    name: str = attrs.field(validator=text())
    passes: tuple[PassStatistics, ...] = attrs.field(
        validator=tuple_of(PassStatistics, expected="PassStatistics values")
    )
    elapsed_ns: int = attrs.field(validator=_NS)

    @property
    def pass_runs(self) -> int:
        """How many passes ran."""
        return len(self.passes)


_PHASE = instances(PhaseStatistics)


@attrs.frozen
class PreparationRun:
    """How a preparation went, phase by phase."""

    contract: PhaseStatistics = attrs.field(validator=_PHASE)
    tensor: PhaseStatistics = attrs.field(validator=_PHASE)
    dispatch: PhaseStatistics = attrs.field(validator=_PHASE)
    memory: PhaseStatistics = attrs.field(validator=_PHASE)
    kernel: PhaseStatistics = attrs.field(validator=_PHASE)
    target: PhaseStatistics = attrs.field(validator=_PHASE)

    @property
    def phases(self) -> tuple[PhaseStatistics, ...]:
        """The phases in their order."""
        return (
            self.contract,
            self.tensor,
            self.dispatch,
            self.memory,
            self.kernel,
            self.target,
        )

    @property
    def elapsed_ns(self) -> int:
        """How long all phases took together."""
        return sum(phase.elapsed_ns for phase in self.phases)


class PassContext:
    """Where a pass is: for messages, and to be stopped.

    Args:
        check_cancelled: called now and then; what it raises ends the preparation.
    """

    def __init__(self, check_cancelled: Callable[[], None] | None = None) -> None:
        self.opcode: str | None = None
        self.location: str | None = None
        self._check_cancelled = check_cancelled

    def at(self, entry: Operation) -> None:
        """Say which operation is looked at."""
        self.place(entry.op.opcode, entry.location)

    def place(self, opcode: str | None, location: str | None = None) -> None:
        """As `at`, for what is no operation of the program any more."""
        self.opcode, self.location = opcode, location
        if self._check_cancelled is not None:
            self._check_cancelled()


class Pipeline:
    """The passes of one phase, run one after the other.

    Args:
        name: the phase's.
        context: shared by all phases of one preparation.
    """

    def __init__(self, name: str, context: PassContext) -> None:
        self.name = name
        self.context = context
        self._begun = time.perf_counter_ns()
        self._passes: list[PassStatistics] = []

    def run(
        self,
        name: str,
        function: Callable[_P, _T],
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _T:
        """Run a pass; what it gives.

        Raises:
            PassFailed: it refused what it was given.
            UnsupportedOperation, OutOfMemory: as it said.
        """
        self.context.place(None)
        begun = time.perf_counter_ns()
        try:
            result = function(*args, **kwargs)
        except (UnsupportedOperation, OutOfMemory, PassFailed):
            raise
        except AccyError as error:
            raise PassFailed(
                str(error),
                pipeline=self.name,
                pass_name=name,
                target_op=self.context.opcode,
                location=self.context.location,
            ) from error
        self._passes.append(PassStatistics(name, time.perf_counter_ns() - begun))
        return result

    def broken(self, pass_name: str, message: str) -> PassFailed:
        """The error for a result that contradicts itself."""
        return PassFailed(
            message,
            pipeline=self.name,
            pass_name=pass_name,
            kind="verifier",
            target_op=self.context.opcode,
            location=self.context.location,
        )

    def statistics(self) -> PhaseStatistics:
        """How it went so far."""
        elapsed_ns = time.perf_counter_ns() - self._begun
        return PhaseStatistics(self.name, tuple(self._passes), elapsed_ns)
