"""Errors that take the context with them: named, told once, and cleanly left.

Each runs in a process of its own, since no context comes back in one.
"""

from __future__ import annotations

import json

import pytest

from tests.gpu.harness import run_script

pytestmark = pytest.mark.gpu

_SCRIPT = """
import json

import anyio
import numpy as np

from accy_async.backends.cuda import CudaBackend
from accy_async.compiler.emit import compile_ptx
from accy_async.compiler.form import KernelBuilder
from accy_async.artifact import FixedLaunch, KernelCallArtifact
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import AccyError, DeviceError, DeviceLost
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session
from tests.gpu import native

def guard():
    k = KernelBuilder("guard", threadgroup=(64, 1, 1))
    a = k.buffer("a", DType.U32, "read_write")
    with k.region():
        value = a[k.thread]
        k.require(value < 10, 41)
        a[k.thread] = value + 1
    kernel = k.build()
    return KernelCallArtifact(
        target="test.guard", version=1, format="cuda_ptx", entry_name="guard",
        argument_count=1, payload=compile_ptx([kernel]),
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=kernel.threadgroup),
    )

def plan(kind):
    g = LaunchGraphBuilder()
    a = g.buffer("a", DType.U32, 64)
    if kind == "assert":
        g.kernel(guard(), [a.read_write], name="culprit")
    elif kind == "askew":
        g.kernel(native.entry("askew"), [a.read_write], name="culprit")
    elif kind == "trap":
        g.kernel(native.entry("trap"), [], name="culprit")
    else:
        g.kernel(native.entry("stray"), [], [ScalarArgument.u64(16)], name="culprit")
    g.kernel(native.entry("mix"), [a.read_write], [ScalarArgument.u32(1)], name="next")
    g.copy_out(a, g.host("out", DType.U32, 64))
    return g.build()

def flat(error):
    if isinstance(error, BaseExceptionGroup):
        return [leaf for each in error.exceptions for leaf in flat(each)]
    return [error]

async def main():
    told = {}
    backend = CudaBackend()
    async with open_session(backend) as session:
        values = np.arange(64, dtype=np.uint32) % 10
        array = await session.upload(values)
        out = np.zeros_like(values)
        if KIND == "assert":  # the kernel is right where the condition holds
            await session.run(plan(KIND), {"a": array, "out": out})
            told["first"] = [int(v) for v in out[:10]]
            await session.write(array, values + 1)
        try:
            with anyio.fail_after(20):
                await session.run(plan(KIND), {"a": array, "out": out})
        except BaseException as error:
            errors = flat(error)
            told["errors"] = [type(e).__name__ for e in errors]
            told["codes"] = [e.code for e in errors if isinstance(e, DeviceError)]
            told["texts"] = [str(e) for e in errors]
            told["nodes"] = [
                [s.node for s in e.suspects] or [e.node]
                for e in errors if isinstance(e, DeviceError)
            ]
        later = []
        for call in (
            lambda: session.allocate(4, DType.U32),
            backend.create_stream,
            backend.create_event,
        ):
            try:
                call()
            except AccyError as error:
                later.append(type(error).__name__)
            else:
                later.append("nothing")
        try:
            await session.download(array)
        except AccyError as error:
            later.append(type(error).__name__)
        told["later"] = later
        told["is_healthy"] = session.is_healthy
    told["left"] = session.live_objects()
    backend.close()
    print("TOLD" + json.dumps(told))

anyio.run(main, backend=LOOP)
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("assert", {710}),
        ("stray", {700}),
        ("askew", {716}),
        ("trap", {715, 719}),  # which it is depends on the device
    ],
)
def test_lost_context_is_named_refused_and_left_cleanly(
    loop: str, kind: str, codes: set[int]
) -> None:
    output = run_script(f"KIND, LOOP = {kind!r}, {loop!r}\n{_SCRIPT}")
    told = json.loads(output.partition("TOLD")[2])
    if kind == "assert":
        # 0 becomes 1, and then `mix` has the first: 1 * 31 + 1.
        assert told["first"] == [32, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert codes.intersection(told["codes"]), told
    assert all("culprit" in nodes for nodes in told["nodes"]), told
    assert len(told["errors"]) == 1, told
    assert told["later"] == ["DeviceLost"] * 4, told
    assert not told["is_healthy"]
    assert not any(told["left"].values()), told


_BLAME = """
import json
import time

import anyio
import numpy as np

from accy_async.artifact import FixedLaunch
from accy_async.backends import BufferBinding, LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.dtypes import ScalarArgument
from accy_async.errors import AccyError, DeviceError
from accy_async.session import open_session
from tests.gpu import native

