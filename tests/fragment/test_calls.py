"""Calling fragments with arrays of every library, many at once, on this CPU."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import anyio
import anyio.lowlevel
import attrs
import numpy as np
import pytest

from accy_async import DeviceArray, DType, Session, open_session
from accy_async.backends import RecordingBackend
from accy_async.compiler.tracing import fragment, trace_program
from accy_async.errors import (
    DeviceError,
    GraceExpired,
    InvalidBuffer,
    InvalidProgram,
    InvalidType,
    LaunchArgumentMismatch,
    SessionClosed,
)
from accy_async.fragment import (
    CompiledFragment,
    FragmentFunction,
    LoadedFragment,
    load_fragment,
)
from accy_async.fragment.streams import FragmentStreams
from accy_async.observe import Observer
from tests.fragment.plans import ADD, CHAIN, UPDATE

pytestmark = pytest.mark.anyio

X = np.arange(8, dtype=np.float32)
LARGE = np.arange(100_000, dtype=np.float32)
"""Large enough to be used where it is."""


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    async with open_session("cpu") as opened:
        yield opened
        assert opened.is_healthy


def twice_and_sum(x: Any, weights: Any, scale: float = 2) -> Any:
    return {"scaled": x * scale + weights["bias"], "sum": np.sum(x)}


async def download(session: Session, array: Any) -> Any:
    assert isinstance(array, DeviceArray)
    return await session.download(array)


@pytest.mark.parametrize("x", [X, LARGE], ids=["small", "large"])
async def test_host_arrays_give_host_arrays_and_others_arrays_of_the_session(
    session: Session, x: Any
) -> None:
    weights = {"bias": np.ones_like(x)}
    async with await session.load_fragment(twice_and_sum) as function:
        assert isinstance(function, FragmentFunction)
        for _ in range(3):
            result = await function(x, weights, scale=3)
            np.testing.assert_array_equal(result["scaled"], x * 3 + 1)
            np.testing.assert_allclose(result["sum"], np.sum(x), rtol=1e-6)
        mixed = await function(await session.upload(x), weights, scale=3)
        scaled = await download(session, mixed["scaled"])
        np.testing.assert_array_equal(scaled, x * 3 + 1)
        assert len(function.fragments) == 1


async def test_arrays_of_other_libraries_are_taken(session: Session) -> None:
    torch = pytest.importorskip("torch")
    async with await session.load_fragment(lambda x: x + x) as function:
        result = await function(torch.arange(8, dtype=torch.float32))
        assert torch.from_dlpack(result).tolist() == (2 * X).tolist()


@pytest.mark.parametrize(
    ("dtype", "taken", "refused"),
    [
        (DType.F32, [2, 2.5, float("inf")], [True, 1e39]),
        (DType.F16, [300, 0.5], [10**6]),
        (DType.I8, [-128, 7], [True, 2.5, 128]),
        (DType.BOOL, [True, False], [1, 0.0]),
    ],
    ids=str,
)
async def test_numbers_are_taken_where_a_number_is_and_fits(
    session: Session, dtype: DType, taken: list[Any], refused: list[Any]
) -> None:
    x = np.ones(3, dtype.numpy)

    def both(x: Any, number: Any) -> Any:
        return np.maximum(x, number), number

    types = f"{dtype}[3]", f"{dtype}[]"
    async with await session.load_fragment(both, *types) as fragment:
        for number in taken:
            greater, itself = await fragment(x, number)
            assert (greater.dtype, itself.dtype) == (dtype.numpy, dtype.numpy)
            assert (greater == max(1, number)).all()
            assert itself == number
        on_device, _ = await fragment(await session.upload(x), taken[0])
        assert (await download(session, on_device) == max(1, taken[0])).all()
        for number in refused:
            with pytest.raises(LaunchArgumentMismatch, match="argument 1: "):
                await fragment(x, number)
        with pytest.raises(LaunchArgumentMismatch, match="argument 0: "):
            await fragment(taken[0], taken[0])


async def test_results_are_no_one_elses_memory(session: Session) -> None:
    def same(x: Any) -> Any:
        return x, x, np.ones(3, np.float32), x + 1, x + 1

    async with await session.load_fragment(same, "f32[8]") as loaded:
        assert isinstance(loaded, LoadedFragment)
        given = X.copy()
        results = await loaded(given)
        given[:] = -1
        for index, result in enumerate(results):
            expected = (X, X, np.ones(3), X + 1, X + 1)[index]
            np.testing.assert_array_equal(result, expected)
            result[...] = -2  # changes no other
        array = await session.upload(X)
        results = await loaded(array)
        handles = {one.handle.id for one in (array, *results)}
        assert len(handles) == 6
        for index, one in enumerate(results):
            wanted = (X, X, np.ones(3), X + 1, X + 1)[index]
            np.testing.assert_array_equal(await session.download(one), wanted)


async def test_an_argument_is_never_changed() -> None:
    """A kernel that writes over its operand gets a copy."""
    backend = RecordingBackend()
    async with open_session(backend) as session:
        loaded = await session.load_fragment(UPDATE)
        array = await session.upload(X)
        result = await loaded(array)
        assert result.handle.id != array.handle.id
        launch = backend.launches[-1]
        assert array.handle.id not in launch.buffer_ids
        assert backend.copy_count == 2
        assert isinstance(await loaded(X), np.ndarray)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,), (17,), (3, 5)])
async def test_shapes_of_all_kinds(session: Session, shape: tuple[int, ...]) -> None:
    x = np.ones(shape, np.float32)
    async with await session.load_fragment(lambda x: x * 2 + 1) as function:
        np.testing.assert_array_equal(await function(x), x * 2 + 1)
        array = await function(await session.upload(x))
        np.testing.assert_array_equal(await session.download(array), x * 2 + 1)
        empty = await function(np.asfortranarray(x))
        np.testing.assert_array_equal(empty, x * 2 + 1)


async def test_each_combination_of_types_has_a_fragment_up_to_the_limit(
    session: Session,
) -> None:
    async with await session.load_fragment(lambda x, n=1: x + n) as function:
        function.limit = 2
        for size in (1, 2, 3, 1):
            x = np.ones(size, np.float32)
            np.testing.assert_array_equal(await function(x), x + 1)
        np.testing.assert_array_equal(await function(x, 5), x + 5)
        np.testing.assert_array_equal(await function(x, n=True), x + 1)
        assert len(function.fragments) == 2
        called = function.fragments[-1]
        for spec in ("f32[1]", x):
            assert await function.specialise(spec, n=True) is called
        with pytest.raises(InvalidType, match="hashable"):
            await function(x, bytearray(b"a constant"))
    assert function.is_closed
    with pytest.raises(SessionClosed):
        await function(X)


@pytest.mark.parametrize("mode", ["f32[8]", "of its own]"])
async def test_a_text_of_a_call_is_a_constant_whatever_it_looks_like(
    session: Session, mode: str
) -> None:
    def either(x: Any, how: str) -> Any:
        assert type(how) is str
        return x + 1 if how == mode else x

    for function in (either, fragment(either)):
        loaded = await session.load_fragment(function)
        assert np.array_equal(await loaded(X, mode), X + 1)
        assert np.array_equal(await loaded(X, "another"), X)
        assert np.array_equal(await loaded(x=X, how=mode), X + 1)


async def test_statistics_count_the_streams_of_calls() -> None:
    async with open_session(RecordingBackend()) as session:
        loaded = await session.load_fragment(ADD)
        x = await session.upload(X)
        await loaded.invoke([x, x])
        counted = session.statistics()
        assert counted.streams_open == session.live_objects()["streams"] == 1
        assert counted.streams_leased == 0


async def test_calls_that_need_the_same_fragment_compile_it_once(
    session: Session,
) -> None:
    traced = 0

    def function(x: Any) -> Any:
        nonlocal traced
        traced += 1
        return x + 1

    async with await session.load_fragment(function) as loaded:

        async def call(k: int) -> None:
            np.testing.assert_array_equal(await loaded(X * k), X * k + 1)

        async with anyio.create_task_group() as group:
            for k in range(40):
                group.start_soon(call, k)
        assert traced == 1
        assert len(loaded.fragments) == 1
        assert loaded.fragments[0].in_flight == 0


async def test_a_compilation_that_is_given_up_is_begun_again_by_who_waits(
    session: Session,
) -> None:
    async with await session.load_fragment(lambda x: x + 1) as function:
        results = []

        async def call() -> None:
            results.append(await function(X))

        async with anyio.create_task_group() as group:
            with anyio.CancelScope() as scope:

                async def cancel() -> None:
                    await anyio.lowlevel.checkpoint()
                    scope.cancel()

                group.start_soon(call)
                group.start_soon(cancel)
                await function(X)
            assert scope.cancelled_caught
        assert len(results) == 1


async def test_many_invocations_are_in_flight_and_share_nothing() -> None:
    backend = RecordingBackend(is_holding=True)
    streams = FragmentStreams(backend, 3)
    loaded = await load_fragment(backend, ADD, streams=streams)
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(loaded, X, X)
        await anyio.wait_all_tasks_blocked()
        assert loaded.in_flight == 0  # the constants' upload comes first
        backend.release_all()
        await anyio.wait_all_tasks_blocked()
    backend.hold_all()
    async with anyio.create_task_group() as group:
        for _ in range(8):
            group.start_soon(loaded, X, X)
        await anyio.wait_all_tasks_blocked()
        assert loaded.in_flight == 6  # twice as many as streams
        launches = backend.launches[-6:]
        count = launches[0].buffer_ids[3]
        used = [one for launch in launches for one in launch.buffer_ids[:3]]
        assert len(set(used)) == 18
        assert {launch.buffer_ids[3] for launch in launches} == {count}
        assert len({launch.stream for launch in launches}) == 3
        backend.release_all()
    assert backend.launch_count == 16
    await loaded.aclose()
    assert streams.opened == 3  # the caller's, who shares them between fragments
    for stream in streams.detach():
        backend.destroy(stream)
    assert not any(backend.live_objects().values())


async def test_a_call_that_is_cancelled_holds_up_no_other() -> None:
    backend = RecordingBackend(is_holding=True, grace_s=0.05)
    loaded = await load_fragment(backend, UPDATE)
    with pytest.raises(ExceptionGroup) as caught, anyio.CancelScope() as scope:
        async with anyio.create_task_group() as group:
            group.start_soon(loaded, X)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
    assert isinstance(leaf(caught.value), GraceExpired)
    backend.release_all()
    assert isinstance(await loaded(X), np.ndarray)
    await loaded.aclose()
    assert not any(backend.live_objects().values())


def leaf(error: BaseException) -> BaseException:
    while isinstance(error, BaseExceptionGroup):
        (error,) = error.exceptions
    return error


async def test_a_kernel_that_fails_is_named_and_the_next_call_works() -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, CHAIN) as loaded:
        backend.fail_execution(2)
        with pytest.raises(DeviceError, match="again"):
            await loaded(X)
        assert len(await loaded(X)) == 4


async def test_repeated_calls_become_one_graph_of_the_device() -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, CHAIN) as loaded:
        for _ in range(3):
            await loaded(X)
        made = backend.live_objects()["graphs"]
        assert made == 1
        for _ in range(3):
            await loaded(X)
        kinds = [call.kind for call in backend.calls]
        assert kinds.count("launch_graph") == 4
        assert kinds.count("launch") == 8
        array = DeviceArray.allocate(backend, (8,), DType.F32)
        await loaded(array)  # changes three of four kernels: no graph any more
        assert backend.live_objects()["graphs"] == 0
    array.free()


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ((X,), LaunchArgumentMismatch),
        ((X, X, X), LaunchArgumentMismatch),
        ((X, X[:7]), LaunchArgumentMismatch),
        ((X, X.astype(np.float64)), LaunchArgumentMismatch),
        ((X, "text"), LaunchArgumentMismatch),
    ],
)
async def test_other_arguments_are_refused_before_anything_happens(
    arguments: tuple[object, ...], error: type[Exception]
) -> None:
    backend = RecordingBackend()
    async with await load_fragment(backend, ADD) as loaded:
        with pytest.raises(error):
            await loaded(*arguments)
        with pytest.raises(LaunchArgumentMismatch, match="not named"):
            await loaded(X, named=X)
        assert backend.buffer_allocate_count == 0


async def test_freed_and_foreign_arrays_are_refused(session: Session) -> None:
    async with await session.load_fragment(lambda x: x + 1) as function:
        array = await session.upload(X)
        array.free()
        with pytest.raises(InvalidBuffer, match="freed"):
            await function(array)
        async with open_session("cpu") as other:
            theirs = await other.upload(X)
            with pytest.raises(InvalidBuffer, match="another backend"):
                await function(theirs)
        with pytest.raises(InvalidType):
            await function(np.array(["text"]))


async def test_what_cannot_be_compiled_is_refused(session: Session) -> None:
    async with await session.load_fragment(lambda x: x.nothing_like_it()) as function:
        for _ in range(2):
            with pytest.raises((InvalidProgram, AttributeError)):
                await function(X)
    for wrong in (3, None):
        with pytest.raises(InvalidType, match=r"load_fragment.*a CompiledFragment"):
            await session.load_fragment(wrong)  # type: ignore[call-overload]
    program = trace_program(lambda x: x + 1, "f32[8]")
    with pytest.raises(InvalidType, match="its own"):
        await session.compile_fragment(program, "f32[8]")


async def test_everything_that_is_a_program_can_be_loaded(session: Session) -> None:
    def plus_one(x: Any) -> Any:
        return x + 1

    program = trace_program(plus_one, "f32[8]")
    compiled = await session.compile_fragment(plus_one, "f32[8]")
    kept = CompiledFragment.from_bytes(compiled.to_bytes())
    assert kept == compiled
    assert kept.fingerprint == compiled.fingerprint
    for source in (program, program.module, compiled, kept):
        async with await session.load_fragment(source) as loaded:
            np.testing.assert_array_equal(await loaded(X), X + 1)
    async with await session.load_fragment(fragment(plus_one)) as function:
        np.testing.assert_array_equal(await function(X), X + 1)


async def test_an_observer_is_told_of_each_call() -> None:
    told: list[str] = []

    class Told(Observer):
        def run_started(
            self, run_id: int, plan_name: str, node_count: int, time_ns: int
        ) -> None:
            told.append(f"{plan_name}: {node_count}")

        def run_finished(
            self, run_id: int, time_ns: int, state: str, error: BaseException | None
        ) -> None:
            told.append(state)

        def phase_started(
            self, phase_id: int, name: str, detail: str, time_ns: int
        ) -> None:
            told.append(name)

    async with open_session(RecordingBackend(), observer=Told()) as session:
        loaded = await session.load_fragment(CHAIN)
        await loaded(X)
    assert told == ["load", "chain: 4", "ok"]


async def test_after_the_session_nothing_is_left_and_calls_are_refused() -> None:
    backend = RecordingBackend()
    async with open_session(backend) as session:
        loaded = await session.load_fragment(ADD)
        await loaded(X, X)
    assert not any(backend.live_objects().values())
    with pytest.raises(SessionClosed):
        await loaded(X, X)
    with pytest.raises(SessionClosed):
        await session.load_fragment(ADD)
    await loaded.aclose()
    assert attrs.fields(CompiledFragment).plan.eq


@pytest.mark.parametrize("count", [8, 100_000], ids=["small", "large"])
async def test_arrays_that_are_not_aligned_are_copied(
    session: Session, count: int
) -> None:
    """Whether or not one of that size would be used where it is."""
    memory = np.zeros(4 * count + 1, np.uint8)
    x = np.frombuffer(memory.data, np.float32, count, 1)
    assert not x.flags.aligned
    async with await session.load_fragment(lambda a: a + np.float32(1)) as function:
        np.testing.assert_array_equal(await function(x), np.ones(count, np.float32))
