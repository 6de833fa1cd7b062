"""Prepared plans of one device: made once, and kept for running again."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

import anyio

from accy_async.backends.cleanup import raise_together
from accy_async.backends.handles import BufferHandle, EventHandle
from accy_async.backends.loading import load_entry
from accy_async.graph.bindings import Binding, Memory
from accy_async.graph.lowering.policy import can_lower, follow
from accy_async.graph.nodes import KernelCall
from accy_async.graph.prepared import PreparedGraph
from accy_async.graph.slices import in_slices, without_pauses

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallArtifact
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import LoadedArtifact
    from accy_async.backends.joined import JoinedBackend
    from accy_async.graph.options import LaunchOptions
    from accy_async.graph.plan import LaunchGraphPlan
    from accy_async.graph.whereabouts import Whereabouts

__all__ = ["MAX_PREPARED", "Preparer"]

MAX_PREPARED = 32
"""Prepared plans kept for running again; the one unused longest goes first."""


MAX_ALIKE = 8
"""Sets of buffers that a plan is prepared for before a further one takes one over."""


class Preparer:
    """Makes plans ready for runs on one device, each kernel loaded once.

    Args:
        backend: the device.
    """

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        # By entry, on each device; one device is number 0.
        self._kernels: list[dict[int, tuple[KernelArtifact, LoadedArtifact]]] = [{}]
        self._entries: list[KernelCallArtifact] = []
        self._lent: dict[int, KernelCallArtifact] = {}
        self._loading = anyio.Lock()
        self._prepared: OrderedDict[tuple[object, ...], PreparedGraph] = OrderedDict()
        # The one at its end, if any: to look it up there costs more than to run it.
        self._latest: PreparedGraph | None = None

    def __len__(self) -> int:
        return len(self._prepared)

    def lend(
        self,
        entries: Sequence[KernelCallArtifact],
        kernels: Mapping[int, tuple[KernelArtifact, LoadedArtifact]],
    ) -> Callable[[list[Exception]], None]:
        """Use kernels that somebody else has loaded, for plans that launch them.

        Args:
            entries: what plans name them by.
            kernels: what is loaded, by the identity of its entry.

        Returns:
            What ends it, before the kernels are destroyed: plans that are prepared
            again load them anew. It joins what failed to the list that it is given.
        """
        mine = {id(entry): entry for entry in entries}
        self._lent.update(mine)  # keeps their identities their own
        self._kernels[0].update((identity, kernels[identity]) for identity in mine)

        def take_back(errors: list[Exception]) -> None:
            for identity in mine:
                self._lent.pop(identity, None)
                self._kernels[0].pop(identity, None)
            for prepared in list(self._prepared.values()):
                if any(id(entry) in mine for entry in prepared.plan.entries):
                    prepared.has_lost_kernels = True
                    if not prepared.is_in_use:
                        self.forget(prepared, errors)

        return take_back

    async def take(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding],
        bound: Mapping[str, Memory],
        options: LaunchOptions,
        places: Whereabouts | None = None,
    ) -> PreparedGraph:
        """A plan made ready, for one run until it is given back (`is_in_use`).

        Raises:
            AccyError: a kernel could not be loaded, or scratch not be had.

        Cancellation: nothing is left of it but loaded kernels.
        """
        key = (*_key(plan, bindings, bound, options), places)
        found = self._prepared.get(key)
        if found is not None and not found.is_in_use and found.is_alive:
            self._prepared.move_to_end(key)
            return self._use(found)
        taken = self._take_over(key, bound, options)
        if taken is not None:
            return taken
        prepared = await self.make(plan, bindings, bound, options, places)
        replaced = self._prepared.pop(key, None)
        if replaced is not None and not replaced.is_in_use:
            replaced.close()
        self._prepared[key] = self._use(prepared)
        self._evict()
        return prepared

    def take_ready(
        self, plan: object, fits: Callable[[PreparedGraph], bool]
    ) -> PreparedGraph | None:
        """One that a plan was prepared as, is not in use, and fits; the latest."""
        latest = self._latest
        if (
            latest is not None
            and latest.plan is plan
            and not latest.is_in_use
            and fits(latest)
        ):
            return self._use(latest)
        for key, prepared in reversed(self._prepared.items()):
            if prepared.plan is plan and not prepared.is_in_use and fits(prepared):
                self._prepared.move_to_end(key)
                return self._use(prepared)
        return None

    def _use(self, prepared: PreparedGraph) -> PreparedGraph:
        """One that is the latest now, taken for a run."""
        self._latest = prepared
        prepared.is_in_use = True
        prepared.runs += 1
        return prepared

    async def make(
        self,
        plan: LaunchGraphPlan,
        bindings: Mapping[str, Binding],
        bound: Mapping[str, Memory],
        options: LaunchOptions,
        places: Whereabouts | None = None,
    ) -> PreparedGraph:
        """Load a plan's kernels, on each device that launches them, and prepare it.

        Cancellation: nothing is left of it but loaded kernels.
        """
        await self._load_kernels(plan, places)
        events = {
            name: event
            for name, event in bindings.items()
            if isinstance(event, EventHandle)
        }
        prepared = PreparedGraph(
            self._backend,
            plan,
            self._kernels,
            bound,
            events,
            options,
            places,
        )
        try:
            with without_pauses(len(plan.nodes)):
                await in_slices(prepared.make_actions())
        except BaseException as error:
            errors: list[Exception] = []
            self.forget(prepared, errors)
            raise_together("preparing a plan", error, errors)
            raise
        return prepared

    def _take_over(
        self,
        key: tuple[object, ...],
        bound: Mapping[str, Memory],
        options: LaunchOptions,
    ) -> PreparedGraph | None:
        """One of a plan's prepared ones for other buffers and scalars than it had.

        Only where it is, or may be, a device graph: changing that in place costs less
        than preparing, and much less than another graph.
        """
        alike = [
            (old, prepared)
            for old, prepared in self._prepared.items()
            if old[0] == key[0] and old[2:4] == key[2:4]
        ]
        if len(alike) < MAX_ALIKE:
            return None
        for old, prepared in alike:  # the one unused longest first
            if prepared.is_in_use or not can_lower(prepared):
                continue
            del self._prepared[old]
            self._prepared[key] = self._use(prepared)
            try:
                follow(prepared, prepared.rebind(bound, options))
            except BaseException as error:
                errors: list[Exception] = []
                self.forget(prepared, errors)
                raise_together("preparing a plan", error, errors)
                raise
            return prepared
        return None

    def _evict(self) -> None:
        for key, prepared in list(self._prepared.items()):
            if len(self._prepared) <= MAX_PREPARED:
                return
            if not prepared.is_in_use:
                del self._prepared[key]
                self._drop_latest(prepared)
                prepared.close()

    def _drop_latest(self, prepared: PreparedGraph) -> None:
        if self._latest is prepared:
            self._latest = None

    def forget(self, prepared: PreparedGraph, errors: list[Exception]) -> None:
        """Close one, and keep it no longer."""
        for key, known in list(self._prepared.items()):
            if known is prepared:
                del self._prepared[key]
                self._drop_latest(prepared)
        try:
            prepared.close()
        except Exception as error:  # noqa: BLE001 - joined to the run's outcome
            errors.append(error)

    async def _load_kernels(
        self, plan: LaunchGraphPlan, places: Whereabouts | None
    ) -> None:
        """Load the kernels of a plan that are not loaded yet, each once."""
        if places is None:
            wanted = {(0, id(entry)): entry for entry in plan.entries}
        else:
            wanted = {
                (place, id(node.operation.entry)): node.operation.entry
                for node, place in zip(plan.nodes, places.nodes, strict=True)
                if isinstance(node.operation, KernelCall)
            }
            missing = len(places.devices) - len(self._kernels)
            self._kernels += [{} for _ in range(missing)]
        known = self._kernels
        if all(identity in known[place] for place, identity in wanted):
            return
        async with self._loading:
            for (place, identity), entry in wanted.items():
                if identity in known[place]:
                    continue
                device = self._backend
                if places is not None:
                    device = cast("JoinedBackend", device).at(place)
                loaded = await load_entry(device, entry, None)
                self._entries.append(entry)  # keeps its identity its own
                known[place][identity] = (loaded.artifact, loaded.loaded)


def _key(
    plan: LaunchGraphPlan,
    bindings: Mapping[str, Binding],
    bound: Mapping[str, Memory],
    options: LaunchOptions,
) -> tuple[object, ...]:
    """What a prepared plan can be used again for."""
    return (
        id(plan),  # the prepared plan under this key keeps it alive
        tuple(
            (name, memory.id if isinstance(memory, BufferHandle) else id(memory))
            for name, memory in bound.items()
        ),
        tuple(
            sorted((n, e.id) for n, e in bindings.items() if isinstance(e, EventHandle))
        ),
        tuple(sorted(options.tuning.items())),
        options.runtime_scalars,
    )
