"""What a worker is asked, and what it answers."""

from __future__ import annotations

import attrs

from accy_async.errors import InvalidValue
from accy_async.fleet.found import JobFound
from accy_async.values import instances, optional, text, to_tuple, tuple_of

__all__ = ["JobReply", "JobRequest"]


@attrs.frozen(kw_only=True)
class JobRequest:
    """Candidates to measure against each other.

    Attributes:
        names: theirs; the first is the baseline.
    """

    names: tuple[str, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(str, expected="names")
    )

    def __attrs_post_init__(self) -> None:
        if not self.names:
            raise InvalidValue("JobRequest.names", self.names, "at least one")


@attrs.frozen(kw_only=True)
class JobReply:
    """What a worker answers, whatever happened; nothing is raised across processes.

    Attributes:
        found: what it measured; None where it could not.
        lost: how its device was lost; empty where it was not.
        culprit: the candidate that took the device with it, where that is known.
        refused: what it was asked and cannot do, with the error's name.
    """

    found: JobFound | None = attrs.field(
        default=None, validator=optional(instances(JobFound))
    )
    lost: str = attrs.field(default="", validator=text(empty=True))
    culprit: str = attrs.field(default="", validator=text(empty=True))
    refused: str = attrs.field(default="", validator=text(empty=True))
