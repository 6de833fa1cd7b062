"""Replaying interleavings: what happens next is drawn from a seed.

A program that runs against a real device meets its completions, failures and
cancellations in whatever order the world sends them. A `Replay` sends them on the
recording backend, one at a time, in an order drawn from a seed: it holds every
stream, lets the program go on until nothing in it can, then picks what happens
next (an operation completes, a host call returns, something is cancelled, a launch
fails) and writes it down. The same seed gives the same order again, on trio and
asyncio alike, so an interleaving that once went wrong can be kept as a test::

    async def program():
        async with open_session(device) as session:
            run = session.start(plan, bindings)
            replay.cancellable("run", run)
            await run

    replay = Replay(device, seed=4711, failures=0.1, cancels=0.05)
    await replay.drive(program)
    print(replay.log)

Work that the package itself does on threads (laying out a large plan, a sync host
call) is awaited before anything is decided, so a sync host call must not wait for
the device. What a replay cannot order is what happens on threads of the program's
own: give host calls made by `Replay.call`. Tasks that become ready at the same
moment may go on in another order on another loop; where that matters, a program
starts things one by one, with `Replay.until_blocked` between them.
"""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

import anyio
import anyio.lowlevel

from accy_async.backends.completion import threads_awaited
from accy_async.errors import AccyError, InvalidValue

if TYPE_CHECKING:
    from accy_async.backends.handles import StreamHandle
    from accy_async.backends.recording import RecordingBackend

__all__ = ["Cancellable", "Replay", "ReplayStuck"]

_QUIET_TURNS = 20
"""Turns of the loop without a backend call after which all may well be blocked."""

_THREAD_PAUSE_S = 0.0005
"""Between two looks at whether the package's own work on threads is done."""

_T = TypeVar("_T")
_Option = tuple[float, Callable[[], None]]


class ReplayStuck(AccyError):
    """The program waits, and nothing that a replay can do would wake it.

    Attributes:
        log: what had happened by then.
    """

    def __init__(self, log: list[str]) -> None:
        self.log = log
        last = ", ".join(log[-5:]) or "nothing"
        super().__init__(
            f"nothing is left to happen, and the program still waits; {len(log)} "
            f"things happened, the last: {last}"
        )


class Cancellable(Protocol):
    """A run, a cancel scope, or anything else to be cancelled."""

    def cancel(self) -> object:
        """Cancel it. Sync; harmless when it is done."""


