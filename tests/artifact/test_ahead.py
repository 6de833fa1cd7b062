"""Pieces of work done ahead by threads: all of it, its errors, and an early end."""

from __future__ import annotations

import threading

import pytest

from accy_async.artifact.ahead import ahead
from tests.threads import join_threads

NAMED = ("accy_async reads ahead",)


@pytest.mark.parametrize("slow_s", [-1.0, 60.0])
@pytest.mark.parametrize("threads", [1, 3, 50])
def test_every_piece_is_done_once(slow_s: float, threads: int) -> None:
    pieces = range(40)
    found = ahead(lambda piece: piece * piece, pieces, slow_s=slow_s, threads=threads)
    assert sorted(found) == [piece * piece for piece in pieces]
    assert list(ahead(abs, [], slow_s=slow_s, threads=threads)) == []
    join_threads(named=NAMED)


def test_threads_take_over_once_a_piece_is_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr("accy_async.artifact.ahead.time.perf_counter", lambda: now)

    def work(piece: int) -> str:
        nonlocal now
        now += 0.5 if piece < 3 else 2.0
        return threading.current_thread().name

    here = threading.current_thread().name
    assert list(ahead(work, range(9), slow_s=1.0, threads=2)) == [
        *[here] * 4,
        *["accy_async reads ahead"] * 5,
    ]
    join_threads(named=NAMED)


def test_threads_work_at_the_same_time() -> None:
    """Each waits for the other's piece."""
    both = threading.Barrier(2, timeout=30)
    pieces = [threading.Barrier(1), both, both]
    found = ahead(threading.Barrier.wait, pieces, slow_s=-1.0, threads=2)
    assert len(list(found)) == 3
    join_threads(named=NAMED)


@pytest.mark.parametrize("slow_s", [-1.0, 60.0])
def test_what_a_piece_raises_ends_the_work(slow_s: float) -> None:
    begun: list[int] = []

    def work(piece: int) -> int:
        begun.append(piece)
        if piece == 3:
            raise ZeroDivisionError
        return piece

    with pytest.raises(ZeroDivisionError):
        list(ahead(work, range(1000), slow_s=slow_s, threads=2))
    join_threads(named=NAMED)
    assert len(begun) < 1000


def test_whoever_leaves_early_leaves_no_thread() -> None:
    """Nor is more done ahead than there is room for."""
    begun: list[int] = []
    results = ahead(begun.append, range(1000), slow_s=-1.0, threads=3)
    next(results)
    next(results)
    results.close()  # type: ignore[attr-defined]
    join_threads(named=NAMED)
    assert len(begun) <= 2 + 6 + 3 + 3
