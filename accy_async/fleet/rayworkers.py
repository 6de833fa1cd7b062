"""Workers on a Ray cluster; the extra ``accy-async[ray]``.

Each worker is an actor in a process of its own, somewhere on the cluster, with a
session of ours in it. The actor's class is imported there, not sent: the same
accy_async is to be installed on every host. Calls carry bytes of
`accy_async.fleet.wire` both ways.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio
import attrs

from accy_async.backends.cleanup import overtake, raise_together
from accy_async.backends.completion import Completion, run_abandonable
from accy_async.backends.nativecancel import outlast
from accy_async.errors import (
    CapabilityMismatch,
    RuntimeUnavailable,
    WorkerLost,
)
from accy_async.fleet.found import FleetDevice
from accy_async.fleet.places import FleetWorker, WorkerPlace, WorkerSource
from accy_async.fleet.rayactor import RayActor, machine
from accy_async.fleet.wire import from_wire
from accy_async.values import (
    integer,
    number,
    optional,
    text,
)

if TYPE_CHECKING:
    from concurrent.futures import Future

__all__ = ["RayWorkers", "ray_workers"]

_Ray: TypeAlias = Any
"""What is of Ray, or comes through it: the package says too little of its types."""

_END_S = 10.0
"""How long an actor has to end by itself, beyond the session's grace."""

_LOOK_S = 0.01
"""Between two looks at whether a process is gone."""


@attrs.frozen(kw_only=True)
class RayWorkers(WorkerSource):
    """Workers on a Ray cluster; `ray_workers` makes it, and explains the fields."""

    count: int = attrs.field(validator=integer(1))
    device: str = attrs.field(default="auto", validator=text())
    num_gpus: float = attrs.field(default=0.0, converter=float, validator=number(0.0))
    num_cpus: float = attrs.field(default=0.0, converter=float, validator=number(0.0))
    resources: Mapping[str, float] = attrs.field(factory=dict)
    address: str | None = attrs.field(default=None, validator=optional(text()))
    grace: float = attrs.field(default=5.0, validator=number(0.0))
    open_timeout_s: float = attrs.field(default=120.0, validator=number(0.1))

    @property
    def wants(self) -> dict[str, float]:
        """What one worker takes of the cluster, by Ray's names."""
        wanted = {"GPU": self.num_gpus, "CPU": self.num_cpus, **self.resources}
        return {name: amount for name, amount in wanted.items() if amount}

    @asynccontextmanager
    async def connect(self) -> AsyncIterator[Sequence[WorkerPlace]]:
        """The places, with a connection to the cluster.

        Where this process is connected already it stays so. Else it is connected, and
        disconnected after the block; a cluster that was started for that ends with it.

        Raises:
            RuntimeUnavailable: Ray is not installed, or there is no cluster.
            CapabilityMismatch: the cluster has not got what the workers take.
        """
        ray = import_ray()
        connection = None
        if not ray.is_initialized():
            connection = _Connection(ray, self.address)
        try:
            if connection is not None:
                await connection.open()
            nodes = await _on_thread(ray.nodes, "look at Ray's nodes")
            check_satisfiable(nodes, self.count, self.wants)
            yield [RayPlace(ray, self, number) for number in range(self.count)]
        finally:
            if connection is not None:
                _, cancelled = await outlast(connection.close)
                if cancelled is not None:
                    raise cancelled


def ray_workers(
    count: int,
    *,
    device: str = "auto",
    num_gpus: float | None = None,
    num_cpus: float | None = None,
    resources: Mapping[str, float] | None = None,
    address: str | None = None,
    grace: float = 5.0,
    open_timeout_s: float = 120.0,
) -> RayWorkers:
    """Workers on a Ray cluster, for `open_fleet`.

    Args:
        count: how many; each is a process of its own.
        device: what each opens a session on. Ray shows a worker its own GPUs alone, so
            that ``cuda`` is the one that it was given.
        num_gpus: GPUs that each takes; one for ``cuda``, else none.
        num_cpus: cores that each takes; none where it takes a GPU, so that nothing
            else of the cluster keeps it waiting; else one.
        resources: what else each takes, by the names that the cluster gives it.
        address: the cluster's; that which Ray finds by itself if left out, or one that
            is started on this machine. Where this process is connected already, that
            one.
        grace: of each worker's session, in seconds.
        open_timeout_s: how long a worker may take until it is open, in seconds; where
            others use the cluster it waits for its turn.

    Raises:
        InvalidValue, InvalidType: a number is out of range, or no number.
    """
    is_cuda = str(device).partition(":")[0] == "cuda"
    gpus = float(is_cuda) if num_gpus is None else num_gpus
    cpus = float(not gpus) if num_cpus is None else num_cpus
    return RayWorkers(
        count=count,
        device=device,
        num_gpus=gpus,
        num_cpus=cpus,
        resources=dict(resources or {}),
        address=address,
        grace=grace,
        open_timeout_s=open_timeout_s,
    )