told = {"found": []}

async def main():
    backend = CudaBackend(debug=DEBUG)
    loaded = {n: backend.load_artifact(native.artifact(n)) for n in ("mix", "stray")}
    one, two = backend.create_stream(), backend.create_stream()
    buffer = backend.allocate_buffer(4)

    def launch(node, name, stream, scalar, buffers=()):
        backend.launch(LaunchRequest(
            artifact=native.artifact(name), loaded=loaded[name],
            buffers=tuple(BufferBinding(handle=b) for b in buffers),
            scalars=(scalar,), stream=stream, diagnostic_id=node,
            geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        ))

    def mix(node, stream):
        launch(node, "mix", stream, ScalarArgument.u32(1), [buffer])

    def note(error):
        told["found"].append({
            "call": error.call, "node": error.node, "text": str(error),
            "suspects": [s.node for s in error.suspects],
            "is_consequence": error.is_consequence, "code": error.code,
        })

    async with open_session(backend) as session:
        mix("before", one)
        await backend.wait_stream(one)
        mix("D", two)
        await backend.wait_stream(two)
        try:
            launch("A", "stray", one, ScalarArgument.u64(16))
            mix("B", one)
            backend.read_buffer(buffer, np.zeros(1, np.uint32), stream=one)
            with anyio.fail_after(20):
                await backend.wait_stream(one)
        except DeviceError as error:
            note(error)
        for call in (lambda: mix("E", two), backend.create_event):
            try:
                call()
            except DeviceError as error:
                note(error)
        told["is_healthy"] = session.is_healthy
    told["left"] = session.live_objects()
    backend.close()

anyio.run(main, backend=LOOP)
print("TOLD" + json.dumps(told))
"""


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("debug", [False, True])
def test_c14_the_error_is_the_launchs_that_caused_it(loop: str, debug: bool) -> None:
    output = run_script(f"DEBUG, LOOP = {debug!r}, {loop!r}\n{_BLAME}")
    told = json.loads(output.partition("TOLD")[2])
    first, *later = told["found"]
    assert first["code"] == 700
    if debug:
        assert (first["node"], first["suspects"]) == ("A", [])
        assert not first["is_consequence"]
    else:
        assert first["suspects"] in (["A"], ["A", "B"]), told
        assert "A" in first["text"]
    assert len(later) == 2
    for one in later:
        assert one["is_consequence"]
        assert (one["node"], one["suspects"]) == (first["node"], first["suspects"])
    assert not told["is_healthy"]
    assert not any(told["left"].values()), told


_TUNING = """
import json

import anyio

from accy_async.artifact import FixedLaunch
from accy_async.backends import LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.dtypes import ScalarArgument
from accy_async.errors import TuningStopped
from accy_async.tuning import MeasureOptions, RaceRules, open_measurement
from accy_async.tuning.measuring import Candidate
from tests.gpu import native

async def main():
    backend = CudaBackend()

    def candidate(name, kernel, scalar):
        artifact = native.artifact(kernel)
        return Candidate(name=name, request=LaunchRequest(
            artifact=artifact, loaded=backend.load_artifact(artifact),
            buffers=(), scalars=(ScalarArgument.u64(scalar),),
            geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        ))

    given = [
        candidate("good", "spin", 1000),
        candidate("stray", "stray", 16),
        candidate("other", "spin", 1000),
    ]
    options = MeasureOptions(
        rules=RaceRules(min_rounds=4, max_rounds=5, repeats=0), least_sample_ns=1.0
    )
    told = {}
    try:
        async with open_measurement(backend, given, options) as measuring:
            try:
                async for _ in measuring:
                    pass
            finally:
                outcome = measuring.outcome()
    except TuningStopped as error:
        told.update(
            text=str(error), candidate=error.candidate, not_tried=error.not_tried
        )
    told["other"] = str(outcome.candidate("other").status)
    told["is_storable"] = outcome.is_storable
    told["is_healthy"] = backend.is_healthy
    backend.close()
    told["left"] = backend.live_objects()
    print("TOLD" + json.dumps(told))

anyio.run(main)
"""


def test_c13_a_candidate_that_takes_the_context_stops_tuning_and_is_named() -> None:
    """The others are not blamed, and nothing is to be kept."""
    told = json.loads(run_script(_TUNING).partition("TOLD")[2])
    assert told["candidate"] == "stray", told
    assert "stray" in told["text"]
    assert told["not_tried"] == ["other"], told
    assert told["other"] == "not tried"
    assert not told["is_storable"]
    assert not told["is_healthy"]
    assert not any(told["left"].values()), told
