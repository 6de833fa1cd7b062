"""Runs: what `Session.start` gives, to await, to look at, and to cancel."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Generator, Mapping
from typing import TYPE_CHECKING

import anyio
import anyio.lowlevel

from accy_async.backends.cleanup import leaves, raise_together
from accy_async.backends.nativecancel import outlast
from accy_async.errors import DeviceLost, GraphError, InvalidType
from accy_async.graph.outcome import (
    NodeSkipped,
    NodeState,
    RunCancelled,
    RunStatistics,
)
from accy_async.values import some_names

if TYPE_CHECKING:
    from accy_async.graph.bindings import Binding
    from accy_async.graph.progress import RunProgress
    from accy_async.observe.protocol import State

__all__ = ["NodeHandle", "Run"]


class NodeHandle:
    """One node, or one loop, of a run; ``run[name]`` gives it.

    Awaiting it returns when the node is done on the device (a loop: its last
    iteration), and raises what it failed with.

    Raises:
        AccyError: what the node failed with; for a host call, what it raised.
        NodeSkipped: something that it depends on failed.
        RunCancelled: the run was cancelled before the node began.
        GraphError: a host call awaits itself, or what depends on it.

    Cancellation: only the wait stops; node and run go on.
    """

    __slots__ = ("_index", "_progress", "name")

    def __init__(self, progress: RunProgress, index: int, name: str) -> None:
        self._progress = progress
        self._index = index
        self.name = name

    def __repr__(self) -> str:
        return f"<NodeHandle {self.name}: {self.state}>"

    @property
    def state(self) -> NodeState:
        """Where the node stands."""
        return self._progress.state(self._index)

    @property
    def error(self) -> BaseException | None:
        """What it failed with, if it did."""
        return self._progress.error(self._index)

    def __await__(self) -> Generator[object, object, None]:
        return self.wait().__await__()

    async def wait(self) -> None:
        """Return when the node is done; see the class."""
        self._progress.refuse_to_wait(self._index)
        await self._progress.wait(self._index)
        state = self.state
        if state is NodeState.FINISHED:
            return
        error = self.error
        if state is NodeState.FAILED and error is not None:
            raise error
        if state is NodeState.SKIPPED:
            raise NodeSkipped(
                f"node {self.name!r} was skipped: something it depends on failed"
            ) from self._progress.cause_of_skip(self._index)
        raise RunCancelled(f"node {self.name!r} was not run: the run was cancelled")


class Run:
    """One running of a plan.

    * ``await run`` returns its statistics when all of it is done.
    * ``await run["softmax"]`` returns when one node is.
    * ``async for node in run`` gives each node as it gets done.
    * ``run.cancel()`` stops it.

    A run belongs to its session: leaving the session cancels what still runs.

    Raises:
        ExceptionGroup: on ``await run``: everything that failed in it; the
            nodes that were skipped because of that add nothing.
        RunCancelled: on ``await run``: it was cancelled and nothing failed.

    Cancellation: of ``await run``, ``await run[node]`` or the iteration: only
        the wait stops, the run goes on. `Session.run` ties the two together.
    """

    def __init__(
        self, name: str, progress: RunProgress, cancel: Callable[[], None]
    ) -> None:
        self.name = name
        self._progress = progress
        self._cancel = cancel
        self._preparing_error: Exception | None = None
        self._cleanup_errors: list[Exception] = []
        self._is_observed = False
        self._held: Mapping[str, Binding] = {}

    def __repr__(self) -> str:
        return f"<Run {self.name}: {self.state}>"

    @property
    def state(self) -> str:
        """``running``, ``finished``, ``failed`` or ``cancelled``."""
        if not self.is_done:
            return "running"
        error = self._outcome()
        if error is None:
            return "finished"
        return "cancelled" if isinstance(error, RunCancelled) else "failed"

    @property
    def is_done(self) -> bool:
        """True where all of it is done, in whatever way."""
        return self._progress.done.is_set()

    @property
    def errors(self) -> Mapping[str, BaseException]:
        """What failed so far, by the name of the node or loop."""
        name = self._progress.relations.name
        # Copied in one go: other threads add to it.
        return {name(i): error for i, error in dict(self._progress.errors).items()}

    def __getitem__(self, name: str) -> NodeHandle:
        """The node, or loop, of that name.

        Raises:
            GraphError: the plan has none.
        """
        if not isinstance(name, str):
            raise InvalidType("run[...]", name, "a node's name")
        index = self._progress.relations.find(name)
        if index is None:
            relations = self._progress.relations
            names = some_names(map(relations.name, range(relations.count)))
            raise GraphError(
                f"run {self.name!r}: the plan has no node {name!r}; it has {names}"
            )
        return NodeHandle(self._progress, index, name)

    def __await__(self) -> Generator[object, object, RunStatistics]:
        return self.wait().__await__()

    async def wait(self) -> RunStatistics:
        """Return when all of it is done; see the class."""
        self._progress.refuse_to_wait()
        await self._progress.done.wait()
        self._is_observed = True
        error = self._outcome()
        if error is not None:
            raise error
        return self.statistics()

    async def wait_over(self) -> None:
        """Return when all of it is done, whatever became of it.

        Cancellation: only the wait stops.
        """
        await self._progress.done.wait()

    def cleanup_errors(self) -> list[Exception]:
        """What went wrong after the last node, e.g. a `GraceExpired`."""
        return list(self._cleanup_errors)

    def cancel(self) -> None:
        """Stop the run. Sync; idempotent; nothing if it is done.

        No further node is submitted, host calls are cancelled, and work that was
        submitted but has not begun is dropped where the device can. What has
        begun is awaited for the session's grace at most. ``await run`` then
        raises `RunCancelled`.
        """
        self._is_observed = True
        if not self.is_done:
            self._cancel()

    async def wait_tied(self) -> RunStatistics:
        """Wait for the run; whoever cancels the wait cancels the run.

        Raises:
            As the run itself.

        Cancellation: returns once the run is over: within the grace, or with a
            `GraceExpired` in an ExceptionGroup.
        """
        try:
            return await self.wait()
        except anyio.get_cancelled_exc_class() as cancelled:
            self.cancel()
            _, native = await outlast(self.wait_over)
            primary = native or cancelled
            raise_together(f"run {self.name!r}", primary, self.cleanup_errors())
            raise

    def binding(self, slot: str) -> Binding:
        """What holds a bound slot's value after the run, as it was bound.

        Loops swap the buffers of the slots that they carry: after an odd number
        of iterations the array that was bound to ``current`` is the other one.

        Raises:
            GraphError: the run is not done, was not submitted whole, or the slot
                is none that was bound.
        """
        found = self._held.get(slot) if self.is_done else None
        if found is None:
            raise GraphError(
                f"run {self.name!r}: slot {slot!r} has no binding to tell of; expected "
                "a bound slot of a run that is done"
            )
        return found

    def note_bindings(self, held: Mapping[str, Binding]) -> None:
        """What `binding` answers; told by its executive."""
        self._held = held

    def statistics(self) -> RunStatistics:
        """The run at this moment."""
        return self._progress.statistics()

    def __aiter__(self) -> AsyncIterator[NodeHandle]:
        """Each node, once, as it gets done; loops are given at their end.

        Nodes are given whatever became of them (see `NodeHandle.state`). The
        iteration may be left at any time, and needs no closing.
        """
        return _Nodes(self._progress)

    def unobserved_error(self) -> Exception | None:
        """What the run failed with, if nobody has awaited or cancelled it."""
        if self._is_observed or not self.is_done:
            return None
        error = self._outcome()
        return None if isinstance(error, RunCancelled) else error

    def told_outcome(self) -> tuple[State, BaseException | None]:
        """The outcome in an observer's words."""
        error = self._outcome()
        if error is None:
            return "ok", None
        return ("cancelled" if isinstance(error, RunCancelled) else "failed"), error

    def failed_to_prepare(self, error: Exception) -> None:
        """The run ended before its first node; told by its executive."""
        self._preparing_error = error

    def failed_to_clean_up(self, errors: list[Exception]) -> None:
        """What went wrong after the last node; told by its executive."""
        self._cleanup_errors += errors

    def _outcome(self) -> Exception | None:
        errors = list(self._cleanup_errors)
        if self._preparing_error is not None:
            errors = [*leaves(self._preparing_error), *errors]
        error = self._progress.outcome_error(self.name)
        if isinstance(error, ExceptionGroup):
            errors = [*error.exceptions, *errors]
        elif error is not None and not errors:
            return error
        errors = _told_once(errors)
        return ExceptionGroup(f"run {self.name!r} failed", errors) if errors else None


class _Nodes:
    """The iteration over a run; no generator, which would have to be closed."""

    def __init__(self, progress: RunProgress) -> None:
        self._progress = progress
        self._remaining = progress.relations.count
        self._found: deque[int] = deque()
        self._tracker = progress.track()

    def __aiter__(self) -> _Nodes:
        return self

    async def __anext__(self) -> NodeHandle:
        while not self._found:
            if not self._remaining:
                self._progress.untrack(self._tracker)
                raise StopAsyncIteration
            await anyio.lowlevel.checkpoint()
            self._found += self._tracker.take()
            self._remaining -= len(self._found)
            if not self._found:
                await self._tracker.wait()
        index = self._found.popleft()
        return NodeHandle(self._progress, index, self._progress.relations.name(index))

    def __del__(self) -> None:
        self._progress.untrack(self._tracker)


def _told_once(errors: list[Exception]) -> list[Exception]:
    """The same, with the loss of the device once, whoever ran into it."""
    lost = [error for error in errors if isinstance(error, DeviceLost)]
    return [error for error in errors if error not in lost[1:]]