def import_ray() -> _Ray:
    """The package.

    Raises:
        RuntimeUnavailable: it is not installed.
    """
    try:
        import ray
    except ImportError as error:
        raise RuntimeUnavailable(
            f"Ray cannot be used here: pip install 'accy-async[ray]' ({error})"
        ) from error
    return ray


def check_satisfiable(
    nodes: Sequence[Mapping[str, Any]], count: int, wants: Mapping[str, float]
) -> None:
    """Refuse what the cluster can never give: Ray would wait for it for ever.

    Args:
        nodes: as ``ray.nodes()`` says.
        count: workers.
        wants: what each takes, by Ray's names.

    Raises:
        CapabilityMismatch: naming what is wanted and what there is.
    """
    totals = [dict(node["Resources"]) for node in nodes if node.get("Alive")]
    room = sum(
        min((int(total.get(name, 0.0) / much) for name, much in wants.items()))
        if wants
        else count
        for total in totals
    )
    if room >= count:
        return
    wanted = ", ".join(f"{much:g} {name}" for name, much in wants.items())
    there = {name: sum(t.get(name, 0.0) for t in totals) for name in wants}
    has = ", ".join(f"{much:g} {name}" for name, much in there.items())
    raise CapabilityMismatch(
        f"{count} workers of {wanted} each: the cluster's {len(totals)} nodes have "
        f"room for {room}, with {has or 'nothing'} in all"
    )


class RayPlace(WorkerPlace):
    """One worker of a cluster."""

    def __init__(self, ray: _Ray, how: RayWorkers, number: int) -> None:
        self.name = f"ray:{number}"
        self._ray = ray
        self._how = how

    def open(self) -> AbstractAsyncContextManager[FleetWorker]:
        """Start an actor, and wait until its session is open."""
        return self._open()

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[FleetWorker]:
        ray, how = self._ray, self._how
        kind = ray.remote(
            num_gpus=how.num_gpus,
            num_cpus=how.num_cpus,
            resources=dict(how.resources) or None,
            max_restarts=0,
            max_task_retries=0,
        )(RayActor)
        actor = kind.remote()
        session = actor.run.remote(how.device, how.grace)  # ends with its session
        process: tuple[str, int] | None = None
        device: FleetDevice | None = None
        primary: BaseException | None = None
        try:
            with anyio.move_on_after(how.open_timeout_s):
                process = await answer_of(ray, actor.process.remote(), self.name)
                answer = await answer_of(ray, actor.device.remote(), self.name)
                device = from_wire(answer, FleetDevice)
            if device is None:
                wants = [f"{much:g} {name}" for name, much in how.wants.items()]
                raise RuntimeUnavailable(
                    f"worker {self.name}: not open after {how.open_timeout_s:g} s; it "
                    f"waits for {', '.join(wants) or 'a process'} of the cluster"
                )
            yield _RayWorker(ray, self.name, actor, device, how.grace + _END_S)
        except BaseException as error:  # noqa: BLE001 - raised below
            primary = error
        errors: list[Exception] = []
        until = anyio.current_time() + how.grace + _END_S
        _, cancelled = await outlast(
            partial(self._end, actor, session, process, until, errors)
        )
        if device is None:  # what could not be opened has said why
            errors.clear()
        if cancelled is not None:
            primary = overtake(primary, cancelled, errors)
        raise_together(f"worker {self.name}", primary, errors)

    async def _end(
        self,
        actor: _Ray,
        session: _Ray,
        process: tuple[str, int] | None,
        until: float,
        errors: list[Exception],
    ) -> None:
        """Have the session left, then the process, whatever becomes of the first.

        Where it is cut short it can be done again.

        Args:
            actor: the worker's.
            session: the answer to its call that is the session.
            process: the actor's machine and process, where they are known.
            until: when the session has had its time.
            errors: gets what the session was left with, where it could say so.
        """
        ray = self._ray
        try:
            if process is not None:
                with anyio.CancelScope(deadline=until):
                    await answer_of(ray, actor.end.remote(), self.name)
                    await answer_of(ray, session, self.name)
        except WorkerLost as error:
            if isinstance(error.__cause__, ray.exceptions.RayTaskError):
                errors.append(error)  # it raised that; else it is only gone
        ray.kill(actor, no_restart=True)
        with anyio.move_on_after(_END_S):
            await self._gone(actor, process)

    async def _gone(self, actor: _Ray, process: tuple[str, int] | None) -> None:
        """Return when the actor is known to be gone; on this machine, its process."""
        with contextlib.suppress(WorkerLost):
            while process is not None:
                await answer_of(self._ray, actor.process.remote(), self.name)
        if process is None or process[0] != machine():
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            while True:
                os.kill(process[1], 0)  # which asks only
                await anyio.sleep(_LOOK_S)


