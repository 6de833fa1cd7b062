"""Several observers as one, and none of them able to break what it observes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from accy_async.errors import InvalidType
from accy_async.observe.protocol import Dim3, Observer, State

__all__ = ["CombinedObserver", "combine_observers"]

_log = logging.getLogger("accy_async.observe")
_EVENTS = tuple(
    name
    for name in vars(Observer)
    if not name.startswith("_") and callable(getattr(Observer, name))
)


def combine_observers(*observers: Observer | None) -> Observer | None:
    """One observer for all of these, safe to call while submitting work.

    Args:
        observers: the observers; None stands for none.

    Returns:
        A `CombinedObserver` of them, or None if there are none: then observing
        costs nothing.

    Raises:
        InvalidType: one has none of an observer's methods, or is a class.
    """
    given: list[Observer] = []
    for observer in observers:
        if isinstance(observer, CombinedObserver):
            given.extend(observer.observers)
        elif observer is not None:
            if not _observes(observer):
                raise InvalidType("observer", observer, "an Observer")
            given.append(observer)
    return CombinedObserver(given) if given else None


def _observes(value: object) -> bool:
    """True for an observer, or what is told of some event as one is."""
    if isinstance(value, type):
        return False
    return isinstance(value, Observer) or any(
        callable(getattr(value, event, None)) for event in _EVENTS
    )


class CombinedObserver(Observer):
    """Tells each event to all, in their order, and outlives the faults of each.

    An observer that raises is told nothing more; its error is logged, once, to
    ``accy_async.observe``. What is no error but an interruption, `KeyboardInterrupt`
    or a cancellation, passes through: it is not the observer's own. An observer
    is only called for the events that it overrides.
    """

    def __init__(self, observers: Sequence[Observer]) -> None:
        """Combine them; `combine_observers` also flattens, and takes None."""
        self._observers = tuple(observers)
        self._arrange()

    @property
    def observers(self) -> tuple[Observer, ...]:
        """Those that are still told."""
        return self._observers

    def _arrange(self) -> None:
        self._listeners: dict[str, tuple[Observer, ...]] = {
            event: tuple(
                observer
                for observer in self._observers
                if getattr(type(observer), event, None) is not getattr(Observer, event)
            )
            for event in _EVENTS
        }

    def _tell(self, event: str, *arguments: object) -> None:
        for observer in self._listeners[event]:
            try:
                method: Callable[..., None] = getattr(observer, event)
                method(*arguments)
            except Exception:  # noqa: BLE001 - a watcher must not break the watched
                self._drop(observer, event)

    def _drop(self, observer: Observer, event: str) -> None:
        if all(other is not observer for other in self._observers):
            return  # another thread was faster
        self._observers = tuple(o for o in self._observers if o is not observer)
        self._arrange()
        _log.exception(
            "the observer %s failed in %s and is told nothing more",
            type(observer).__name__,
            event,
        )

    def run_started(  # noqa: D102 - as in the protocol
        self, run_id: int, plan_name: str, node_count: int, time_ns: int
    ) -> None:
        self._tell("run_started", run_id, plan_name, node_count, time_ns)

    def run_edges(self, run_id: int, pairs: Sequence[tuple[int, int]]) -> None:  # noqa: D102
        self._tell("run_edges", run_id, pairs)

    def node_submitted(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        self._tell("node_submitted", run_id, node_id, name, kind, stream_id, time_ns)

    def node_details(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        byte_count: int,
        grid: Dim3 | None,
        threadgroup: Dim3 | None,
    ) -> None:
        self._tell("node_details", run_id, node_id, byte_count, grid, threadgroup)

    def node_started(self, run_id: int, node_id: int, time_ns: int) -> None:  # noqa: D102
        self._tell("node_started", run_id, node_id, time_ns)

    def node_finished(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        self._tell("node_finished", run_id, node_id, time_ns, state, error)

    def node_skipped(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        self._tell(
            "node_skipped",
            run_id,
            node_id,
            name,
            kind,
            stream_id,
            time_ns,
            state,
            error,
        )

    def run_finished(  # noqa: D102 - as in the protocol
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        self._tell("run_finished", run_id, time_ns, state, error)

    def phase_started(  # noqa: D102 - as in the protocol
        self, phase_id: int, name: str, detail: str, time_ns: int
    ) -> None:
        self._tell("phase_started", phase_id, name, detail, time_ns)

    def phase_finished(  # noqa: D102 - as in the protocol
        self, phase_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        self._tell("phase_finished", phase_id, time_ns, state, error)