class Replay:
    """Decides what happens next on a recording backend, by a seed.

    Args:
        backend: the backend, or several of them that work together; the replay holds
            all of their streams.
        seed: what the decisions are drawn from.
        failures: how often a launch fails on the device, as a weight beside the
            1.0 of every stream that can complete an operation.
        losses: how often that failure takes the device with it, likewise.
        cancels: how often something given to `cancellable` is cancelled.
        host_failures: how often a host call raises instead of returning.
        burst: how many operations of a stream complete at once at most.

    Attributes:
        backend: the backend; the first of several.
        backends: all of them.
        log: what happened, in order, e.g. ``step 3 x1``, ``return load``,
            ``raise load``, ``cancel run``; ``fail`` and ``lose`` are for the
            launch submitted next. Of several backends each line names the one, as
            in ``step 3 of cuda:1 x1``.

    Raises:
        InvalidValue: a weight below 0 or a burst below 1.
    """

    def __init__(
        self,
        backend: RecordingBackend | Sequence[RecordingBackend],
        seed: int,
        *,
        failures: float = 0.0,
        losses: float = 0.0,
        cancels: float = 0.0,
        host_failures: float = 0.0,
        burst: int = 1,
    ) -> None:
        weights = {
            "failures": failures,
            "losses": losses,
            "cancels": cancels,
            "host_failures": host_failures,
        }
        for name, weight in weights.items():
            if not weight >= 0:
                raise InvalidValue(f"Replay.{name}", weight, "a weight of 0 or more")
        if burst < 1:
            raise InvalidValue("Replay.burst", burst, "1 or more")
        self.log: list[str] = []
        self.backends: tuple[RecordingBackend, ...] = (
            tuple(backend) if isinstance(backend, Sequence) else (backend,)
        )
        self.backend = self.backends[0]
        self._random = random.Random(seed)
        self._weights = weights
        self._burst = burst
        self._calls: dict[str, _HeldCall] = {}
        self._cancellable: dict[str, Cancellable] = {}
        self._is_over = False
        self._planned: dict[int, Callable[[], object]] = {}
        self._happened = 0
        self._pauses = 0
        self._resumed = anyio.Event()
        for one in self.backends:
            one.hold_all()

    def call(self, name: str) -> Callable[[], Awaitable[None]]:
        """An async function for a host call, which returns when the replay says.

        Args:
            name: its name in the log; a call that is made while another of the
                name is going on gets a number as well.
        """

        async def held_call() -> None:
            title, number = name, 1
            while title in self._calls:
                number += 1
                title = f"{name} {number}"
            held = self._calls[title] = _HeldCall()
            if self._is_over:
                held.returned.set()
            try:
                await held.returned.wait()
            finally:
                del self._calls[title]
            if held.error is not None:
                raise held.error

        return held_call

    def cancellable(self, name: str, target: Cancellable) -> None:
        """Have something cancelled at some moment, or never; once at most."""
        self._cancellable[name] = target

    def after(self, count: int, action: Callable[[], object]) -> None:
        """Have something done once so many things have happened, in place of chance.

        Trying every count in turn enumerates where it may fall.
        """
        self._planned[count] = action

    async def until_blocked(self) -> None:
        """Let every other task go on until it waits; nothing is decided meanwhile.

        Cancellation: only the wait stops.
        """
        self._pauses += 1
        try:
            await self._until_quiet()
            await anyio.wait_all_tasks_blocked()
        finally:
            self._pauses -= 1
            self._resumed.set()

    async def drive(self, program: Callable[[], Awaitable[_T]]) -> _T:
        """Run a program, and decide what happens to it until it is over.

        Returns:
            What the program returned. All streams are released then.

        Raises:
            BaseException: what the program raised.
            ReplayStuck: it waits for what will never happen.

        Cancellation: the program is cancelled; nothing is held back any more.
        """
        outcome: list[_T] = []
        errors: list[BaseException] = []
        stuck: ReplayStuck | None = None

        async def run_program(scope: anyio.CancelScope) -> None:
            with scope:
                try:
                    outcome.append(await program())
                except Exception as error:  # noqa: BLE001 - raised below, alone
                    errors.append(error)
            self._is_over = True

        scope = anyio.CancelScope()
        try:
            async with anyio.create_task_group() as group:
                group.start_soon(run_program, scope)
                await self._until_my_turn()
                while not self._is_over:
                    if not self._decide():
                        stuck = ReplayStuck(list(self.log))
                        self._let_go()
                        scope.cancel()
                        break
                    await self._until_my_turn()
        finally:
            self._let_go()
        if stuck is not None:
            raise stuck
        if errors:
            raise errors[0]
        return outcome[0]

    async def _until_my_turn(self) -> None:
        while True:
            await self._until_quiet()
            if not self._pauses:
                await anyio.wait_all_tasks_blocked()
            if threads_awaited():
                await anyio.sleep(_THREAD_PAUSE_S)
                continue
            if not self._pauses:
                return
            self._resumed = anyio.Event()
            await self._resumed.wait()

    async def _until_quiet(self) -> None:
        """Give way for some turns: asking the loop who is blocked costs more."""
        quiet, seen = 0, -1
        while quiet < _QUIET_TURNS:
            await anyio.lowlevel.checkpoint()
            count = sum([len(one.calls) for one in self.backends])
            quiet = quiet + 1 if count == seen else 0
            seen = count

    def _let_go(self) -> None:
        self._is_over = True
        for one in self.backends:
            one.release_all()
        for held in self._calls.values():
            held.returned.set()

    def _decide(self) -> bool:
        """Make one thing happen; False where nothing could."""
        planned = self._planned.pop(self._happened, None)
        if planned is not None:
            self.log.append(f"act {self._happened}")
            planned()
            return True
        options = [*self._steps(), *self._returns()]
        weight = self._weights["cancels"]
        if weight:
            names = sorted(self._cancellable)
            options += [(weight, partial(self._cancel, name)) for name in names]
        if not options:
            return False
        for name, is_sticky in (("failures", False), ("losses", True)):
            if self._weights[name]:
                options += [
                    (self._weights[name], partial(self._fail, one, is_sticky))
                    for one in self.backends
                ]
        weights = [weight for weight, _ in options]
        self._happened += 1
        self._random.choices(options, weights)[0][1]()
        return True

    def _steps(self) -> list[_Option]:
        return [
            (1.0, partial(self._step, one, stream))
            for one in self.backends
            for stream in one.ready_streams()
        ]

    def _returns(self) -> list[_Option]:
        options: list[_Option] = []
        for name in sorted(self._calls):
            if not self._calls[name].returned.is_set():
                options.append((1.0, partial(self._return, name)))
                if self._weights["host_failures"]:
                    weight = self._weights["host_failures"]
                    options.append((weight, partial(self._raise, name)))
        return options

    def _step(self, backend: RecordingBackend, stream: StreamHandle | None) -> None:
        wanted = self._random.randint(1, self._burst)
        count = 0
        while count < wanted and stream in backend.ready_streams():
            backend.step(stream)
            count += 1
        name = "default" if stream is None else stream.id
        self.log.append(f"step {name}{self._of(backend)} x{count}")

    def _return(self, name: str) -> None:
        self.log.append(f"return {name}")
        self._calls[name].returned.set()

    def _raise(self, name: str) -> None:
        self.log.append(f"raise {name}")
        held = self._calls[name]
        held.error = RuntimeError(f"{name} was told to fail")
        held.returned.set()

    def _cancel(self, name: str) -> None:
        self.log.append(f"cancel {name}")
        self._cancellable.pop(name).cancel()

    def _fail(self, backend: RecordingBackend, is_sticky: bool) -> None:
        self.log.append(("lose" if is_sticky else "fail") + self._of(backend))
        backend.fail_execution(1, sticky=is_sticky)

    def _of(self, backend: RecordingBackend) -> str:
        return f" of {backend.device}" if len(self.backends) > 1 else ""


class _HeldCall:
    """A host call that has not been let go."""

    __slots__ = ("error", "returned")

    def __init__(self) -> None:
        self.returned = anyio.Event()
        self.error: RuntimeError | None = None
