"""What the demo is asked for, and what is known after it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import attrs

if TYPE_CHECKING:
    from accy_async.backends.capabilities import Capabilities
    from accy_async.cli.demo.check import Distance

__all__ = [
    "CancelOutcome",
    "CheckOutcome",
    "DemoOptions",
    "DemoOutcome",
    "InputFacts",
    "Spread",
    "Timing",
]


@attrs.frozen(kw_only=True)
class DemoOptions:
    """What is asked for.

    Attributes:
        backend: as `open_session` takes it.
        length: how many values of the default signal.
        input: a ``.npy`` file to scan instead, or None.
        launches: how often to scan it.
        streams: on how many streams.
        loop: the event loop, as `accy_async.run` takes it.
    """

    backend: str = "auto"
    length: int = 10_000_000
    input: Path | None = None
    launches: int = 64
    streams: int = 4
    loop: str = "asyncio"


@attrs.frozen(kw_only=True)
class InputFacts:
    """The values that were scanned."""

    description: str
    dtype: str
    length: int
    byte_size: int
    checksum: str


@attrs.frozen(kw_only=True)
class Spread:
    """Some times of the same thing, in seconds."""

    samples: int
    median_s: float
    least_s: float
    greatest_s: float

    @classmethod
    def of(cls, times: list[float]) -> Spread:
        """What these times come to; at least one."""
        ordered = sorted(times)
        middle = len(ordered) // 2
        median = (ordered[middle] + ordered[-1 - middle]) / 2
        return cls(
            samples=len(ordered),
            median_s=median,
            least_s=ordered[0],
            greatest_s=ordered[-1],
        )


@attrs.frozen(kw_only=True)
class Timing:
    """How long the launches took, beside numpy.

    Attributes:
        launches: how many were timed.
        rounds: in how many rounds; in each, all were in flight together.
        peak_in_flight: most launches in flight at once.
        launch: a launch's share of its round, over the rounds.
        submit_us: host time to submit one launch, in microseconds.
        numpy: ``numpy.cumsum`` of the same values on one core, measured between
            the rounds; None where nothing was executed.
        bytes_per_launch: what is counted as moved: each value read once and
            each result written once.
    """

    launches: int
    rounds: int
    peak_in_flight: int
    launch: Spread
    submit_us: float
    numpy: Spread | None
    bytes_per_launch: int

    @property
    def launches_per_s(self) -> float:
        """How many launches complete in a second."""
        return 1.0 / self.launch.median_s if self.launch.median_s else 0.0

    @property
    def gigabytes_per_s(self) -> float:
        """Of the bytes that are counted."""
        return self.bytes_per_launch * self.launches_per_s / 1e9

    @property
    def ratio_to_numpy(self) -> float | None:
        """How many times as fast as numpy."""
        if self.numpy is None or not self.launch.median_s:
            return None
        return self.numpy.median_s / self.launch.median_s


@attrs.frozen(kw_only=True)
class CheckOutcome:
    """What came of comparing the results.

    Attributes:
        checked: results that were compared, all of them whole.
        wrong: those whose bits were not the reference's.
        first_wrong: the first difference, in words; empty if none.
        distance: how far the reference is from numpy; None if not checked.
        skipped: why nothing was checked; empty if it was.
    """

    checked: int = 0
    wrong: int = 0
    first_wrong: str = ""
    distance: Distance | None = None
    skipped: str = ""

    @property
    def is_right(self) -> bool:
        """True where nothing was found to be wrong."""
        near = self.distance is None or self.distance.is_within_bound
        return self.wrong == 0 and near


@attrs.frozen(kw_only=True)
class CancelOutcome:
    """What came of cancelling a launch in flight.

    Attributes:
        was_in_flight: its stream still had work when it was cancelled.
        was_cancelled: the launch ended by the cancellation.
        queued_before: launches in front of it on its stream.
        copied_before_bytes: copied by its stream in front of those.
        after_s: when it was cancelled, after it was begun.
        took_s: from cancelling until it had cleaned up and returned.
        live_before: objects alive before it, by kind.
        live_during: when it was cancelled, with its own scratch.
        live_after: once it had returned.
        skipped: why nothing was cancelled; empty if something was.
    """

    was_in_flight: bool = False
    was_cancelled: bool = False
    queued_before: int = 0
    copied_before_bytes: int = 0
    after_s: float = 0.0
    took_s: float = 0.0
    live_before: dict[str, int] = attrs.field(factory=dict)
    live_during: dict[str, int] = attrs.field(factory=dict)
    live_after: dict[str, int] = attrs.field(factory=dict)
    skipped: str = ""

    @property
    def is_clean(self) -> bool:
        """True where nothing of the launch was left."""
        return self.live_after == self.live_before


@attrs.frozen(kw_only=True, eq=False)
class DemoOutcome:
    """All that is known after the demo."""

    backend: str
    capabilities: Capabilities
    executes: bool
    loop: str
    streams: int
    input: InputFacts
    prepare_s: dict[str, float]
    timing: Timing
    check: CheckOutcome
    cancel: CancelOutcome
    live_at_end: dict[str, int]
    total_s: float

    @property
    def is_passed(self) -> bool:
        """True where nothing was wrong and nothing was left."""
        return (
            self.check.is_right
            and self.cancel.is_clean
            and not any(self.live_at_end.values())
        )
