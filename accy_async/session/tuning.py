"""Tuning in a session: beside its real work, or alone."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.cleanup import overtake, raise_together
from accy_async.errors import InvalidType, InvalidValue, SessionClosed
from accy_async.session.core import SessionCore
from accy_async.session.records import (
    SessionRecords,
    chosen_store,
)
from accy_async.session.tuner import Tuner
from accy_async.tuning.launches import LaunchTuningCache
from accy_async.tuning.measuring import MeasureOptions
from accy_async.tuning.pacing import SharedPace, TuningBudget
from accy_async.tuning.store import TuningStore
from accy_async.values import listed

if TYPE_CHECKING:
    from accy_async.fragment import FragmentFunction, LoadedFragment

__all__ = ["SessionTuning"]


class SessionTuning(SessionRecords):
    """The tuning of a session.

    Attributes:
        works_beside: whether the device has work that this session does not know of,
            for a seat of a session over several devices; None for others.
    """

    works_beside: Callable[[], bool] | None = None

    @asynccontextmanager
    async def tuning(
        self,
        *fragments: LoadedFragment | FragmentFunction,
        budget: TuningBudget | None = None,
        exclusive: bool = False,
        store: bool | TuningStore | None = True,
        inputs: Sequence[object] | None = None,
        options: MeasureOptions | None = None,
    ) -> AsyncIterator[Tuner]:
        """Tune beside the session's work, or alone.

        ::

            async with session.tuning(fragment, budget=TuningBudget(share=0.05)):
                await serve(fragment)

        Fragments are tuned in the background, kernel by kernel. A winner is used by
        every invocation that begins after it was found; those in flight keep what
        they began with. It is also kept for later loads, in this process and others
        on such a device. Each fragment is measured with the arguments of the first
        call in the block, which are copied once. When the block is left, tuning ends
        at its sample; what was measured of that kernel is gone on from in the
        session's next block.

        Samples run on a stream of the least urgent priority, while nothing else of
        the session is in flight, as the budget says. Awaits, first, a thread that
        reads the store.

        Args:
            fragments: loaded in this session; of a function, what is loaded now. What
                there is nothing to tune of is in `Tuner.skipped`.
            budget: what samples may take.
            exclusive: for benchmarks: wait for the device to be idle first, then take
                sample after sample; what ran beside other work of the session is
                found out, and not to be stored.
            store: where records are read from and kept: True for the user's own (see
                `accy_async.tuning.default_tuning_store`), None or False for nowhere.
            inputs: what to measure the one fragment given with, as
                `LoadedFragment.prepare_invocation_bindings` takes it, instead of a
                call's arguments.
            options: how the fragments' candidates are measured.

        Raises:
            SessionClosed: the session is not open.
            InvalidType, InvalidValue: an argument is none; nothing was begun.
            InvalidBuffer, LaunchArgumentMismatch: ``inputs`` are not the fragment's;
                nothing was begun.
            TuningStopped, DeviceError: tuning ended so, and nobody was told before;
                where the block is left.

        Cancellation: an ordinary exit; no kernel is half tuned, and nothing is left.
        """
        self._check_here("tuning")
        if inputs is not None:
            inputs = listed("tuning.inputs", inputs, "a list of arrays")
        background_of = _fragments_of(self, fragments, inputs)
        if not isinstance(exclusive, bool):
            raise InvalidType("tuning.exclusive", exclusive, "True or False")
        if options is not None and not isinstance(options, MeasureOptions):
            raise InvalidType("tuning.options", options, "MeasureOptions")
        allowed = _budget(budget, exclusive=exclusive)
        known = chosen_store("tuning.store", store)
        cache = LaunchTuningCache(self.capabilities)
        if known is not None:
            cache.look_in(await self._read_store(known, anew=True))
        pace = SharedPace(allowed, self._is_working, _CallPauses(self))
        tuner = Tuner(self, cache, known, pace, is_exclusive=exclusive)
        for fragment in background_of:
            fragment.learn_launch_tuning(cache)
        tuner._passed_over = _nothing_to_tune(fragments)  # noqa: SLF001
        if exclusive:
            await self.backend.wait_device()
        primary: BaseException | None = None
        try:
            if background_of:
                given = options or MeasureOptions()
                await tuner._begin(background_of, inputs, given)  # noqa: SLF001
            yield tuner
        except BaseException as error:  # noqa: BLE001 - raised below
            primary = error
        errors: list[Exception] = []
        cancelled = await tuner._end(errors)  # noqa: SLF001 - its life is this block
        if cancelled is not None:
            primary = overtake(primary, cancelled, errors)
        raise_together("tuning", primary, errors)

    def _is_working(self) -> bool:
        """Whether work of the session is in flight."""
        streams = self._fragment_streams
        calls = streams is not None and streams.in_use > 0
        return calls or self._is_working_beside_calls()

    def _is_working_beside_calls(self) -> bool:
        self._forget_completed()
        return (
            bool(self._in_flight)
            or self._runs.in_flight > 0
            or (self.works_beside is not None and self.works_beside())
        )


class _CallPauses:
    """The calls of a session's fragments, and when they pause.

    Plans and pipelines come and go in several ways, of which no one event tells: while
    any of them is in flight, it is looked again after a while.
    """

    def __init__(self, session: SessionTuning) -> None:
        self._session = session

    @property
    def calls(self) -> int:
        """How many calls have come so far."""
        streams = self._session._fragment_streams  # noqa: SLF001 - its own part
        return 0 if streams is None else streams.calls

    @property
    def begun(self) -> int:
        """How many pauses have begun so far."""
        streams = self._session._fragment_streams  # noqa: SLF001 - its own part
        return 0 if streams is None else streams.pauses

    async def wait_next(self, longest_s: float, look_s: float) -> None:
        """Return as the next one begins, or after a while."""
        session = self._session
        streams = session._fragment_streams  # noqa: SLF001 - as above
        if streams is None or session._is_working_beside_calls():  # noqa: SLF001
            await anyio.sleep(min(longest_s, look_s))
            return
        with anyio.move_on_after(longest_s):
            await streams.wait_pause()


def _budget(budget: TuningBudget | None, *, exclusive: bool) -> TuningBudget:
    if budget is not None and not isinstance(budget, TuningBudget):
        raise InvalidType("tuning.budget", budget, "a TuningBudget")
    given = budget or TuningBudget()
    return attrs.evolve(given, share=1.0, most_wait_s=0.0) if exclusive else given


def _fragments_of(
    session: SessionCore,
    given: Sequence[LoadedFragment | FragmentFunction],
    inputs: Sequence[object] | None,
) -> list[LoadedFragment]:
    """The loaded fragments of what `Session.tuning` was given."""
    if not given:
        if inputs is not None:
            raise InvalidValue("tuning.inputs", inputs, "a fragment to use them for")
        return []
    from accy_async.fragment import FragmentFunction, LoadedFragment
    from accy_async.fragment.arguments import check_inputs

    found: list[LoadedFragment] = []
    for place, one in enumerate(given):
        name = f"tuning.fragments[{place}]"
        if isinstance(one, FragmentFunction):
            found += one.fragments
        elif isinstance(one, LoadedFragment):
            found.append(one)
        else:
            raise InvalidType(name, one, "a LoadedFragment or a FragmentFunction")
        for loaded in found:
            if loaded.backend is not session.backend:
                raise InvalidValue(name, one, "a fragment that this session loaded")
            if loaded.is_closed:
                raise SessionClosed(f"{name}: fragment {loaded.name!r} was closed")
    fragments = list(dict.fromkeys(found))
    if inputs is not None:
        if len(fragments) != 1:
            raise InvalidValue("tuning.fragments", len(fragments), "one, with inputs")
        check_inputs(fragments[0].plan, inputs)
    return fragments


def _nothing_to_tune(
    given: Sequence[LoadedFragment | FragmentFunction],
) -> dict[str, str]:
    """Why there is nothing to tune, by the name of a fragment or function."""
    if not given:
        return {}
    from accy_async.fragment import FragmentFunction
    from accy_async.fragment.tuning import untuned_kernels

    reasons: dict[str, str] = {}
    to_tune: set[str] = set()
    for one in given:
        loaded = one.fragments if isinstance(one, FragmentFunction) else (one,)
        if not loaded:
            reasons[one.name] = (
                "nothing of it was loaded when the block began: call it before, or "
                "await its specialise() with the arguments' types"
            )
        for fragment in loaded:
            if untuned_kernels(fragment):
                to_tune.add(fragment.name)
            elif fragment.tunable_kernels:
                reasons[fragment.name] = "the winners of its kernels are known"
            else:
                reasons[fragment.name] = "each of its kernels is launched in one way"
    return {name: why for name, why in reasons.items() if name not in to_tune}
