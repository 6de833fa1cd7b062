"""Two GPUs in one session: copies, waits, plans over both, peer access, isolation."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import AsyncIterator
from typing import Any

import attrs
import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat, KernelArtifact, KernelCallArtifact
from accy_async.backends import BufferBinding, LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.routes import Way
from accy_async.compiler.kernels.catalogue import library_registry
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    InvalidArtifact,
    InvalidBuffer,
    InvalidEvent,
    InvalidStream,
    LaunchArgumentMismatch,
)
from accy_async.fleet import FleetBuffer, FleetCandidate, FleetWork, open_fleet
from accy_async.graph.builder import LaunchGraphBuilder
from accy_async.graph.nodes import BufferSlot
from accy_async.graph.options import LaunchOptions
from accy_async.session import MultiSession, open_session
from accy_async.session.multi.spanning import SpanningPlan
from tests.devices.test_properties import start
from tests.graphs.programs import LENGTH, Kernels, Program

pytestmark = [pytest.mark.multigpu, pytest.mark.anyio]

NAMES = ["cuda:0", "cuda:1"]
SIZES = [0, 1, 3, 255, 4097, (8 << 20) - 1, 8 << 20, (8 << 20) + 1, (40 << 20) + 5]


@pytest.fixture
def anyio_backend() -> tuple[str, dict[str, object]]:
    """One loop, but where a test says another: contexts of GPUs take long to make."""
    return "asyncio", {"use_uvloop": False}


@pytest.fixture
async def session() -> AsyncIterator[MultiSession]:
    async with open_session(devices=NAMES) as opened:
        yield opened


def kernels() -> Kernels:
    registry = library_registry(ArtifactFormat.CUDA_PTX, dtype=DType.U32)

    def entry(name: str) -> KernelCallArtifact:
        return registry.get(f"accy.kernel.{name}", 1, ArtifactFormat.CUDA_PTX)

    return Kernels(entry("add"), entry("axpy"), entry("fill"), entry("copy"))


@pytest.mark.parametrize("size", SIZES)
async def test_copies_of_every_size_move_every_byte(
    session: MultiSession, size: int
) -> None:
    """Straight where there is peer access, both ways."""
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    here = await session.upload(values, device="cuda:0")
    there = await session.copy_to(here, "cuda:1")
    here.free()
    back = await session.copy_to(there, "cuda:0")
    np.testing.assert_array_equal(await session.download(back), values)


@pytest.mark.parametrize("size", SIZES)
async def test_staged_copies_of_every_size_move_every_byte(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through page-locked memory, as where there is no peer access."""
    monkeypatch.setattr(CudaBackend, "_way_to", lambda *_: (None, "told not to"))
    values = np.random.default_rng(size).integers(0, 256, size, np.uint8)
    async with open_session(devices=NAMES) as session:
        here = await session.upload(values, device="cuda:0")
        route = session.on(0).backend.route_to(session.on(1).backend)
        assert route.way is Way.STAGED
        there = await session.copy_to(here, "cuda:1")
        np.testing.assert_array_equal(await session.download(there), values)


async def test_copies_to_and_from_the_processor() -> None:
    """By host memory, in both directions."""
    values = np.arange(1_000_000, dtype=np.float32)
    async with open_session(devices=["cpu:0", "cuda:1"]) as session:
        here = await session.upload(values, device="cpu:0")
        there = await session.copy_to(here, "cuda:1")
        back = await session.copy_to(there, "cpu:0")
        np.testing.assert_array_equal(await session.download(back), values)
        route = session.on(0).backend.route_to(session.on(1).backend)
        assert route.way is Way.HOST
        assert route.device == "cuda:1"


async def test_peer_access_is_given_back() -> None:
    """Opening and closing again and again leaves nothing enabled."""
    for _ in range(3):
        async with open_session(devices=NAMES) as session:
            array = await session.upload(np.ones(1000, np.float32), device=0)
            await session.copy_to(array, 1)


async def test_a_stream_waits_for_the_other_gpus_event(session: MultiSession) -> None:
    """A copy submitted at once behind a wait reads what the other GPU wrote."""
    one, two = (session.on(name).backend for name in NAMES)
    size = 64 << 20
    source, target = one.allocate_buffer(size), two.allocate_buffer(size)
    for round_ in range(20):
        first, second = one.create_stream(), two.create_stream()
        event = one.create_event()
        one.fill_buffer(source, bytes([round_]) * 4, stream=first)
        one.record_event(event, first)
        if one.route_to(two).is_pulled:
            two.wait_for_peer(second, event, one)
            one.copy_to_peer(source, target, two, stream=second)
        else:
            one.copy_to_peer(source, target, two, stream=first)
            one.record_event(event, first)
            two.wait_for_peer(second, event, one)
        found = np.empty(size, np.uint8)
        two.read_buffer(target, found, stream=second)
        await two.wait_stream(second)
        assert (found == round_).all()
        one.destroy(first)
        two.destroy(second)


