"""C08, C14, C85 with sessions, and what a session leaves behind: nothing."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import pytest

from accy_async import open_session
from accy_async.backends import RecordingBackend
from accy_async.backends.owners import Owner
from accy_async.errors import DeviceError, DeviceLost, GraceExpired
from accy_async.pipeline import PipelineLaunch, allocate_pipeline_intermediates
from accy_async.session import Session
from tests.harness.clocks import on_jumping_clocks
from tests.harness.scan_chain import ARGS, LAUNCH, PIPELINE, PTX, REGISTRY

pytestmark = pytest.mark.anyio

WAYS = ["outside", "sibling", "timeout"]


class ThreeAwaits(RecordingBackend):
    """A backend whose wait for the device awaits three times."""

    awaited = 0

    async def wait_for_owner(self, owner: Owner, deadline: float) -> None:
        """Wait in three parts, as a driver with several queues would."""
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
            self.awaited += 1
        await super().wait_for_owner(owner, deadline)


async def leave(backend: ThreeAwaits, way: str, ready: anyio.Event) -> None:
    """A session with three pools, which its scope never closes itself."""
    async with open_session(backend) as session:
        for _ in range(3):
            await session.load_pipeline(PIPELINE, REGISTRY, PTX)
        with anyio.CancelScope() as scope:
            ready.set()
            if way == "timeout":
                scope.deadline = anyio.current_time()
            await anyio.sleep_forever()
        raise TimeoutError("the block's own")


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("refused", [None, 1, 5, 9])
async def test_c08_a_session_destroys_its_pools_however_it_is_left(
    way: str, refused: int | None
) -> None:
    """C08: the wait awaits three times under the cancellation, then all pools go.

    A kernel of any pool that cannot be destroyed is reported, and keeps no other.
    """
    backend = ThreeAwaits()
    if refused is not None:
        backend.fail("destroy", refused)
    ready = anyio.Event()
    raised: BaseException | None = None
    try:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(leave, backend, way, ready)
            await ready.wait()
            if way == "sibling":
                raise LookupError("the sibling's")
            if way == "outside":
                tasks.cancel_scope.cancel()
    except ExceptionGroup as error:
        raised = error

    kinds = {type(one) for one in flat(raised)}
    expected: set[type] = set()
    if way != "outside":
        expected.add(LookupError if way == "sibling" else TimeoutError)
    if refused is not None:
        expected.add(DeviceError)
    assert kinds == expected
    assert backend.awaited == 3
    assert sorted(backend.destroyed_ids) == list(range(1, 10))
    assert not any(backend.live_objects().values())
    assert backend.is_healthy


def flat(error: BaseException | None) -> list[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        return [leaf for one in error.exceptions for leaf in flat(one)]
    return [] if error is None else [error]


@on_jumping_clocks
async def test_a_session_with_a_stuck_stream_is_left_within_its_grace(
    anyio_backend_name: str,
) -> None:
    """What the device still uses is named, left to the reaper, and freed later."""
    backend = RecordingBackend()
    bound = 0.25 if anyio_backend_name == "trio" else 20.0
    with anyio.fail_after(bound):
        with pytest.raises(GraceExpired) as caught:
            async with open_session(backend, grace=0.05) as session:
                buffer = backend.allocate_buffer(64)
                stream = backend.create_stream()
                idle = backend.allocate_buffer(32)
                backend.hold(stream)
                backend.write_buffer(buffer, bytes(64), stream=stream)
        await anyio.lowlevel.checkpoint()

    assert set(caught.value.objects) == {"buffer 1 (64 bytes)", "stream 2"}
    assert backend.destroyed_ids == [idle.id]
    assert session.live_objects()["buffers"] == 1
    assert not session.is_open
    backend.release_all()
    assert not any(session.live_objects().values())
    assert len(backend.reaper) == 0
    async with open_session(backend) as again:
        await again.launch_pipeline(LAUNCH)


async def test_an_error_told_inside_is_not_told_again_on_leaving() -> None:
    """A launch that failed, and was awaited, ends the block with its one error."""
    backend = RecordingBackend()
    backend.fail_execution(2)
    with pytest.raises(DeviceError) as caught:
        async with open_session(backend) as session:
            await session.launch_pipeline(LAUNCH)
    assert caught.value.kernel == "accy.kernel.test.sums_scan"
    assert not any(backend.live_objects().values())


async def test_an_error_that_nobody_awaited_is_told_on_leaving() -> None:
    """Work that failed unheard ends the block, in which nothing else went wrong."""
    backend = RecordingBackend()
    with pytest.raises(DeviceError) as caught:
        async with open_session(backend) as session:
            pool = await session.load_pipeline(PIPELINE, REGISTRY, PTX)
            scratch = await allocate_pipeline_intermediates(backend, PIPELINE, ARGS)
            request = attrs.evolve(LAUNCH, artifacts=pool, intermediates=scratch)
            backend.fail_execution(4)
            await session.launch_pipeline(request)
            await session.launch_pipeline(attrs.evolve(request, diagnostic_id="2nd"))
    assert caught.value.node == "2nd"
    assert not any(backend.live_objects().values())


async def test_c14_a_lost_device_ends_its_session_with_one_error() -> None:
    """C14: the block ends with the loss, once; nothing hangs, nothing is left."""
    backend = RecordingBackend()
    backend.fail_execution(1, sticky=True)
    with pytest.raises(DeviceLost) as caught:
        async with open_session(backend) as session:
            try:
                await session.launch_pipeline(LAUNCH)
            finally:
                assert not session.is_healthy
    assert caught.value.kernel == "accy.kernel.test.block_scan"
    assert not any(backend.live_objects().values())


# C85: a service. ASGI in a few lines, so that no server is needed.

Receive = Callable[[], Awaitable[dict[str, Any]]]
Handler = Callable[["App", Receive], Awaitable[str]]


@attrs.define
class App:
    """An application with one session for its lifetime, and a scope per request."""

    session: Session
    handler: Handler
    is_wrapped: bool = False

    async def __call__(self, receive: Receive) -> str | None:
        """Serve one request; None where the client went away."""
        serve = self._pass_through if self.is_wrapped else self._serve
        return await serve(receive)

    async def _pass_through(self, receive: Receive) -> str | None:
        async def passed_on() -> dict[str, Any]:
            return await receive()

        return await self._serve(passed_on)

    async def _serve(self, receive: Receive) -> str | None:
        answer = None
        async with anyio.create_task_group() as tasks:

            async def watch() -> None:
                while (await receive())["type"] != "http.disconnect":
                    pass
                tasks.cancel_scope.cancel()

            tasks.start_soon(watch)
            answer = await self.handler(self, receive)
            tasks.cancel_scope.cancel()
        return answer


@asynccontextmanager
async def running_app(
    backend: RecordingBackend, handler: Handler, *, is_wrapped: bool
) -> AsyncIterator[App]:
    async with open_session(backend) as session:
        yield App(session, handler, is_wrapped)


async def scan(app: App, receive: Receive) -> str:
    """The recommended pattern: a stream of the session's for this request."""
    del receive
    async with app.session.stream() as stream:
        await app.session.launch_pipeline(attrs.evolve(LAUNCH, stream=stream))
        await app.session.launch_pipeline(attrs.evolve(LAUNCH, stream=stream))
    return "scanned"


