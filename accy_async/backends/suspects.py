"""Who broke the device: the launches that may have been at work on it.

Some devices say only later, to whoever asks next, that a kernel has failed, and fail
every call from then on: a CUDA context after an illegal access, say. Nothing tells
which kernel it was. But each stream keeps its last launches (`StreamState.journal`)
and knows how far it had come, so that the culprit is among the launches behind that.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from accy_async.errors import DeviceError, Suspect

if TYPE_CHECKING:
    from accy_async.backends.hooks import StreamState

__all__ = ["accuse", "suspects_of"]

_NAMED = 4
"""Suspects that a message names."""


def suspects_of(streams: Iterable[StreamState]) -> tuple[Suspect, ...]:
    """The launches that had not ended for certain, in order on each stream."""
    found: dict[Suspect, None] = {}
    for stream in streams:
        if stream.journal is not None:
            line = stream.timeline
            for label in stream.journal.between(line.reached, line.submitted):
                found[Suspect(*label, stream.id)] = None
    return tuple(found)


def accuse(error: DeviceError, streams: Iterable[StreamState]) -> DeviceError:
    """The error with those that may have caused it: one by name, more as suspects.

    An error that names its node or kernel stays as it is.
    """
    if error.node is not None or error.kernel is not None:
        return error
    suspects = suspects_of(streams)
    only = suspects[0] if len(suspects) == 1 else None
    return DeviceError(
        error.message if only is not None else f"{error.message}; {_told(suspects)}",
        code=error.code,
        call=error.call,
        node=None if only is None else only.node,
        kernel=None if only is None else only.kernel,
        stream=None if only is None else only.stream,
        suspects=suspects,
    )


def _told(suspects: tuple[Suspect, ...]) -> str:
    if not suspects:
        return "no launch of this backend was at work: it was somebody else's"
    named = [str(suspect) for suspect in suspects[:_NAMED]]
    if len(suspects) > _NAMED:
        return (
            f"one of {len(suspects)} launches did it: {', '.join(named)}, ...; a "
            "backend opened with debug=True says which"
        )
    return f"one of these did it: {' or '.join(named)}"
