"""Long work that gives way to the event loop: in slices, or on a thread."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import anyio.lowlevel

from accy_async.backends.completion import run_abandonable

if TYPE_CHECKING:
    from accy_async.graph.layout import BlockLayout
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["SLICE_NS", "in_slices", "laid_out"]

SLICE_NS = 500_000
"""How long a run may keep the event loop before it gives way to it."""

_LAID_OUT_AT_ONCE = 200
"""Nodes of plans that are laid out on the spot; larger ones are on a thread."""


async def in_slices(steps: Iterable[object]) -> None:
    """Take all the steps, giving way to the event loop after each slice.

    Cancellation: between two slices; the steps that were taken stay taken.
    """
    began = time.perf_counter_ns()
    for _ in steps:
        if time.perf_counter_ns() - began >= SLICE_NS:
            await anyio.lowlevel.checkpoint()
            began = time.perf_counter_ns()


async def laid_out(plan: LaunchGraphPlan, max_streams: int) -> BlockLayout:
    """A plan's layout; the first of a large plan is worked out on a thread.

    Cancellation: returns at once; the layout is there for who asks next.
    """
    if len(plan.nodes) > _LAID_OUT_AT_ONCE and not plan.is_laid_out(max_streams):
        await run_abandonable(
            lambda: plan.layout(max_streams), lambda _: None, name="laying out a plan"
        )
    return plan.layout(max_streams)
