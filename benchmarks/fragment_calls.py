"""Fragments as a whole beside numpy and Numba, or PyTorch and CuPy, on one device.

``python -m benchmarks fragment_calls`` measures on the processor, where numpy's BLAS
has the same cores; ``python -m benchmarks.gpu fragments`` on a GPU. Sections:
elementwise chains, reductions, softmax and norms of rows, scans, products of matrices;
the time from source to a loaded kernel; and a call with a handful of elements, until
its result is known to be there.

On the processor a figure is a call with numpy arrays, the result's memory included, as
it is numpy's. On a GPU it is the device's own time between two events, of launches with
buffers that stay, as it is the peers'.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

import accy_async
from accy_async import Session, open_session
from accy_async.backends.base import Backend
from accy_async.compiler import tensor, trace_program
from accy_async.compiler.preparation import FragmentCompilerOptions
from accy_async.dtypes import DType
from accy_async.errors import AccyError
from accy_async.fragment import LoadedFragment
from accy_async.graph import LaunchOptions
from benchmarks.fragment_cases import CASES, Case
from benchmarks.fragment_peers import (
    Peer,
    Sample,
    compile_peers,
    peers_of,
    tiny_peers,
)
from benchmarks.gpu.tables import Row, Target, show
from benchmarks.measuring import machine

__all__ = ["SECTIONS", "main"]

ROUNDS = 9
SPAN_S = 60.0
"""A table is cut short after that many rounds' time, and says so."""

_NARROW = (DType.F16, DType.BF16)
TINY = 8
CALLS = 200

OURS, FAST, COPY = "ours, exact", "ours, fast", "the device's copy"


# ------------------------------------------------------------ whole programs


async def _ours(
    session: Session, case: Case, tier: str, *, uses_events: bool
) -> Sample:
    """Milliseconds of one invocation."""
    program = trace_program(case.make(tensor), *case.types)
    options = FragmentCompilerOptions(
        math_tier=tier,
        # Tensor cores are used from CUDA C++.
        artifact_format="cuda_cubin" if case.dtype in _NARROW else None,
    )
    fragment = await session.load_fragment(program, options=options)
    arrays = case.arguments()
    if not uses_events:

        async def call() -> float:
            started = time.perf_counter()
            await fragment(*arrays)
            return (time.perf_counter() - started) * 1e3

        return call
    return await _on_the_device(session, fragment, arrays)


async def _on_the_device(
    session: Session, fragment: LoadedFragment, arrays: list[Any]
) -> Sample:
    backend = session.backend
    bindings = await fragment.prepare_invocation_bindings(arrays)
    stream = backend.create_stream()
    options = LaunchOptions(stream=stream)
    return _between_events(
        backend, stream, lambda: fragment.submit_invocation(bindings, options)
    )


def _between_events(
    backend: Backend,
    stream: Any,  # noqa: ANN401
    submit: Callable[[], object],
) -> Sample:
    start, end = (backend.create_event(timing=True) for _ in range(2))

    async def sample() -> float:
        backend.record_event(start, stream)
        submit()
        backend.record_event(end, stream)
        await backend.wait_event(end)
        return backend.elapsed_ns(start, end) / 1e6

    return sample


def _copy(session: Session, case: Case) -> Sample:
    """The device's copy of the first argument."""
    backend, stream = session.backend, session.backend.create_stream()
    source, target = (session.allocate(case.shapes[0], case.dtype) for _ in range(2))
    arrays = source, target  # freed with the last reference
    return _between_events(
        backend,
        stream,
        lambda: backend.copy_buffer(arrays[0].handle, arrays[1].handle, stream=stream),
    )