@pytest.mark.parametrize("seed", range(12))
async def test_random_programs_over_both(session: MultiSession, seed: int) -> None:
    """They leave what their steps in order would."""
    program = Program(seed, 60, kernels(), devices=NAMES)
    expected = program.expected()
    await start(session, program, None)
    for name, array in expected.items():
        np.testing.assert_array_equal(program.hosts[name], array, name)
    assert LENGTH == 5


@pytest.mark.parametrize("anyio_backend", [("trio", {})], ids=["trio"])
async def test_a_random_program_on_the_other_loop(session: MultiSession) -> None:
    program = Program(99, 60, kernels(), devices=NAMES)
    expected = program.expected()
    await start(session, program, None)
    for name, array in expected.items():
        np.testing.assert_array_equal(program.hosts[name], array, name)


@pytest.mark.parametrize("has_loops", [False, True], ids=["flat", "loops"])
@pytest.mark.parametrize("seed", range(6))
async def test_random_programs_in_parts(
    session: MultiSession, seed: int, has_loops: bool
) -> None:
    """Lowered to graphs of each GPU, they leave what their steps in order would."""
    program = Program(
        seed,
        30,
        kernels(),
        has_hosts=False,
        has_loops=has_loops,
        has_while=False,
        devices=NAMES,
    )
    expected = program.expected()
    bindings: dict[str, Any] = dict(program.hosts)
    for slot in program.plan.slots:
        if isinstance(slot, BufferSlot) and not slot.is_scratch:
            bindings[slot.name] = session.allocate(
                slot.shape, DType.U32, device=slot.device
            )
    if program.has_external:
        event = session.on(0).backend.create_event()
        session.on(0).backend.record_event(event)
        bindings["start"] = event
    options = LaunchOptions(runtime_scalars=tuple(program.scalars))
    made = await session.prepare(program.plan, bindings, options)
    if not has_loops:  # which may come to what cannot be lowered
        assert made.is_lowered == (not program.has_external)
    await made.run()
    for name, array in expected.items():
        np.testing.assert_array_equal(program.hosts[name], array, name)


async def test_runs_that_are_submitted_follow_each_other(
    session: MultiSession,
) -> None:
    """Each adds on one GPU what the run before left on the other, and takes it back.

    In a loop that carries a pair of buffers, so that each turn reads what the one
    before has written; none is awaited but the last.
    """
    b = LaunchGraphBuilder()
    count = 1 << 20
    x = b.buffer("x", DType.U32, count, device="cuda:0")
    y, z = (b.scratch(name, DType.U32, count, device="cuda:1") for name in "yz")
    scalars = [ScalarArgument.u32(count)]
    b.fill(y, 1)
    with b.loop(count=3, carries=[(y, z)]):
        b.copy(x, z)
        b.kernel(kernels().add, [z.read_write, z.read_write, y.read], scalars)
        b.copy(z, x)
    plan = b.build()
    array = await session.upload(np.zeros(count, np.uint32), device="cuda:0")
    made = await session.prepare(plan, {"x": array}, LaunchOptions(lowering="always"))
    assert isinstance(made, SpanningPlan)
    expected = 0
    for _ in range(8):
        mark = made.submit()
        before = 1
        for _ in range(3):
            expected = before = expected + before
    await mark.wait()
    assert (await session.download(array) == expected).all()


async def test_arrays_are_written_when_a_run_in_parts_is_done(
    session: MultiSession,
) -> None:
    """Also those that the other GPU's copy comes after, which the host is slower at."""
    count = 16 << 20
    b = LaunchGraphBuilder()
    x = b.scratch("x", DType.U32, count, device="cuda:0")
    y = b.scratch("y", DType.U32, count, device="cuda:1")
    out = b.host("out", DType.U32, count)
    value = b.runtime_scalar()
    b.kernel(kernels().fill, [x.write], [ScalarArgument.u32(count), value])
    b.fill(y, 0)
    b.copy_out(x, out)
    b.copy(y, x)
    found = np.zeros(count, np.uint32)
    options = LaunchOptions(lowering="always", runtime_scalars=(ScalarArgument.u32(0),))
    made = await session.prepare(b.build(), {"out": found}, options)
    for number in (1, 2, 3):
        await made.rebind(runtime_scalars=[ScalarArgument.u32(number)])
        await made.run()
        assert (found == number).all()


def doubled(x: Any) -> Any:
    return x + x


