"""How long a task sleeps after another thread has said that its wait is over.

For each loop: `Completion`, which is what waits for streams are made of, beside
the loop's own ways in. A thread notes the time, gives the signal, and the task
notes when it runs.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable

import anyio
import anyio.to_thread
import trio

import accy_async
from accy_async.backends import Completion
from benchmarks.measuring import Figure, show

WAKES = 150
_PAUSE_S = 0.0005

Way = Callable[[], Awaitable[float]]


def _signal_later(signal: Callable[[], object], at: list[float]) -> threading.Thread:
    def give() -> None:
        time.sleep(_PAUSE_S)
        at.append(time.perf_counter())
        signal()

    thread = threading.Thread(target=give)
    thread.start()
    return thread


async def _by_completion() -> float:
    completion, at = Completion(), list[float]()
    thread = _signal_later(completion.set, at)
    await completion.wait()
    woken = time.perf_counter()
    thread.join()
    return (woken - at[0]) * 1e6


async def _by_call_soon_threadsafe() -> float:
    loop, at = asyncio.get_running_loop(), list[float]()
    future = loop.create_future()
    thread = _signal_later(
        lambda: loop.call_soon_threadsafe(future.set_result, None), at
    )
    await future
    woken = time.perf_counter()
    thread.join()
    return (woken - at[0]) * 1e6


async def _by_run_sync_soon() -> float:
    token, event, at = trio.lowlevel.current_trio_token(), trio.Event(), list[float]()
    thread = _signal_later(lambda: token.run_sync_soon(event.set), at)
    await event.wait()
    woken = time.perf_counter()
    thread.join()
    return (woken - at[0]) * 1e6


async def _by_to_thread() -> float:
    at = list[float]()

    def give() -> None:
        time.sleep(_PAUSE_S)
        at.append(time.perf_counter())

    await anyio.to_thread.run_sync(give)
    return (time.perf_counter() - at[0]) * 1e6


async def _measure(ways: dict[str, Way]) -> list[Figure]:
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(WAKES + 10):
        for name, way in ways.items():
            value = await way()
            if number >= 10:
                taken[name].append(value)
    return [Figure(name, tuple(samples)) for name, samples in taken.items()]


def main() -> None:
    for loop in ("asyncio", "uvloop", "trio"):
        if loop == "uvloop" and not _has_uvloop():
            continue
        own = _by_run_sync_soon if loop == "trio" else _by_call_soon_threadsafe
        name = "run_sync_soon" if loop == "trio" else "call_soon_threadsafe"
        ways: dict[str, Way] = {
            name: own,
            "Completion": _by_completion,
            "to_thread": _by_to_thread,
        }
        figures = accy_async.run(_measure, ways, loop=loop)
        show(f"Waking a task on {loop}", figures, unit="us", baseline=name)


def _has_uvloop() -> bool:
    try:
        import uvloop  # noqa: F401 - only whether it is there
    except ImportError:
        return False
    return True


if __name__ == "__main__":
    main()
