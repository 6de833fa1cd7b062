"""What every record says of its measurement."""

from __future__ import annotations

import attrs

from accy_async.artifact.fingerprint import canonical_bytes
from accy_async.errors import InvalidValue
from accy_async.tuning.records.binary import RecordReader, RecordWriter, numbers_of
from accy_async.values import integer

__all__ = ["KeptRecord", "TuningRecord", "read_measurement", "write_measurement"]

_U64 = integer(0, 2**64 - 1)
_MEASUREMENT = numbers_of("2QI")


class KeptRecord:
    """Anything of which the better one is kept: records of every kind are."""

    @property
    def identity(self) -> object:
        """What it is a record of; two of one identity compete."""
        raise NotImplementedError

    @property
    def rank(self) -> tuple[int, int]:
        """Median time in nanoseconds, and samples that it is of."""
        raise NotImplementedError

    def is_better_than(self, other: KeptRecord) -> bool:
        """Whether to keep it rather than another of the same identity.

        The faster one; of equally fast ones that with more samples; of these any,
        but always the same one.
        """
        (my_ns, my_count), (its_ns, its_count) = self.rank, other.rank
        if (my_ns, my_count) != (its_ns, its_count):
            return (my_ns, -my_count) < (its_ns, -its_count)
        return canonical_bytes(self) < canonical_bytes(other)


@attrs.frozen(kw_only=True)
class TuningRecord(KeptRecord):
    """A winner and how well it is known; its kinds say what won.

    Attributes:
        winner_median_ns: the winner's median time.
        runner_up_median_ns: that of the next best; 0 where there was none.
        sample_count: samples that the winner's median is of.
    """

    winner_median_ns: int = attrs.field(validator=_U64)
    runner_up_median_ns: int = attrs.field(default=0, validator=_U64)
    sample_count: int = attrs.field(default=1, validator=integer(1))

    def __attrs_post_init__(self) -> None:
        if 0 < self.runner_up_median_ns < self.winner_median_ns:
            raise InvalidValue(
                f"{type(self).__name__}.runner_up_median_ns",
                self.runner_up_median_ns,
                f"0, or at least the winner's {self.winner_median_ns}",
            )

    @property
    def rank(self) -> tuple[int, int]:
        """The winner's median, and its samples."""
        return self.winner_median_ns, self.sample_count


def write_measurement(writer: RecordWriter, record: TuningRecord) -> None:
    """The record's times and count: u64, u64, u32."""
    writer.unsigned(record.winner_median_ns, 8)
    writer.unsigned(record.runner_up_median_ns, 8)
    writer.unsigned(record.sample_count, 4)


def read_measurement(reader: RecordReader) -> dict[str, int]:
    """What `write_measurement` wrote, by field."""
    winner_ns, runner_up_ns, count = reader.numbers(_MEASUREMENT)
    return {
        "winner_median_ns": winner_ns,
        "runner_up_median_ns": runner_up_ns,
        "sample_count": count,
    }
