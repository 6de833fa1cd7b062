"""Two threads at one backend: one makes an object, the other ends it all meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends import Backend
from accy_async.backends.devicegraph import GraphJoin, GraphNode, GraphRequest
from accy_async.backends.handles import Handle, ObjectKind

__all__ = ["HOOKS", "make", "meanwhile"]

_PATIENCE_S = 30

HOOKS = {
    ObjectKind.STREAM: "_open_stream",
    ObjectKind.EVENT: "_open_event",
    ObjectKind.BUFFER: "_allocate",
    ObjectKind.ARTIFACT: "_load",
    ObjectKind.GRAPH: "_open_graph",
}
"""What of a backend makes an object of each kind."""


def make(backend: Backend, kind: ObjectKind, kernel: KernelArtifact) -> Handle:
    """An object of that kind."""
    if kind is ObjectKind.STREAM:
        return backend.create_stream()
    if kind is ObjectKind.EVENT:
        return backend.create_event()
    if kind is ObjectKind.BUFFER:
        return backend.allocate_buffer(64)
    if kind is ObjectKind.ARTIFACT:
        return backend.load_artifact(kernel)
    return backend.create_graph(GraphRequest((GraphNode(GraphJoin()),)))


def meanwhile(
    backend: Backend,
    hook: str,
    call: Callable[[], object],
    act: Callable[[], object],
    *,
    is_before: bool,
) -> object:
    """Make a call on another thread, and act here while it is in a method.

    Args:
        backend: whose method it is.
        hook: the method, which is entered once.
        call: the call.
        act: what is done meanwhile.
        is_before: True to act before the method does anything, False after.

    Returns:
        What the call gave, or the error that it ended with.
    """
    inside, go_on = threading.Event(), threading.Event()
    method = getattr(backend, hook)
    found: list[object] = []

    def held_up(*arguments: Any, **options: Any) -> object:
        answer = None if is_before else method(*arguments, **options)
        inside.set()
        assert go_on.wait(_PATIENCE_S)
        return method(*arguments, **options) if is_before else answer

    def other() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - it is what is looked for
            found.append(error)

    setattr(backend, hook, held_up)
    thread = threading.Thread(target=other)
    thread.start()
    try:
        assert inside.wait(_PATIENCE_S)
        act()
    finally:
        go_on.set()
        thread.join(_PATIENCE_S)
        delattr(backend, hook)
    assert not thread.is_alive()
    return found[0]
