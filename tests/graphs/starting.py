"""Starting a random program in a session."""

from __future__ import annotations

import attrs

from accy_async.dtypes import DType
from accy_async.graph.options import LaunchOptions
from accy_async.graph.run import Run
from accy_async.observe.protocol import Observer
from accy_async.session import Session
from tests.graphs.programs import LENGTH, Program

__all__ = ["start_program"]


def start_program(
    session: Session,
    program: Program,
    options: LaunchOptions | None = None,
    observer: Observer | None = None,
) -> Run:
    """Start it with the buffers, the event and the scalars that it asks for."""
    bindings: dict[str, object] = dict(program.hosts)
    for slot in program.plan.slots:
        if slot.name.startswith("b") and not getattr(slot, "is_scratch", False):
            bindings[slot.name] = session.allocate(LENGTH, DType.U32)
    if program.has_external:
        bindings["start"] = event = session.backend.create_event()
        session.backend.record_event(event)
    options = attrs.evolve(options or LaunchOptions(), runtime_scalars=program.scalars)
    return session.start(program.plan, bindings, options, observer=observer)
