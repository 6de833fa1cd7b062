"""Tuning on several devices: each has winners of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING

from accy_async.backends.handles import LoadedArtifact
from accy_async.errors import InvalidType, InvalidValue, LaunchArgumentMismatch
from accy_async.session.multi.core import MultiCore
from accy_async.session.multi.fragments import MultiFragment
from accy_async.session.tuner import Tuner
from accy_async.tuning.measuring import Candidate
from accy_async.values import listed

if TYPE_CHECKING:
    from accy_async.artifact.planned import PlannedKernel
    from accy_async.backends.handles import BufferBinding
    from accy_async.dtypes import ScalarArgument
    from accy_async.fragment.tuning import KernelTuning
    from accy_async.tuning.launches import LaunchTuningCache, LaunchTuningOutcome
    from accy_async.tuning.measuring import (
        KeptRounds,
        MeasureOptions,
        MeasureOutcome,
    )
    from accy_async.tuning.pacing import TuningBudget
    from accy_async.tuning.store import TuningStore

__all__ = ["MultiTuner", "MultiTuning"]


class MultiTuner:
    """A tuner on each device; from `MultiSession.tuning`.

    What is measured goes to the tuner of its device, and what is found stays that
    device's: two of one kind may differ, and are measured each.
    """

    def __init__(
        self,
        tuners: Mapping[str, Tuner],
        device_of: Callable[[str, LoadedArtifact], str],
        absent: Mapping[str, Mapping[str, str]],
    ) -> None:
        self._tuners = dict(tuners)
        self._device_of = device_of
        self._absent = absent

    @property
    def results(self) -> Mapping[str, tuple[KernelTuning, ...]]:
        """What became of the kernels of fragments so far, by the device's name."""
        return {name: tuner.results for name, tuner in self._tuners.items()}

    @property
    def skipped(self) -> Mapping[str, Mapping[str, str]]:
        """Why fragments are not tuned, by the device's name and theirs."""
        return {
            name: {**self._absent[name], **tuner.skipped}
            for name, tuner in self._tuners.items()
        }

    @property
    def is_complete(self) -> bool:
        """True once every kernel of the fragments is tuned that can be."""
        return all(tuner.is_complete for tuner in self._tuners.values())

    async def wait(self) -> None:
        """Return when the fragments are tuned on all devices, or their budget is spent.

        Raises:
            As `Tuner.wait`, for the first device that it is raised on.

        Cancellation: only the wait stops.
        """
        for tuner in self._tuners.values():
            await tuner.wait()

    @property
    def caches(self) -> Mapping[str, LaunchTuningCache]:
        """The winners that are known, by the device's name."""
        return {name: tuner.cache for name, tuner in self._tuners.items()}

    def on(self, device: str | int) -> Tuner:
        """The tuner of one device.

        Args:
            device: its name, or its place in `MultiSession.devices`.

        Raises:
            InvalidValue: the session has no such device.
        """
        names = list(self._tuners)
        if isinstance(device, int) and not isinstance(device, bool):
            if 0 <= device < len(names):
                return self._tuners[names[device]]
        elif isinstance(device, str) and device in self._tuners:
            return self._tuners[device]
        raise InvalidValue("MultiTuner.on.device", device, f"one of {', '.join(names)}")

    async def tune_launch(
        self,
        kernel: PlannedKernel,
        loaded: LoadedArtifact,
        buffers: Sequence[BufferBinding],
        scalars: Sequence[ScalarArgument] = (),
        options: MeasureOptions | None = None,
        *,
        kept: KeptRounds | None = None,
    ) -> LaunchTuningOutcome:
        """Find a kernel's best launch candidate where it is loaded, and keep it there.

        Raises:
            LaunchArgumentMismatch: it is loaded on none of the session's devices.
            InvalidType: ``loaded`` is no loaded kernel.
            As `Tuner.tune_launch`.

        Cancellation: as there.
        """
        if not isinstance(loaded, LoadedArtifact):
            raise InvalidType("tune_launch.loaded", loaded, "a LoadedArtifact")
        tuner = self._tuners[self._device_of("tune_launch.loaded", loaded)]
        return await tuner.tune_launch(
            kernel, loaded, buffers, scalars, options, kept=kept
        )

    async def measure(
        self,
        candidates: Sequence[Candidate],
        options: MeasureOptions | None = None,
        *,
        kept: KeptRounds | None = None,
    ) -> MeasureOutcome:
        """Measure candidates on the device where all of them are loaded.

        Raises:
            InvalidValue, InvalidType: there are none, or not of candidates.
            LaunchArgumentMismatch: they are loaded on two devices, which are named, or
                on none of the session's.
            As `Tuner.measure`.

        Cancellation: as there.
        """
        candidates = listed("measure.candidates", candidates, "a list of candidates")
        if not candidates:
            raise InvalidValue("measure.candidates", candidates, "at least one")
        devices: dict[str, str] = {}
        for index, one in enumerate(candidates):
            where = f"measure.candidates[{index}]"
            if not isinstance(one, Candidate):
                raise InvalidType(where, one, "a Candidate")
            devices.setdefault(self._device_of(where, one.request.loaded), one.name)
        if len(devices) > 1:
            (here, first), (there, second) = list(devices.items())[:2]
            raise LaunchArgumentMismatch(
                f"measure: candidate {first!r} is loaded on {here} and {second!r} on "
                f"{there}: times of two devices are not compared"
            )
        tuner = self._tuners[next(iter(devices))]
        return await tuner.measure(candidates, options, kept=kept)


