"""Closing, and leaving, while another thread makes an object."""

from __future__ import annotations

import anyio
import pytest

from accy_async.backends.handles import Handle, ObjectKind
from accy_async.backends.owned import owned_backend
from accy_async.errors import SessionClosed
from tests.conformance.devices import Device
from tests.harness.racing import HOOKS, make, meanwhile

EACH_KIND = pytest.mark.parametrize(
    "kind", [pytest.param(kind, id=kind.value) for kind in HOOKS]
)
WHEN = pytest.mark.parametrize("is_before", [True, False], ids=["asking", "made"])


def _kernel(device: Device) -> str:
    return next(iter(device.kernel_names()))


@EACH_KIND
@WHEN
def test_what_is_made_while_the_backend_closes_is_refused_by_name(
    device: Device, kind: ObjectKind, is_before: bool
) -> None:
    """The device is given back after it, and nothing is left."""
    backend = device.backend
    if kind is ObjectKind.GRAPH and not backend.capabilities.device_graphs:
        return
    kernel = device.artifact(_kernel(device))
    found = meanwhile(
        backend,
        HOOKS[kind],
        lambda: make(backend, kind, kernel),
        backend.close,
        is_before=is_before,
    )
    assert isinstance(found, SessionClosed), found
    assert f"closed while {kind.singular}" in str(found)
    assert not any(backend.live_objects().values())


@EACH_KIND
def test_what_was_made_as_the_backend_closed_was_the_sessions(
    device: Device, kind: ObjectKind
) -> None:
    """It is made, and closing comes before its owner has it."""
    backend = device.backend
    if kind is ObjectKind.GRAPH and not backend.capabilities.device_graphs:
        return
    kernel = device.artifact(_kernel(device))
    owner = backend.open_owner("somebody")
    view = owned_backend(backend, owner, 1.0)
    found = meanwhile(
        backend,
        "give_to",
        lambda: make(view, kind, kernel),
        backend.close,
        is_before=True,
    )
    assert isinstance(found, SessionClosed), found
    assert "closed" in str(found)
    assert not any(backend.live_objects().values())


@EACH_KIND
@pytest.mark.parametrize("hook", ["", "give_to"], ids=["asking", "made"])
def test_what_is_made_while_its_owner_leaves_is_refused_by_name(
    device: Device, kind: ObjectKind, hook: str
) -> None:
    """And the others on the device keep theirs."""
    backend = device.backend
    if kind is ObjectKind.GRAPH and not backend.capabilities.device_graphs:
        return
    kernel = device.artifact(_kernel(device))
    leaver, stayer = backend.open_owner("the leaver"), backend.open_owner("the stayer")
    view = owned_backend(backend, leaver, 1.0)
    kept = owned_backend(backend, stayer, 1.0).allocate_buffer(64)
    found = meanwhile(
        backend,
        hook or HOOKS[kind],
        lambda: make(view, kind, kernel),
        lambda: backend.close_owner(leaver),
        is_before=True,
    )
    assert isinstance(found, SessionClosed), found
    assert "the leaver was left" in str(found)
    assert not any(backend.live_objects(leaver).values())
    assert backend.is_alive(kept)
    backend.close_owner(stayer)


def test_many_threads_make_while_the_backend_closes(device: Device) -> None:
    """Each has an object that was alive then, or is told that it came too late."""
    backend = device.backend
    made: list[Handle] = []
    refused: list[SessionClosed] = []

    def work() -> None:
        while True:
            try:
                made.append(backend.allocate_buffer(64))
                made.append(backend.create_event())
            except SessionClosed as error:
                refused.append(error)
                return

    async def main() -> None:
        async with anyio.create_task_group() as group:
            for _ in range(4):
                group.start_soon(anyio.to_thread.run_sync, work)
            while len(made) < 20:
                await anyio.lowlevel.checkpoint()
            backend.close()

    anyio.run(main)
    assert len(refused) == 4
    assert not any(backend.is_alive(handle) for handle in made)
    assert not any(backend.live_objects().values())
