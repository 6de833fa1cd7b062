"""The recording backend: executes nothing, records everything, fails on request.

It is the reference fake of the Backend contract. Operations complete as soon as
they are submitted, unless their stream is held back; reads give zeros; device
time is simulated. Ids count up from 1, over buffers, artifacts, streams and
events alike.

What a test can ask of it:

* `fail` makes the n-th call of a kind raise, before the call has any effect
  (`destroy` has its effect first: a driver's refusal frees nothing later).
* `fail_execution` makes the n-th launch fail on the device, for its waits to
  report; with ``sticky=True`` it takes the device with it.
* `hold` and `release` keep a stream's work from completing; `step` lets one
  operation through.
* `on_call` is told of every call, to cancel or interrupt at a chosen one.

Handles that it never gave out are taken on trust in launches, so that tests can
invent operands; handles that it gave out and destroyed are refused.
"""

from accy_async.backends.recording.backend import RecordingBackend
from accy_async.backends.recording.records import (
    CALL_KINDS,
    CallRecord,
    LaunchRecord,
    SyncScope,
)

__all__ = ["CALL_KINDS", "CallRecord", "LaunchRecord", "RecordingBackend", "SyncScope"]