async def _measure(
    session: Session, case: Case, peers: list[Peer], *, uses_events: bool
) -> None:
    samples: dict[str, Sample] = {}
    missing: dict[str, str] = {}
    if uses_events and not case.is_product:
        samples[COPY] = _copy(session, case)
    for name, tier in ((OURS, "exact"), (FAST, "fast")):
        try:
            samples[name] = await _ours(session, case, tier, uses_events=uses_events)
        except AccyError as error:
            missing[name] = f"{type(error).__name__}: {error}"[:70]
    for peer in peers:
        try:
            samples |= peer.samples(case)
        except Exception as error:  # noqa: BLE001 - a peer's trouble is a row's note
            missing[peer.name] = f"{type(error).__name__}: {error}"[:70]
    taken, rounds = await _in_rounds(samples)
    scale = case.work / 1e6  # of milliseconds: GB/s, or GFLOP/s
    copied = 2 * case.work / case.moved / 1e6
    rows = []
    for name, times in taken.items():
        rate = copied if name == COPY else scale
        rows.append(Row(name, [rate / t for t in times], "", _targets(case, name)))
    rows += [Row(name, (), why) for name, why in missing.items()]
    show(
        f"{case.name} ({rounds} rounds)",
        rows,
        unit="GFLOP/s" if case.is_product else "GB/s",
        ratio_to=next((n for n in (COPY, "PyTorch", "numpy") if n in taken), None),
        more_is_better=True,
    )


def _targets(case: Case, name: str) -> tuple[Target, ...]:
    """What a row of ours is held against."""
    if name not in (OURS, FAST):
        return ()
    if case.is_product:
        return (Target("numpy", 0.5), Target("PyTorch", 0.5))
    if case.target:
        return (Target(COPY, case.target), Target("numpy", 1.0))
    return (Target("PyTorch", 1.0), Target("numpy", 1.0))


async def _in_rounds(samples: dict[str, Sample]) -> tuple[dict[str, list[float]], int]:
    """What each takes, in rounds, each of another order, and the number of rounds.

    So none always comes behind the same one, and finds in the caches what that left.
    """
    taken: dict[str, list[float]] = {name: [] for name in samples}
    order, draw = list(samples), random.Random(ROUNDS)
    begun, number = time.perf_counter(), 0
    for number in range(ROUNDS + 2):
        draw.shuffle(order)
        for name in order:
            took = await samples[name]()
            if number > 1:
                taken[name].append(took)
        if number > 3 and time.perf_counter() - begun > SPAN_S:
            break
    return taken, number - 1


# ------------------------------------------------------------ from source


async def _from_source(session: Session, without: Sequence[str]) -> None:
    """From a function to a kernel that can be launched, in milliseconds."""
    rows = []
    x = np.ones(4096, np.float32)

    async def ours(number: int, *, cache: bool) -> float:
        def function(x: Any) -> Any:  # noqa: ANN401
            return np.sqrt(np.abs(x * np.float32(number))) + 1

        started = time.perf_counter()
        fragment = await session.load_fragment(function, x, cache=cache)
        took = (time.perf_counter() - started) * 1e3
        await fragment.aclose()
        return took

    for _ in range(2):
        await ours(1, cache=False)  # loads the compiler
    await ours(2, cache=True)
    cold = [await ours(3 + i, cache=False) for i in range(ROUNDS)]
    kept = [await ours(2, cache=True) for _ in range(ROUNDS)]
    rows.append(Row("ours, compiled", cold))
    rows.append(Row("ours, code found on disk", kept))
    for peer in compile_peers(str(session.backend.kind)):
        if _is_without(peer.name, without):
            continue
        try:
            rows.append(Row(peer.name, [peer.took(i) for i in range(1, 6)], peer.note))
        except Exception as error:  # noqa: BLE001 - a peer's trouble is a row's note
            rows.append(Row(peer.name, (), f"{type(error).__name__}: {error}"[:70]))
    show("From source to a loaded kernel", rows, unit="ms", ratio_to="ours, compiled")


# ------------------------------------------------------------ tiny calls