class _RayWorker(FleetWorker):
    """An actor, as the fleet asks it."""

    def __init__(
        self,
        ray: _Ray,
        name: str,
        actor: _Ray,
        device: FleetDevice,
        patience_s: float,
    ) -> None:
        self._ray = ray
        self._name = name
        self._actor = actor
        self._device = device
        self._patience_s = patience_s

    @property
    def device(self) -> FleetDevice:
        return self._device

    async def take(self, work: bytes) -> bytes:
        stored = await _on_thread(lambda: self._ray.put(work), "put into Ray")
        return await self._asked(self._actor.take.remote(stored))

    async def measure(self, request: bytes) -> bytes:
        return await self._asked(self._actor.measure.remote(request))

    async def _asked(self, reference: _Ray) -> bytes:
        try:
            answer: bytes = await answer_of(self._ray, reference, self._name)
        except anyio.get_cancelled_exc_class():
            # Over there it is an ordinary cancellation: it ends within the grace.
            self._ray.cancel(reference)
            until = anyio.current_time() + self._patience_s
            ended = await outlast(partial(self._given_up, reference), until)
            if not ended.is_over:  # it does not listen
                self._ray.kill(self._actor, no_restart=True)
            raise
        return answer

    async def _given_up(self, reference: _Ray) -> None:
        """Return when a call has ended that nobody wants to hear of any more."""
        with contextlib.suppress(WorkerLost):
            await answer_of(self._ray, reference, self._name)


async def answer_of(ray: _Ray, reference: _Ray, worker: str) -> _Ray:
    """Await what a call of an actor answers, on any loop.

    Raises:
        WorkerLost: the actor is gone, or was never there.

    Cancellation: only the wait stops.
    """
    future: Future[Any] = reference.future()
    completion = Completion()
    future.add_done_callback(lambda _: completion.set())
    await completion.wait()
    try:
        return future.result()
    except ray.exceptions.RayError as error:
        lines = str(error).strip().splitlines()
        words = lines[-1].strip() if lines else ""
        raise WorkerLost(f"{type(error).__name__}: {words}", worker=worker) from error


class _Connection:
    """This process's connection to a cluster, on a thread that lasts as long.

    What is started on this machine for it ends with the thread that started it: that is
    what Linux is asked for (``PR_SET_PDEATHSIG``, prctl(2)).
    """

    def __init__(self, ray: _Ray, address: str | None) -> None:
        self._ray = ray
        self._address = address
        self._error: Exception | None = None
        self._opened = Completion()
        self._closed = Completion()
        self._is_left = threading.Event()
        self._thread = threading.Thread(target=self._run, name="Ray", daemon=True)

    async def open(self) -> None:
        """Connect, or start a cluster here.

        Raises:
            RuntimeUnavailable: Ray refuses.

        Cancellation: `close` ends what comes of it.
        """
        self._thread.start()
        await self._opened.wait()
        if self._error is not None:
            raise RuntimeUnavailable(
                f"Ray does not start: {self._error}"
            ) from self._error

    async def close(self) -> None:
        """Disconnect, and end what was started. Idempotent."""
        self._is_left.set()
        if self._thread.ident is not None:
            await self._closed.wait()

    def _run(self) -> None:
        try:
            self._ray.init(
                address=self._address,
                include_dashboard=None if self._address else False,
                log_to_driver=False,
                configure_logging=False,
            )
        except Exception as error:  # noqa: BLE001 - `open` raises it
            self._error = error
        self._opened.set()
        self._is_left.wait()
        try:
            self._ray.shutdown()
        finally:
            self._closed.set()


async def _on_thread(work: Callable[[], _Ray], name: str) -> _Ray:
    return await run_abandonable(work, lambda _: None, name=name)
