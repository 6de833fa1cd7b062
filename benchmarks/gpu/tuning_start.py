"""A kernel whose default is poor, within a stated budget; and who knows it afterwards.

Three processes, one after the other, with one store on disk: the first tunes the kernel
of `benchmarks.tuning_beside`, which has far too many blocks by default, in 2 s at most,
and again where the machine did not hold still; the second is the next start on the same
device; the third another device, the CPU.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import numpy as np

import accy_async
from accy_async.artifact.store import ArtifactStore
from accy_async.tuning import MeasureOptions, RaceRules, TuningBudget, TuningStore
from benchmarks.tuning_beside import load, size_of

if TYPE_CHECKING:
    from accy_async import Session
    from accy_async.fragment import LoadedFragment

__all__ = ["main"]

BUDGET_S = 2.0
OPTIONS = MeasureOptions(rules=RaceRules(max_rounds=100))
TARGET = 1.3
CALLS = 200


async def start(device: str, folder: str, tunes: str) -> None:
    """Be one of the processes; prints what it found as JSON."""
    store = TuningStore(ArtifactStore(Path(folder))) if folder else None
    async with accy_async.open_session(device) as session:
        array = np.linspace(0, 1, size_of(session)[0], dtype=np.float32)
        fragment = await load(session, tuning=store)
        found: dict[str, object] = {
            "records": fragment.tuning_record_count,
            "candidate": fragment.graph.nodes[0].tuning_candidate or 0,
            "call_us": await _call_us(session, fragment, array),
        }
        if tunes:
            begun = time.perf_counter()
            spent_s = 0.0
            while "why_not" not in found or found["why_not"]:  # as a rule once
                budget = TuningBudget(total_s=BUDGET_S - spent_s)
                async with session.tuning(
                    fragment,
                    budget=budget,
                    exclusive=True,
                    store=store,
                    inputs=[array],
                    options=OPTIONS,
                ) as tuner:
                    with anyio.move_on_after(BUDGET_S):
                        await tuner.wait()
                spent_s += tuner.pace.spent_s
                for one in tuner.results:
                    found["speedup"], found["why_not"] = one.speedup, one.why_not
                if time.perf_counter() - begun > BUDGET_S or spent_s >= BUDGET_S:
                    break
            found["took_s"] = time.perf_counter() - begun
            found["spent_s"] = spent_s
            found["candidate"] = fragment.graph.nodes[0].tuning_candidate or 0
            found["later_us"] = await _call_us(session, fragment, array)
    print(json.dumps(found))


async def _call_us(
    session: Session, fragment: LoadedFragment, array: np.ndarray
) -> float:
    """Microseconds of a call on what is on the device, the median of some."""
    given = await session.upload(array)
    taken = []
    for _ in range(CALLS):
        begun = time.perf_counter()
        await fragment(given)
        taken.append((time.perf_counter() - begun) * 1e6)
    return statistics.median(taken)


def main(device: str = "cuda", other: str = "cpu") -> None:
    with tempfile.TemporaryDirectory() as folder:
        starts = {
            "tunes, in 2 s at most": (device, folder, "tune"),
            "the next start": (device, folder, ""),
            f"a start on {other}": (other, folder, ""),
        }
        print(f"{'process':28} {'records':>7} {'candidate':>9} {'us a call':>9}")
        for name, arguments in starts.items():
            print(f"{name:28} {_started(*arguments)}", flush=True)
    print()


def _started(*arguments: str) -> str:
    command = [sys.executable, "-m", "benchmarks.gpu.tuning_start", *arguments]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        return f"ended with {ran.returncode}: {ran.stderr.strip()[-400:]}"
    found = json.loads(ran.stdout)
    text = f"{found['records']:7} {found['candidate']:9} {found['call_us']:9.1f}"
    if "took_s" not in found:
        return text
    if "speedup" not in found:
        return f"{text}  nothing found in {found['took_s']:.2f} s"
    verdict = "met" if found["speedup"] >= TARGET else "MISSED"
    return (
        f"{text}, then {found['later_us']:.1f}: the kernel {found['speedup']:.2f} x "
        f"(target {TARGET:g}, {verdict}), in {found['took_s']:.2f} s, "
        f"{found['spent_s']:.3f} s of the device; {found['why_not'] or 'kept'}"
    )


if __name__ == "__main__":
    if len(sys.argv) > 1:
        device, folder, tunes = sys.argv[1:]
        accy_async.run(start, device, folder, tunes)
    else:
        main()
