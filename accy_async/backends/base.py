"""The Backend contract: submission is sync and never blocks, only waiting is async.

A backend drives one device. Its users hold handles; it holds the objects. The
contract, which the conformance suite (tests/conformance) states for every
backend:

* **Order.** Operations of one stream run in the order of submission, across
  streams in no order but that of recorded events. The default stream (``None``)
  is a stream like the others.
* **Submission.** Every call but the waits is plain, thread-safe, and returns in
  microseconds without waiting for the device. `create_artifact` and
  `load_artifact` may compile or read: where `loads_block` is True, callers on an
  event loop run them on a thread.
* **Checks.** What is wrong in a call (a handle, a count, a limit) raises before
  anything is submitted, and changes nothing.
* **Device errors** belong to the operation that failed. They are raised by the
  waits that cover it (see `Timeline`), and by nothing else, unless the device is
  lost: then every call raises `DeviceLost` with the first error as its cause.
* **Lifetimes.** `destroy` makes a handle unusable at once and frees its object
  when the device has finished with it (see `lifetimes`); nobody has to wait
  first. `live_objects` counts what is not freed yet.
* **Waits** return when the work submitted *before* the call is done, and never
  block the loop. Cancelling a wait stops only the wait.
"""

from __future__ import annotations

from accy_async.backends.contract.core import (
    DEFAULT_GRACE_S,
    Settled,
    SettleTimeout,
)
from accy_async.backends.contract.graphs import Graphs
from accy_async.backends.contract.launches import Launches
from accy_async.backends.contract.ownership import Ownership
from accy_async.backends.contract.peers import Peers
from accy_async.backends.contract.steps import Steps
from accy_async.backends.contract.waits import Waits
from accy_async.backends.hooks import EventState, GraphState, StreamState
from accy_async.backends.loops import uninterrupted

__all__ = [
    "DEFAULT_GRACE_S",
    "Backend",
    "EventState",
    "GraphState",
    "SettleTimeout",
    "Settled",
    "StreamState",
]


class Backend(Peers, Launches, Steps, Graphs, Waits, Ownership):
    """One device and everything on it. See the module for the contract.

    Args:
        kind: the kind of device.
        grace_s: how long cleanup waits for the device, in seconds.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        uninterrupted(cls)
