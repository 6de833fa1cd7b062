"""What happens, told through one small protocol that costs nothing when unused.

Whoever has something to tell holds ``observer: Observer | None`` and writes::

    if observer is not None:
        observer.node_started(run_id, node_id, time_ns)

so that without an observer an event costs one comparison. Arguments are ints,
strings and tuples that the teller has anyway; nothing is made for an event.

Order of calls, which every teller keeps:

* `Observer.run_started` is a run's first call, `Observer.run_finished` its last;
  `Observer.run_edges` may be called several times between them.
* A node that is submitted gets `Observer.node_submitted`, perhaps
  `Observer.node_details`, `Observer.node_started` if its start is known, and
  `Observer.node_finished`. A node that never is submitted gets
  `Observer.node_skipped` and nothing else. So each node leaves one span.
* A node id is unique in its run. A node of a loop has a new one each iteration.
* Calls of one run may come from several threads, but those of one node come one
  after the other.

Clocks. Every time is ``time.perf_counter_ns()`` of this process, in integers;
0 says that the teller does not know it, and the observer takes the moment at
which it is told. Times may be told late: a device's are known once its events
were read. A device's own clock is converted first, by a `ClockAlignment`, which
says how far it may be wrong; no two clocks are mixed in what an observer sees.

An observer is called in the middle of submitting: it must be quick, must not
wait, and must not raise (`accy_async.observe.combine` sees to the last).
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Literal, get_args

import attrs

from accy_async.values import integer

__all__ = [
    "DEFAULT_STREAM",
    "HOST_STREAM",
    "STATES",
    "ClockAlignment",
    "Dim3",
    "Observer",
    "State",
    "new_id",
    "phase",
    "state_of",
]

State = Literal["ok", "failed", "cancelled", "skipped"]
"""How a node, run or phase ended. ``cancelled``: it was asked to stop.
``skipped``: it never ran, as something that it depends on had failed."""

STATES: tuple[State, ...] = get_args(State)

Dim3 = tuple[int, int, int]

DEFAULT_STREAM = 0
"""The stream id of the default stream; streams have theirs, from 1."""

HOST_STREAM = -1
"""The stream id of what runs on the host and on no stream."""

_ids = itertools.count(1)


def new_id() -> int:
    """A new id for a run or a phase: unique in this process, in every thread."""
    return next(_ids)


def state_of(error: BaseException | None) -> State:
    """How something ended that raised this; any true error outweighs a cancel."""
    if error is None:
        return "ok"
    if isinstance(error, Exception):
        return "failed"
    if isinstance(error, BaseExceptionGroup) and error.subgroup(Exception) is not None:
        return "failed"
    return "cancelled"


class Observer:
    """Is told what happens. Each method does nothing; override what you need.

    Times are as the module says. ``error`` is what was raised, or None; an
    observer that outlives the call keeps its text, not the error, whose
    traceback holds every frame.
    """

    __slots__ = ()

    def run_started(
        self, run_id: int, plan_name: str, node_count: int, time_ns: int
    ) -> None:
        """A run began.

        Args:
            run_id: from `new_id`.
            plan_name: what to call it.
            node_count: nodes it expects to run; 0 if that is not known.
            time_ns: when.
        """

    def run_edges(self, run_id: int, pairs: Sequence[tuple[int, int]]) -> None:
        """Edges of the run's graph, as (before, after) node ids.

        Args:
            run_id: the run.
            pairs: the plan's own tuple, say: it is *borrowed* for as long as
                the observer lives, and must not change.
        """

    def node_submitted(
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        """A node was handed to its stream, or its host call to a thread or task.

        Args:
            run_id: the run.
            node_id: unique in the run.
            name: the node's name.
            kind: what it does, in a word: ``kernel``, ``copy``, ``fill``, ``host``.
            stream_id: its stream, `DEFAULT_STREAM` or `HOST_STREAM`.
            time_ns: when.
        """

    def node_details(
        self,
        run_id: int,
        node_id: int,
        byte_count: int,
        grid: Dim3 | None,
        threadgroup: Dim3 | None,
    ) -> None:
        """What a submitted node works on.

        Args:
            run_id: the run.
            node_id: the node.
            byte_count: bytes that it reads and writes; 0 if that is not known.
            grid: blocks of its launch.
            threadgroup: threads of a block.
        """

    def node_started(self, run_id: int, node_id: int, time_ns: int) -> None:
        """A node began to run. Left out where only its end can be seen."""

    def node_finished(
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        """A submitted node ended, in whatever way."""

    def node_skipped(
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        """A node was given up before it was submitted.

        Args:
            run_id: the run.
            node_id: unique in the run.
            name: the node's name.
            kind: what it would have done.
            stream_id: the stream it would have run on.
            time_ns: when it was given up.
            state: ``skipped`` after a failure, ``cancelled`` after a cancel.
            error: what kept it from running.
        """

    def run_finished(
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        """A run ended. Nodes of it that nobody finished end as cancelled."""

    def phase_started(
        self, phase_id: int, name: str, detail: str, time_ns: int
    ) -> None:
        """Work of the host around the runs began: a compile, load or upload.

        Args:
            phase_id: from `new_id`.
            name: what is done, in a word: ``compile``, ``load``, ``upload``.
            detail: what it is done to.
            time_ns: when.
        """

    def phase_finished(
        self, phase_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        """A phase ended."""


class _Phase:
    __slots__ = ("_detail", "_id", "_name", "_observer")

    def __init__(self, observer: Observer, name: str, detail: str) -> None:
        self._observer = observer
        self._name = name
        self._detail = detail
        self._id = new_id()

    def __enter__(self) -> None:
        self._observer.phase_started(
            self._id, self._name, self._detail, time.perf_counter_ns()
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._observer.phase_finished(
            self._id, time.perf_counter_ns(), state_of(error), error
        )


_UNOBSERVED: AbstractContextManager[None] = nullcontext()


def phase(
    observer: Observer | None, name: str, detail: str = ""
) -> AbstractContextManager[None]:
    """A ``with`` block that is a phase; awaits inside it are fine.

    Args:
        observer: whom to tell; with None the block is as if it were not there.
        name: what is done: ``compile``, ``load``, ``upload``.
        detail: what it is done to.
    """
    return _UNOBSERVED if observer is None else _Phase(observer, name, detail)


@attrs.frozen(kw_only=True)
class ClockAlignment:
    """How a device's clock translates into the host's.

    One pair of readings gives the offset. Clocks also drift, by some ten parts
    in a million: over a long run take a second pair and use `between`. All of
    it is integer arithmetic, exact for any offset.

    Attributes:
        device_ns: a reading of the device's clock, in nanoseconds.
        host_ns: ``time.perf_counter_ns()`` at that moment.
        uncertainty_ns: how far ``host_ns`` may be from that moment.
        device_span_ns: with ``host_span_ns``, the clocks' rate: so many
            nanoseconds of the device's clock
        host_span_ns: pass in so many of the host's.
    """

    device_ns: int = attrs.field(validator=integer(-(2**63), 2**64))
    host_ns: int = attrs.field(validator=integer(-(2**63), 2**64))
    uncertainty_ns: int = attrs.field(default=0, validator=integer(0, 2**63))
    device_span_ns: int = attrs.field(default=1, validator=integer(1, 2**64))
    host_span_ns: int = attrs.field(default=1, validator=integer(1, 2**64))

    def to_host_ns(self, device_ns: int) -> int:
        """A time of the device's clock, as ``time.perf_counter_ns()``."""
        passed = (device_ns - self.device_ns) * self.host_span_ns
        return self.host_ns + passed // self.device_span_ns

    @classmethod
    def measure(
        cls,
        read_device_ns: Callable[[], int],
        *,
        samples: int = 8,
        host_clock: Callable[[], int] = time.perf_counter_ns,
    ) -> ClockAlignment:
        """Read both clocks a few times and keep the tightest pair.

        Args:
            read_device_ns: reads the device's clock, in nanoseconds; sync.
            samples: how often to read.
            host_clock: reads the host's.

        Source: the bracketing of one clock by two readings of another, as in
            RFC 5905 (NTP), section 8.
        """
        best: ClockAlignment | None = None
        for _ in range(max(1, samples)):
            before = host_clock()
            device_ns = read_device_ns()
            width = host_clock() - before
            if best is None or width - width // 2 < best.uncertainty_ns:
                best = cls(
                    device_ns=device_ns,
                    host_ns=before + width // 2,
                    uncertainty_ns=width - width // 2,
                )
        assert best is not None
        return best

    @classmethod
    def between(cls, first: ClockAlignment, second: ClockAlignment) -> ClockAlignment:
        """The alignment that follows both clocks' rate between two others.

        Where no time passed between them, the second alone.
        """
        device_span = second.device_ns - first.device_ns
        host_span = second.host_ns - first.host_ns
        if device_span <= 0 or host_span <= 0:
            return second
        return cls(
            device_ns=first.device_ns,
            host_ns=first.host_ns,
            uncertainty_ns=max(first.uncertainty_ns, second.uncertainty_ns),
            device_span_ns=device_span,
            host_span_ns=host_span,
        )
