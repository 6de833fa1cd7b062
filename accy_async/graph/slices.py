"""Long work that gives way to the event loop: in slices, or on a thread."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import anyio.lowlevel

from accy_async.backends.completion import run_abandonable

if TYPE_CHECKING:
    from accy_async.graph.layout import BlockLayout
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["SLICE_NS", "in_slices", "laid_out", "without_pauses"]

SLICE_NS = 500_000
"""How long a run may keep the event loop before it gives way to it."""

_LAID_OUT_AT_ONCE = 200
"""Nodes of plans that are laid out on the spot; larger ones are on a thread."""


_MANY_NODES = 5_000
"""Nodes of plans whose objects the collector takes long to walk through."""


_SWITCH_S = 0.0005
"""How soon an event loop gets the interpreter lock from a thread of ours."""


class _Interpreter:
    """The collector and the interpreter lock, and how many runs want them tame."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holders = 0
        self._thresholds = gc.get_threshold()
        self._switch_s = self._held_s = 0.0

    def hold_off(self) -> None:
        with self._lock:
            if self._holders == 0:
                self._thresholds = gc.get_threshold()
                self._switch_s = sys.getswitchinterval()
                # Not `gc.disable`: whether the collector is on is the program's affair.
                gc.set_threshold(0, *self._thresholds[1:])
                sys.setswitchinterval(min(self._switch_s, _SWITCH_S))
                self._held_s = sys.getswitchinterval()
            self._holders += 1

    def allow(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            if sys.getswitchinterval() == self._held_s:
                sys.setswitchinterval(self._switch_s)
            if gc.isenabled() and gc.get_freeze_count() == 0:
                # Makes old objects of all the new ones, without a walk.
                gc.freeze()
                gc.unfreeze()
            # What the program has set meanwhile stays.
            if gc.get_threshold() == (0, *self._thresholds[1:]):
                gc.set_threshold(*self._thresholds)


_interpreter = _Interpreter()


@contextmanager
def without_pauses(node_count: int) -> Iterator[None]:
    """Keep a large plan's making ready from stopping the event loop.

    A walk over the objects of a plan of 100,000 nodes stops every event loop of
    the process for a fifth of a second, and preparing it makes enough objects to
    set several off. So the collector rests meanwhile: preparing is bounded work
    that waits for nothing, some 10 us a node, and the objects that it made then
    count as old. What is done on a thread gives the interpreter lock up sooner than
    it usually would: a loop has to ask for it several times a turn.
    """
    if node_count < _MANY_NODES:
        yield
        return
    _interpreter.hold_off()
    try:
        yield
    finally:
        _interpreter.allow()


async def in_slices(steps: Iterable[object]) -> None:
    """Take all the steps, giving way to the event loop after each slice.

    Cancellation: between two slices; the steps that were taken stay taken.
    """
    began = time.perf_counter_ns()
    for _ in steps:
        if time.perf_counter_ns() - began >= SLICE_NS:
            await anyio.lowlevel.checkpoint()
            began = time.perf_counter_ns()


async def laid_out(
    plan: LaunchGraphPlan, max_streams: int, places: Whereabouts | None = None
) -> BlockLayout:
    """A plan's layout; the first of a large plan is worked out on a thread.

    Cancellation: returns at once; the layout is there for who asks next.
    """
    if len(plan.nodes) > _LAID_OUT_AT_ONCE and not plan.is_laid_out(
        max_streams, places
    ):
        with without_pauses(len(plan.nodes)):
            await run_abandonable(
                lambda: plan.layout(max_streams, places),
                lambda _: None,
                name="laying out a plan",
            )
    return plan.layout(max_streams, places)