async def _tiny(session: Session, without: Sequence[str]) -> None:
    """A call of ``x * 2 + 1`` until its result is known to be there, one by one."""
    fragment = await session.load_fragment(
        trace_program(lambda x: x * 2 + 1, f"f32[{TINY}]")
    )
    host = np.ones(TINY, np.float32)
    device = await session.upload(host)
    bindings = await fragment.prepare_invocation_bindings([host])

    async def stepped() -> None:
        fragment.submit_invocation(bindings)
        await fragment.complete_invocation()

    calls: dict[str, Callable[[], Awaitable[object]]] = {
        "ours: await fragment(x), x on the device": lambda: fragment(device),
        "ours: await fragment(x), x in numpy": lambda: fragment(host),
        "ours: submit_invocation, complete_invocation": stepped,
    }
    samples = {name: _per_call(call) for name, call in calls.items()}
    missing = {}
    for peer in tiny_peers(str(session.backend.kind), TINY, CALLS):
        if _is_without(peer.name, without):
            continue
        try:
            samples[peer.name] = peer.sample()
        except Exception as error:  # noqa: BLE001 - a peer's trouble is a row's note
            missing[peer.name] = f"{type(error).__name__}: {error}"[:70]
    taken, _ = await _in_rounds(samples)
    rows = [Row(name, times) for name, times in taken.items()]
    rows += [Row(name, (), why) for name, why in missing.items()]
    title = f"x * 2 + 1 of {TINY} f32, until the result is known to be there"
    first = next(iter(calls))
    show(title, rows, unit="us", ratio_to=first)
    submissions = [_submitted(fragment, bindings) for _ in range(ROUNDS)]
    await fragment.complete_invocation()
    median = statistics.median(submissions)
    print(f"submit_invocation alone, in bursts: {median:.2f} us of the host\n")


def _per_call(call: Callable[[], Awaitable[object]]) -> Sample:
    async def sample() -> float:
        started = time.perf_counter()
        for _ in range(CALLS):
            await call()
        return (time.perf_counter() - started) / CALLS * 1e6

    return sample


def _submitted(fragment: LoadedFragment, bindings: Any) -> float:  # noqa: ANN401
    started = time.perf_counter()
    for _ in range(CALLS):
        fragment.submit_invocation(bindings)
    return (time.perf_counter() - started) / CALLS * 1e6


# ------------------------------------------------------------ the sections


SECTIONS = (*CASES["cpu"], "compile", "tiny")


def _is_without(name: str, without: Sequence[str]) -> bool:
    return any(name.startswith(begin) for begin in without)


async def _section(
    device: str, name: str, *, is_dry: bool, without: Sequence[str]
) -> None:
    async with open_session(device) as session:
        kind = str(session.backend.kind)
        if name == "compile":
            await _from_source(session, without)
        elif name == "tiny":
            await _tiny(session, without)
        else:
            peers = [p for p in peers_of(kind) if not _is_without(p.name, without)]
            for case in CASES["cpu" if kind == "cpu" else "cuda"][name]:
                timed_there = is_dry or kind != "cpu"
                await _measure(session, case, peers, uses_events=timed_there)


def main(arguments: list[str] | None = None) -> None:
    """Run the sections that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fragment_calls")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=str(SECTIONS))
    parser.add_argument("--device", default="cpu", help="cpu, cuda, ...")
    parser.add_argument(
        "--dry", action="store_true", help="the processor measured as a GPU is"
    )
    parser.add_argument(
        "--without",
        action="append",
        default=[],
        metavar="PEER",
        help="leave out the rows that begin so, as torch.compile, which starts slowly",
    )
    given = parser.parse_args([] if arguments is None else arguments)
    for name in given.sections or SECTIONS:
        if name not in SECTIONS:
            parser.error(f"no section {name!r}; there are {', '.join(SECTIONS)}")
    for name in given.sections or SECTIONS:
        accy_async.run(
            partial(
                _section,
                given.device,
                name,
                is_dry=given.dry,
                without=tuple(given.without),
            )
        )
    print(machine(), flush=True)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
