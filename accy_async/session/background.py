"""Tuning of fragments in the background: tasks of the session, beside its real work.

Each fragment waits for its inputs in a task of its own, since a call may never come;
they are tuned one after the other. Nothing of it reaches the callers of the fragments:
what goes wrong is told to who holds the tuner, and a fragment that cannot be tuned is
passed over with its reason.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import TYPE_CHECKING

import anyio
import attrs

from accy_async.backends.nativecancel import outlast
from accy_async.errors import OutOfMemory, SessionClosed
from accy_async.observe.protocol import HOST_STREAM, new_id, state_of
from accy_async.tuning.pacing import BudgetSpent

if TYPE_CHECKING:
    from accy_async.fragment.bindings import InvocationBindings
    from accy_async.fragment.capturing import InvocationCapture
    from accy_async.fragment.loaded import LoadedFragment
    from accy_async.fragment.tuning import KernelTuning
    from accy_async.observe.protocol import Observer
    from accy_async.tuning.launches import LaunchTuningCacheKey, LaunchTuningCacheRecord
    from accy_async.tuning.measuring import (
        KeptRounds,
        MeasureOptions,
        MeasureOutcome,
        MeasureProgress,
    )
    from accy_async.tuning.pacing import SharedPace

__all__ = ["BackgroundTuning", "TuningProgress", "TuningResults"]


@attrs.frozen(kw_only=True)
class TuningProgress:
    """How far tuning fragments in the background has come.

    Attributes:
        fragment: the one whose kernel is being measured; empty while none is.
        kernel: the kernel's entry point.
        step: the measurement's.
        done: kernels that are done.
        total: kernels that were to be tuned.
        spent_s: seconds of device time that samples took.
    """

    fragment: str
    kernel: str
    step: MeasureProgress | None
    done: int
    total: int
    spent_s: float


class BackgroundTuning:
    """Tunes fragments until all are tuned, the budget is spent, or it is stopped.

    Args:
        fragments: which.
        inputs: what to measure the only one with; None to take what it is called with.
        pace: lets real work go first.
        kept: what was measured of kernels before, and what is measured now.
        options: how.
        judge: has the last word on what was measured.
        keep: keeps a record for others.
        observer: told of each fragment as of a run, of each kernel as of its node.

    Attributes:
        results: what became of each kernel, as it is known.
        skipped: why a fragment was not tuned, by its name.
        is_complete: whether every kernel that could be tuned was.
    """

    def __init__(
        self,
        fragments: Sequence[LoadedFragment],
        inputs: Sequence[object] | None,
        *,
        pace: SharedPace,
        kept: MutableMapping[LaunchTuningCacheKey, KeptRounds],
        options: MeasureOptions,
        judge: Callable[[MeasureOutcome], MeasureOutcome],
        keep: Callable[[LaunchTuningCacheRecord], Awaitable[None]],
        observer: Observer | None,
    ) -> None:
        # Whoever tunes no fragment loads no compiler.
        from accy_async.fragment.tuning import untuned_kernels

        self.results: list[KernelTuning] = []
        self.skipped: dict[str, str] = {}
        self.is_complete = False
        self._fragments = [one for one in fragments if untuned_kernels(one)]
        self._total = sum(len(untuned_kernels(one)) for one in self._fragments)
        self._inputs = inputs
        self._pace = pace
        self._kept = kept
        self._options = options
        self._judge = judge
        self._keep = keep
        self._observer = observer
        self._turn = anyio.Lock()
        self._scope = anyio.CancelScope()
        self._listening = anyio.Event()
        self._done = anyio.Event()
        self._changed = anyio.Event()
        self._error: Exception | None = None
        self._now: tuple[str, str, MeasureProgress | None] = ("", "", None)

    @property
    def is_done(self) -> bool:
        """Whether nothing more will come."""
        return self._done.is_set()

    @property
    def progress(self) -> TuningProgress:
        """How far it has come."""
        fragment, kernel, step = self._now
        return TuningProgress(
            fragment=fragment,
            kernel=kernel,
            step=step,
            done=len(self.results),
            total=self._total,
            spent_s=self._pace.spent_s,
        )

    async def run(self) -> None:
        """Tune; as a task of the session's group.

        Raises:
            BaseException: an interrupt; errors are kept for `take_error`.

        Cancellation: the sample at hand is lost, nothing is left.
        """
        try:
            with self._scope:
                async with anyio.create_task_group() as tasks:
                    for fragment in self._fragments:
                        # All of them listen before any call of the block is made.
                        capture = self._listen(fragment)
                        if capture is not None or self._inputs is not None:
                            tasks.start_soon(self._tune, fragment, capture)
                    self._listening.set()
                self.is_complete = self._error is None and not self._scope.cancel_called
        finally:
            self._now = ("", "", None)
            self._listening.set()
            self._done.set()
            self._tell()

    async def wait_listening(self) -> None:
        """Return once the next call of each fragment will be heard of."""
        await self._listening.wait()

    async def stop(self) -> BaseException | None:
        """End it, and return when it has ended.

        Returns:
            A cancellation of asyncio's own that came meanwhile, to be raised.

        Cancellation: shielded from it; the clean-up has its own deadline.
        """
        self._scope.cancel()
        _, cancelled = await outlast(self._done.wait)
        return cancelled

    async def wait(self) -> None:
        """Return when it is done.

        Raises:
            TuningStopped, DeviceError: what ended it.

        Cancellation: only the wait stops.
        """
        await self._done.wait()
        error = self.take_error()
        if error is not None:
            raise error

    async def wait_changed(self) -> None:
        """Return when there is a result more, or it is done."""
        await self._changed.wait()

    def take_error(self) -> Exception | None:
        """What ended it, for the first who asks."""
        error, self._error = self._error, None
        return error

    # Within

    def _listen(self, fragment: LoadedFragment) -> InvocationCapture | None:
        if self._inputs is not None:
            return None
        try:
            return fragment.capture_invocation()
        except Exception as error:  # noqa: BLE001 - told later
            self._give_up(fragment, error)
            return None

    async def _tune(
        self, fragment: LoadedFragment, capture: InvocationCapture | None
    ) -> None:
        try:
            if capture is not None:
                async with capture:
                    bindings = await capture.wait()
                    async with self._turn:
                        await self._tune_bound(fragment, bindings)
                return
            inputs = self._inputs or ()
            async with (
                await fragment.prepare_invocation_bindings(inputs) as bindings,
                self._turn,
            ):
                await self._tune_bound(fragment, bindings)
        except Exception as error:  # noqa: BLE001 - told later
            self._give_up(fragment, error)

    def _give_up(self, fragment: LoadedFragment, error: Exception) -> None:
        """A fragment is passed over; or all of it ends, which `take_error` tells."""
        if isinstance(error, (SessionClosed, OutOfMemory)):
            self.skipped[fragment.name] = str(error)
            return
        if not isinstance(error, BudgetSpent):
            self._error = self._error or error
        self._scope.cancel()

    async def _tune_bound(
        self, fragment: LoadedFragment, bindings: InvocationBindings
    ) -> None:
        from accy_async.fragment.tuning import (
            FragmentTuning,
            tune_fragment,
            untuned_kernels,
        )

        told = _Told(self._observer, fragment, len(untuned_kernels(fragment)))

        async def found(result: KernelTuning) -> None:
            self.results.append(result)
            told.end(result.kernel_index)
            self._tell()
            if result.record is not None:
                await self._keep(result.record)

        def progress(index: int, step: MeasureProgress) -> None:
            kernel = fragment.planned_kernel(index).entry_name
            self._now = (fragment.name, kernel, step)
            told.begin(index, kernel)

        how = FragmentTuning(
            options=self._options,
            kept=self._kept,
            pace=self._pace,
            judge=self._judge,
            found=found,
            progress=progress,
        )
        try:
            await tune_fragment(fragment, bindings, how)
        except BaseException as error:
            told.leave(error)
            raise
        told.leave(None)

    def _tell(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()


class TuningResults:
    """What becomes of each kernel, as it is known: an async iterator."""

    def __init__(self, tuning: BackgroundTuning | None) -> None:
        self._tuning = tuning
        self._next = 0

    def __aiter__(self) -> TuningResults:
        return self

    async def __anext__(self) -> KernelTuning:
        """The next one.

        Raises:
            StopAsyncIteration: there will be no more.
            TuningStopped, DeviceError: what ended the tuning.

        Cancellation: only the wait stops.
        """
        tuning = self._tuning
        if tuning is None:
            raise StopAsyncIteration
        while self._next >= len(tuning.results):
            if tuning.is_done:
                error = tuning.take_error()
                if error is not None:
                    raise error
                raise StopAsyncIteration
            await tuning.wait_changed()
        self._next += 1
        return tuning.results[self._next - 1]


class _Told:
    """Tells an observer of a fragment's tuning as of a run."""

    def __init__(
        self, observer: Observer | None, fragment: LoadedFragment, total: int
    ) -> None:
        self._observer = observer
        self._run_id = new_id()
        self._begun: set[int] = set()
        if observer is not None:
            name = f"tuning {fragment.name}"
            observer.run_started(self._run_id, name, total, time.perf_counter_ns())

    def begin(self, index: int, kernel: str) -> None:
        """A kernel is being measured, as it may have been before."""
        if self._observer is None or index in self._begun:
            return
        self._begun.add(index)
        self._observer.node_submitted(
            self._run_id, index, kernel, "tuning", HOST_STREAM, time.perf_counter_ns()
        )

    def end(self, index: int) -> None:
        """It is done."""
        if self._observer is not None and index in self._begun:
            now_ns = time.perf_counter_ns()
            self._observer.node_finished(self._run_id, index, now_ns, "ok", None)

    def leave(self, error: BaseException | None) -> None:
        """The fragment is done, in whatever way."""
        if self._observer is not None:
            now_ns = time.perf_counter_ns()
            self._observer.run_finished(self._run_id, now_ns, state_of(error), error)
