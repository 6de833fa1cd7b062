"""A recording backend whose loads block, each until a test lets it through."""

from __future__ import annotations

import threading
from typing import ClassVar

from accy_async.artifact import ArtifactRequest, KernelArtifact
from accy_async.backends import LoadedArtifact, RecordingBackend

__all__ = ["BlockingBackend", "join_loads"]

GIVE_UP_S = 20.0
"""Only a broken test waits as long as this."""


class BlockingBackend(RecordingBackend):
    """Loads on threads, as a driver's module loader or a compiler would need.

    Attributes:
        gate: one permit for each load that may go on.
        threads: the thread of each load begun, in order.
        load_error: what every load raises instead, once it was let through.
    """

    loads_block: ClassVar[bool] = True

    def __init__(self, *, is_open: bool = False) -> None:
        super().__init__()
        self.gate = threading.Semaphore(0)
        self.threads: list[threading.Thread] = []
        self.load_error: BaseException | None = None
        if is_open:
            self.open()

    def let_one_through(self) -> None:
        """Let the next load go on."""
        self.gate.release()

    def open(self) -> None:
        """Let every load go on."""
        self.gate.release(64)

    def create_artifact(self, request: ArtifactRequest) -> KernelArtifact:
        """Wait at the gate, as a compiler would take its time."""
        self.threads.append(threading.current_thread())
        if not self.gate.acquire(timeout=GIVE_UP_S):
            raise AssertionError("nobody let the load through")
        return super().create_artifact(request)

    def load_artifact(self, artifact: KernelArtifact) -> LoadedArtifact:
        """Load, or raise what the test asked for."""
        if self.load_error is not None:
            raise self.load_error
        return super().load_artifact(artifact)


def join_loads(backend: BlockingBackend) -> None:
    """Let every load end, and wait until its thread has."""
    backend.open()
    for thread in list(backend.threads):
        if thread is not threading.current_thread():
            thread.join(GIVE_UP_S)
            assert not thread.is_alive()