class MultiTuning(MultiCore):
    """The tuning of a session over several devices."""

    @asynccontextmanager
    async def tuning(
        self,
        *fragments: MultiFragment,
        budget: TuningBudget | None = None,
        exclusive: bool = False,
        store: bool | TuningStore | None = True,
        options: MeasureOptions | None = None,
    ) -> AsyncIterator[MultiTuner]:
        """Tune beside the session's work, or alone, each device for itself.

        Runs over several devices count as work of each.

        Args:
            fragments: loaded in this session; each is tuned, in the background, on the
                devices that have it when the block begins.
            budget: what samples may take of each device; see `Session.tuning`.
            exclusive: as there: for each device, what ran beside other work on it is
                found out.
            store: as there, one for all devices: a record says which it is of.
            options: as there.

        Raises:
            InvalidType: a fragment is none of a session over several devices: seats
                tune their own.
            InvalidValue: it is another session's.
            As `Session.tuning`.

        Cancellation: as there.
        """
        self._check("tuning")
        for place, one in enumerate(fragments):
            where = f"tuning.fragments[{place}]"
            if not isinstance(one, MultiFragment):
                raise InvalidType(where, one, "a MultiFragment")
            if not one.is_of(self.on):
                raise InvalidValue(where, one, "a fragment that this session loaded")
        async with AsyncExitStack() as stack:
            tuners = {}
            absent = {}
            with self._stores.together():
                for number, seat in enumerate(self._seats):
                    name = self._names[number]
                    there = [
                        one.loaded[name] for one in fragments if name in one.loaded
                    ]
                    why = (
                        "it was not loaded there when the block began: call it there "
                        f"before, or await its on({name!r})"
                    )
                    absent[name] = {
                        one.name: why for one in fragments if name not in one.loaded
                    }
                    seat.works_beside = partial(self._crosses, number)
                    tuners[name] = await stack.enter_async_context(
                        seat.tuning(
                            *there,
                            budget=budget,
                            exclusive=exclusive,
                            store=store,
                            options=options,
                        )
                    )
            yield MultiTuner(tuners, self._loaded_on, absent)

    def _crosses(self, number: int) -> bool:
        """Whether the whole has work in flight on a device."""
        return any(
            crossing.in_flight > 0
            for used, crossing in self._crossings.items()
            if number in used
        )

    def _loaded_on(self, what: str, loaded: LoadedArtifact) -> str:
        """The name of the device that a kernel is loaded on."""
        number = self._number_of(loaded)
        if number is None or number < 0:
            why = self._seats[0].backend.foreign(loaded) or "is of no device"
            theirs = why.partition(", this one is")[0]
            raise LaunchArgumentMismatch(
                f"{what}: it {theirs}; the session's devices are "
                f"{', '.join(self._names)}"
            )
        return self._names[number]