async def test_fragments_are_called_where_their_arguments_are(
    session: MultiSession,
) -> None:
    """Compiled and loaded on each GPU at its first call; arrays on two are refused."""
    values = np.arange(1000, dtype=np.float32)
    async with await session.load_fragment(doubled) as fragment:
        arrays = [await session.upload(values, device=name) for name in NAMES]
        for name, array in zip(NAMES, arrays, strict=True):
            result = await fragment(array)
            assert result.is_of(session.on(name).backend)
            np.testing.assert_array_equal(await session.download(result), 2 * values)
        assert sorted(fragment.loaded) == NAMES
        np.testing.assert_array_equal(await fragment(values), 2 * values)
    async with await session.load_fragment(lambda x, y: x + y) as both:
        with pytest.raises(LaunchArgumentMismatch, match=r"cuda:0.*cuda:1"):
            await both(*arrays)


async def test_a_fleet_shares_a_list_between_both() -> None:
    """Each candidate is measured once for each kind of GPU; nothing is left."""
    entry = kernels().add
    scalars = (ScalarArgument.u32(1000),)
    work = FleetWork(
        candidates=tuple(
            FleetCandidate(
                name=name,
                artifact=KernelArtifact.from_request(entry.artifact_request(None)),
                geometry=entry.launch.geometry(scalars),
                scalars=scalars,
            )
            for name in ("a", "b", "c", "d")
        ),
        buffers=(
            FleetBuffer.zeros(DType.U32, 1000),
            FleetBuffer.random(DType.U32, 1000, seed=1),
            FleetBuffer.random(DType.U32, 1000, seed=2),
        ),
    )
    async with open_fleet(NAMES) as fleet:
        outcome = await fleet.measure(work)
    for kind in outcome.kinds:
        assert [one.name for one in kind.measurements] == ["a", "b", "c", "d"]
        assert {str(one.status) for one in kind.measurements} == {"measured"}
        assert kind.winner is not None


async def test_kernels_are_loaded_where_they_run(session: MultiSession) -> None:
    """One plan on either GPU loads and computes there; lowered on its second run."""
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", DType.U32, 1000), b.buffer("y", DType.U32, 1000)
    b.kernel(kernels().add, [y.write, x.read, x.read], [ScalarArgument.u32(1000)])
    plan = b.build()
    for name in NAMES:
        given = {
            "x": await session.upload(np.arange(1000, dtype=np.uint32), device=name),
            "y": session.allocate(1000, DType.U32, device=name),
        }
        for _ in range(3):
            statistics = await session.run(plan, given)
        assert statistics.is_lowered
        found = await session.download(given["y"])
        np.testing.assert_array_equal(found, 2 * np.arange(1000, dtype=np.uint32))


async def test_what_is_of_the_other_gpu_is_refused(session: MultiSession) -> None:
    """A kernel, an event, a stream and a buffer, each with both names."""
    one, two = (session.on(name).backend for name in NAMES)
    entry = kernels().fill
    artifact = two.create_artifact(entry.artifact_request(None))
    loaded = two.load_artifact(artifact)
    with pytest.raises(InvalidArtifact, match=r"cuda:1.*cuda:0"):
        one.destroy(loaded)
    theirs = LaunchRequest(
        artifact=artifact,
        loaded=loaded,
        geometry=entry.launch.geometry((ScalarArgument.u32(8),)),
        buffers=(BufferBinding(handle=two.allocate_buffer(32), access="write_only"),),
        scalars=(ScalarArgument.u32(8), ScalarArgument.u32(7)),
    )
    with pytest.raises(InvalidArtifact, match=r"cuda:1.*cuda:0"):
        one.launch(theirs)
    with pytest.raises(InvalidArtifact, match=r"cuda:1.*cuda:0"):
        one.submit_launch(two.prepare_launch(theirs))
    mine = attrs.evolve(theirs, loaded=one.load_artifact(artifact))
    with pytest.raises(InvalidBuffer, match=r"cuda:1.*cuda:0"):
        one.launch(mine)
    events = [each.create_event(timing=True) for each in (one, two)]
    for each, event in zip((one, two), events, strict=True):
        each.record_event(event)
    with pytest.raises(InvalidEvent, match=r"cuda:1.*cuda:0"):
        one.elapsed_ns(*events)
    with pytest.raises(InvalidEvent, match=r"cuda:1.*cuda:0"):
        one.stream_wait_event(None, events[1])
    with pytest.raises(InvalidStream, match=r"cuda:1.*cuda:0"):
        one.record_event(events[0], two.create_stream())
    arrays = [session.allocate(8, DType.U32, device=name) for name in NAMES]
    b = LaunchGraphBuilder()
    x, y = b.buffer("x", DType.U32, 8), b.buffer("y", DType.U32, 8)
    b.kernel(kernels().copy, [x.write, y.read], [ScalarArgument.u32(8)])
    with pytest.raises(LaunchArgumentMismatch, match=r"cuda:0.*cuda:1"):
        session.start(b.build(), dict(zip("xy", arrays, strict=True)))
    with pytest.raises(LaunchArgumentMismatch, match="a stream is of one device"):
        program = Program(1, 30, kernels(), devices=NAMES)
        session.start(
            program.plan,
            {
                **program.hosts,
                **{
                    f"b{i}": session.allocate(LENGTH, DType.U32, device=i % 2)
                    for i in range(0, 6, 2)
                },
            },
            LaunchOptions(
                stream=one.create_stream(), runtime_scalars=tuple(program.scalars)
            ),
        )