async def scan_and_swallow(app: App, receive: Receive) -> str:
    """A handler that takes a cancellation for an ordinary error, and retries."""
    for _ in range(3):
        try:
            await scan(app, receive)
        except BaseException:  # noqa: BLE001 - the mistake under test
            continue
    return "swallowed"


class Client:
    """One client: connected until it goes away."""

    def __init__(self) -> None:
        self.gone = anyio.Event()
        self._is_asked = False

    async def receive(self) -> dict[str, Any]:
        """What an ASGI server tells the application."""
        if not self._is_asked:
            self._is_asked = True
            return {"type": "http.request", "body": b""}
        await self.gone.wait()
        return {"type": "http.disconnect"}


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize("handler", [scan, scan_and_swallow])
async def test_c85_a_disconnect_stops_the_requests_device_work(
    handler: Handler, is_wrapped: bool
) -> None:
    """C85: the client goes away in the first launch: the second never happens.

    With middleware or without, and though a handler swallows the cancellation,
    the request's buffers are gone and the application's session serves the next.
    """
    backend = RecordingBackend()
    async with running_app(backend, handler, is_wrapped=is_wrapped) as app:
        client = Client()
        backend.hold_all()
        answers: list[str | None] = []

        async def request() -> None:
            answers.append(await app(client.receive))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(request)
            while backend.sync_count == 0:
                await anyio.lowlevel.checkpoint()
            # The device finishes once the cancelled launch waits for it.
            backend.on_call = lambda call: (
                backend.release_all() if backend.sync_count == 2 else None
            )
            client.gone.set()
        assert backend.launch_count == 3
        assert backend.live_objects()["buffers"] == 0
        assert backend.live_objects()["artifacts"] == 0
        assert app.session.statistics().streams_leased == 0
        assert app.session.statistics().launches_in_flight == 0
        assert app.session.is_healthy

        backend.on_call = None
        await app(Client().receive)
        assert backend.launch_count > 3
    assert not any(backend.live_objects().values())


async def test_c85_other_requests_go_on_when_one_client_leaves() -> None:
    """C85: of eight requests at once one is cancelled; seven answer."""
    backend = RecordingBackend()
    async with running_app(backend, scan, is_wrapped=False) as app:
        clients = [Client() for _ in range(8)]
        backend.hold_all()
        answers: list[str | None] = []

        async def request(client: Client) -> None:
            answers.append(await app(client.receive))

        async with anyio.create_task_group() as tasks:
            for client in clients:
                tasks.start_soon(request, client)
            while backend.sync_count < 8:
                await anyio.lowlevel.checkpoint()
            backend.on_call = lambda call: (
                backend.release_all() if backend.sync_count == 9 else None
            )
            clients[5].gone.set()
        assert answers.count("scanned") == 7
        assert answers.count(None) == 1
        assert backend.launch_count == 3 * 15
    assert not any(backend.live_objects().values())


async def test_c44_a_timeout_around_waiting_for_a_stream_ends_only_that() -> None:
    """C44: who waits for a stream gives up alone; those who have one finish."""
    backend = RecordingBackend()
    finished: list[int] = []

    async def work(session: Session, number: int, request: PipelineLaunch) -> None:
        async with session.stream() as stream:
            await session.launch_pipeline(attrs.evolve(request, stream=stream))
            finished.append(number)

    async with open_session(backend, max_streams=2) as session:
        backend.hold_all()
        async with anyio.create_task_group() as tasks:
            for number in (1, 2):
                tasks.start_soon(functools.partial(work, session, number, LAUNCH))
            while backend.sync_count < 2:
                await anyio.lowlevel.checkpoint()
            with anyio.CancelScope(deadline=anyio.current_time()) as scope:
                await work(session, 3, LAUNCH)
            assert scope.cancelled_caught
            assert not tasks.cancel_scope.cancel_called
            backend.release_all()
        assert sorted(finished) == [1, 2]
        assert session.is_open
    assert not any(backend.live_objects().values())
