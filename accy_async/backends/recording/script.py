"""What a test can ask of the recording backend: failures, holds, steps."""

from __future__ import annotations

from accy_async.backends.handles import (
    Handle,
    StreamHandle,
)
from accy_async.backends.recording.device import ExecutionFailure, PlannedFailure
from accy_async.backends.recording.peers import RecordingPeers
from accy_async.backends.recording.records import (
    CALL_KINDS,
    CallRecord,
    SyncScope,
)
from accy_async.errors import (
    AccyError,
    DeviceError,
    InvalidValue,
    OutOfMemory,
    RuntimeUnavailable,
)

__all__ = ["RecordingScript", "usual_error"]


class RecordingScript(RecordingPeers):
    """The levers of the recording backend."""

    def fail(
        self, kind: str = "*", nth: int = 1, error: BaseException | None = None
    ) -> None:
        """Make the ``nth`` call of a kind from now raise, once.

        Args:
            kind: one of `CALL_KINDS`, or ``*`` for any call.
            nth: which one, counting from 1.
            error: what to raise; a kind's usual error if left out.
        """
        if kind != "*" and kind not in CALL_KINDS:
            raise InvalidValue(
                "RecordingBackend.fail.kind", kind, f"one of {CALL_KINDS}"
            )
        if nth < 1:
            raise InvalidValue("RecordingBackend.fail.nth", nth, "1 or more")
        self._failures.append(PlannedFailure(kind, nth, error or usual_error(kind)))

    def fail_execution(
        self,
        nth_launch: int = 1,
        *,
        code: int = 700,
        message: str = "the kernel failed on the device",
        sticky: bool = False,
        silent: bool = False,
    ) -> None:
        """Make the ``nth_launch`` from now fail on the device.

        Its waits raise a `DeviceError` naming kernel, node and stream. With
        ``sticky`` the whole device is lost at that moment, as when a CUDA
        context dies of an illegal access. With ``silent`` it is lost without a
        word, as CUDA does it: nothing completes any more on any stream, and whatever
        call comes next finds that out, or `find_fault`. Of the launches from here on,
        those that had not ended for certain are suspects then.
        """
        self._keeps_journals = self._keeps_journals or silent
        self._execution_failures[self.launch_count + nth_launch] = ExecutionFailure(
            DeviceError(message, code=code), is_sticky=sticky, is_silent=silent
        )

    def hold(self, stream: StreamHandle | None = None) -> None:
        """Keep what is submitted to a stream (None: the default) from completing."""
        self._recording_stream(stream).is_held = True

    def hold_all(self) -> None:
        """Hold every stream, and every one opened from now on."""
        self._holds_new_streams = True
        for stream in self._streams:
            stream.is_held = True

    def step(self, stream: StreamHandle | None = None, count: int = 1) -> None:
        """Let so many operations of a held stream complete."""
        self._recording_stream(stream).steps += count
        self._pump()

    def ready_streams(self) -> list[StreamHandle | None]:
        """The held streams that have something to complete, waiting for no event.

        In the order they were opened, the default stream (None) first; those destroyed
        with work left are among them, and exchange streams, by numbers from 2**62 on.
        """
        found: list[StreamHandle | None] = []
        for stream in self._streams:
            if stream.is_held and stream.pending:
                awaited = stream.pending[0].waits_for
                if awaited is None or awaited[0].completed >= awaited[1]:
                    found.append(self._handle_of(stream))
        return found

    def release(self, stream: StreamHandle | None = None) -> None:
        """Let a held stream go on."""
        self._recording_stream(stream).is_held = False
        self._pump()

    def release_all(self) -> None:
        """Let every stream go on, destroyed ones included."""
        self._holds_new_streams = False
        for stream in self._streams:
            stream.is_held = False
        self._pump()

    def lose_device(self, message: str = "the device fell off the bus") -> None:
        """Lose the device now: waits end, and every later call fails."""
        self._lose(DeviceError(message, code=46, call="lose_device"))
        self._pump()

    @property
    def call_log(self) -> list[str]:
        """The calls as short texts, e.g. ``launch(3)``."""
        return [str(call) for call in self.calls]

    def _note(self, kind: str, handle: Handle | None = None) -> None:
        if self._is_watched:
            failure = self._take_failure(kind, handle)
            if failure is not None:
                raise failure

    @property
    def _is_watched(self) -> bool:
        return bool(self._keeps_records or self._failures or self.on_call is not None)

    def _note_wait(
        self, kind: str, scope: SyncScope, handle: Handle | None = None
    ) -> None:
        self.last_sync_scope = scope
        self.last_sync_stream = handle if isinstance(handle, StreamHandle) else None
        self.sync_count += 1
        self._note(kind, handle)

    def _take_failure(self, kind: str, handle: Handle | None) -> BaseException | None:
        if self._keeps_records or self.on_call is not None:
            record = CallRecord(kind, getattr(handle, "id", None))
            if self._keeps_records:
                self.calls.append(record)
            if self.on_call is not None:
                self.on_call(record)
        if not self._failures:
            return None
        matching = [one for one in self._failures if one.kind in ("*", kind)]
        for failure in matching:
            failure.countdown -= 1
        due = [one for one in matching if one.countdown <= 0]
        if not due:
            return None
        self._failures.remove(due[0])
        if due[0].kind == "*" and isinstance(due[0].error, _AnyError):
            return usual_error(kind)
        return due[0].error


class _AnyError(AccyError):
    """Stands for the usual error of whichever call it hits."""


def usual_error(kind: str) -> AccyError:
    """What a call of that kind raises when it is told to fail and not with what."""
    if kind == "*":
        return _AnyError("the usual error")
    if kind == "load_artifact":
        return RuntimeUnavailable("load_artifact: told to fail")
    if kind == "allocate_buffer":
        return OutOfMemory("allocate_buffer: told to fail")
    return DeviceError(f"{kind}: told to fail", call=kind, code=999)