PTX = """
    .version 7.0
    .target sm_70
    .address_size 64
    .visible .entry fault() {
        .reg .b64 %r;
        mov.b64 %r, 16;
        st.global.u32 [%r], 1;
        ret;
    }"""

BARE = """
    from cuda.bindings import driver

    def call(name, *arguments):
        code, *outputs = getattr(driver, name)(*arguments)
        print(name, int(code))
        return outputs[0] if outputs else None

    call("cuInit", 0)
    contexts = []
    for number in (0, 1):
        device = call("cuDeviceGet", number)
        contexts.append(call("cuDevicePrimaryCtxRetain", device))
    call("cuCtxSetCurrent", contexts[1])
    module = call("cuModuleLoadData", PTX.encode() + bytes(1))
    function = call("cuModuleGetFunction", module, b"fault")
    call("cuLaunchKernel", function, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0)
    print("fault", int(driver.cuCtxSynchronize()[0]))
    # Whatever is called first may return what broke the context that is current.
    driver.cuCtxSetCurrent(0)
    print("now the other")
    call("cuCtxSetCurrent", contexts[0])
    memory = call("cuMemAlloc", 64)
    if memory is not None:
        call("cuMemsetD8", memory, 1, 64)
    call("cuCtxSynchronize")
"""

FAULT = """
    import anyio, numpy as np
    from accy_async import open_session
    from accy_async.errors import DeviceLost
    from accy_async.backends import LaunchRequest
    from accy_async.artifact import ArtifactRequest, FixedLaunch

    async def main():
        async with open_session(devices=["cuda:0", "cuda:1"]) as session:
            bad = session.on("cuda:1").backend
            artifact = bad.create_artifact(
                ArtifactRequest(kernel_name="fault", payload=PTX,
                                requested_format="cuda_ptx", argument_count=0))
            loaded = bad.load_artifact(artifact)
            bad.launch(LaunchRequest(artifact=artifact, loaded=loaded,
                geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1))))
            try:
                await bad.wait_default_stream()
            except DeviceLost as error:
                print("who waited was told:", error)
            try:
                x = await session.upload(np.arange(9.0, dtype=np.float32), device=0)
                print("the other's sum:", (await session.download(x)).sum())
            except DeviceLost as error:
                print("the other's user was told:", error)
            health = session.health()
            print("healthy:", [one.is_healthy for one in health.values()])

    try:
        anyio.run(main)
    except DeviceLost as error:
        print("who left was told:", error)
    print("left")
"""


def test_a_fault_on_one_gpu_leaves_the_other_alone() -> None:
    """As far as the driver does, which is asked in the same way without us.

    Some drivers end all of a process's contexts with one. Then each is told to be lost
    by its name, and the session is left as ever. Each script is a process of its own.
    """
    bare, ours = (
        subprocess.run(
            [sys.executable, "-c", f"PTX = {PTX!r}\n{textwrap.dedent(script)}"],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        for script in (BARE, FAULT)
    )
    report = f"{bare.stdout}{bare.stderr}\n{ours.stdout}{ours.stderr}"
    before, _, after = bare.stdout.partition("now the other\n")
    assert not before.endswith("fault 0\n"), report
    answers = after.splitlines()
    assert answers, report
    assert "who waited was told: cuda:1 is lost:" in ours.stdout, report
    if all(answer.endswith(" 0") for answer in answers):
        assert "the other's sum: 36.0" in ours.stdout, report
        assert "healthy: [True, False]" in ours.stdout, report
        assert "who left" not in ours.stdout, report
    else:
        assert "the other's user was told: cuda:0 is lost:" in ours.stdout, report
        assert "healthy: [False, False]" in ours.stdout, report
        assert "who left was told: cuda:1" not in ours.stdout, report
    assert ours.stdout.endswith("left\n"), report
    assert ours.returncode == 0, report
