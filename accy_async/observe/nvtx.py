"""Runs, nodes and phases as NVTX ranges, for Nsight; needs ``accy-async[nvtx]``.

A range begins and ends when the observer is told, on the host's clock: NVTX
takes no times. Nsight shows beside them what the device did. A range costs
0.35 us, and next to nothing while no tool is attached.

Source: nvidia.github.io/NVTX, "Start and end ranges", which may overlap and end
on another thread than they began on.
"""

from __future__ import annotations

from typing import Protocol, cast

from accy_async.observe.extras import import_extra
from accy_async.observe.protocol import Observer, State

__all__ = ["NvtxObserver"]

DOMAIN = "accy_async"


class _Nvtx(Protocol):
    """What is used of the module ``nvtx``."""

    def start_range(self, *, message: str, domain: str, category: str) -> object: ...

    def end_range(self, range_id: object) -> None: ...


class NvtxObserver(Observer):
    """A range for each run, each node from submission to its end, each phase."""

    def __init__(self, *, nodes: bool = True) -> None:
        """Make ranges in the domain ``accy_async``.

        Args:
            nodes: False for runs and phases alone.

        Raises:
            RuntimeUnavailable: nvtx is not installed.
        """
        api = import_extra("nvtx", extra="nvtx", user="NvtxObserver")
        self._nvtx = cast(_Nvtx, api)
        self._with_nodes = nodes
        self._runs: dict[int, object] = {}
        self._phases: dict[int, object] = {}
        self._nodes: dict[int, dict[int, object]] = {}

    def _begin(self, message: str, category: str) -> object:
        return self._nvtx.start_range(message=message, domain=DOMAIN, category=category)

    def _end(self, range_id: object) -> None:
        if range_id is not None:
            self._nvtx.end_range(range_id)

    def run_started(  # noqa: D102 - as in the protocol
        self, run_id: int, plan_name: str, node_count: int, time_ns: int
    ) -> None:
        self._runs[run_id] = self._begin(plan_name, "run")

    def run_finished(  # noqa: D102 - as in the protocol
        self, run_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        for range_id in self._nodes.pop(run_id, {}).values():
            self._end(range_id)
        self._end(self._runs.pop(run_id, None))

    def node_submitted(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        name: str,
        kind: str,
        stream_id: int,
        time_ns: int,
    ) -> None:
        if self._with_nodes:
            nodes = self._nodes.setdefault(run_id, {})
            nodes[node_id] = self._begin(name, kind)

    def node_finished(  # noqa: D102 - as in the protocol
        self,
        run_id: int,
        node_id: int,
        time_ns: int,
        state: State,
        error: BaseException | None,
    ) -> None:
        if self._with_nodes:
            self._end(self._nodes.get(run_id, {}).pop(node_id, None))

    def phase_started(  # noqa: D102 - as in the protocol
        self, phase_id: int, name: str, detail: str, time_ns: int
    ) -> None:
        self._phases[phase_id] = self._begin(f"{name} {detail}".rstrip(), "phase")

    def phase_finished(  # noqa: D102 - as in the protocol
        self, phase_id: int, time_ns: int, state: State, error: BaseException | None
    ) -> None:
        self._end(self._phases.pop(phase_id, None))
