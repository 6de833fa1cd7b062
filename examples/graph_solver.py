"""PageRank of a real network: a loop that goes on while the device says so.

One round's ranks are the next one's by a carry: buffers change places, uncopied.
"""

from pathlib import Path

import anyio.to_thread
import numpy as np

import accy_async
from accy_async import DType, FixedLaunch, KernelCallArtifact
from accy_async.compiler.emit import compile_cpu
from accy_async.compiler.form import KernelBuilder, constant, maximum, select
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan

KARATE = Path(__file__).parent / "data" / "karate.csv"
DAMPING, TOLERANCE = 0.85, 1e-12


def load() -> tuple[np.ndarray, np.ndarray]:
    """Where each member's friends begin, and the friends."""
    pairs = np.loadtxt(KARATE, np.uint32, delimiter=",", skiprows=1) - 1
    both = np.concatenate([pairs, pairs[:, ::-1]])
    both = both[np.lexsort((both[:, 1], both[:, 0]))]
    degrees = np.bincount(both[:, 0])
    return np.append(0, degrees.cumsum()).astype(np.uint32), both[:, 1].copy()


def entry(k: KernelBuilder) -> KernelCallArtifact:
    kernel = k.build()
    return KernelCallArtifact(
        target=f"example.{kernel.name}",
        version=1,
        format="cpu_machine_code",
        entry_name=kernel.name,
        argument_count=len(kernel.buffers),
        payload=compile_cpu([kernel], format="cpu_machine_code"),
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=kernel.threadgroup),
    )


def spread(n: int) -> KernelCallArtifact:
    """``after[i] = (1 - d) / n + d * sum of rank[j] / degree[j]`` over i's friends."""
    k = KernelBuilder("spread", threadgroup=(n, 1, 1))
    after = k.buffer("after", DType.F64, "write_only")
    rank = k.buffer("rank", DType.F64, "read_only")
    begin, friends = (k.buffer(of, DType.U32, "read_only") for of in ("begin", "to"))
    with k.region():
        total = k.variable("total", constant(DType.F64, 0.0))
        with k.count("at", begin[k.thread], begin[k.thread + 1]) as at:
            j = friends[at]
            total.set(total.value + rank[j] / (begin[j + 1] - begin[j]).cast(DType.F64))
        after[k.thread] = (1 - DAMPING) / n + total.value * DAMPING
    return entry(k)


def judge(n: int) -> KernelCallArtifact:
    """Count the round, and say whether any rank changed by more than the tolerance."""
    k = KernelBuilder("judge", threadgroup=(1, 1, 1))
    goes_on = k.buffer("goes_on", DType.U32, "write_only")
    rounds = k.buffer("rounds", DType.U32, "read_write")
    rank, after = (k.buffer(of, DType.F64, "read_only") for of in ("rank", "after"))
    with k.region():
        most = k.variable("most", constant(DType.F64, 0.0))
        with k.count("i", constant(DType.U32, 0), constant(DType.U32, n)) as i:
            change = after[i] - rank[i]
            most.set(maximum(most.value, maximum(change, -change)))
        rounds[0] = rounds[0] + 1
        goes_on[0] = select(most.value > TOLERANCE, constant(DType.U32, 1), 0)
    return entry(k)


def page_rank(n: int, links: int) -> LaunchGraphPlan:
    g = LaunchGraphBuilder()
    begin = g.buffer("begin", DType.U32, n + 1)
    friends = g.buffer("friends", DType.U32, links)
    rank, after = (g.scratch(name, DType.F64, n) for name in ("rank", "after"))
    goes_on, rounds = (g.scratch(name, DType.U32, 1) for name in ("goes_on", "rounds"))
    for buffer, value in ((rank, 1 / n), (goes_on, 1), (rounds, 0)):
        g.fill(buffer, value)
    with g.loop(while_=goes_on, carries=[(rank, after)], max_iterations=1000):
        g.kernel(spread(n), [after.write, rank.read, begin.read, friends.read])
        g.kernel(judge(n), [goes_on.write, rounds.read_write, rank.read, after.read])
    g.copy_out(rank, g.host("ranks", DType.F64, n))
    g.copy_out(rounds, g.host("count", DType.U32, 1))
    return g.build()


def reference(begin: np.ndarray, friends: np.ndarray, count: int) -> np.ndarray:
    """As many rounds by numpy, on the whole matrix."""
    n, degrees = len(begin) - 1, np.diff(begin.astype(np.int64))
    matrix, rank = np.zeros((n, n)), np.full(n, 1 / n)
    matrix[friends, np.repeat(np.arange(n), degrees)] = 1
    for _ in range(count):
        rank = (1 - DAMPING) / n + DAMPING * (matrix @ (rank / degrees))
    return rank


async def main() -> None:
    begin, friends = load()
    n = len(begin) - 1
    plan = await anyio.to_thread.run_sync(page_rank, n, len(friends))
    ranks, count = np.empty(n), np.empty(1, np.uint32)
    async with accy_async.open_session("cpu") as session:
        inputs = {
            "begin": await session.upload(begin),
            "friends": await session.upload(friends),
        }
        await session.run(plan, {**inputs, "ranks": ranks, "count": count})
    print(f"{n} members, {len(friends) // 2} friendships: {count[0]} iterations")
    for member in ranks.argsort()[::-1][:3]:
        print(f"member {member + 1}: {ranks[member]:.4f}")
    assert abs(ranks - reference(begin, friends, count[0])).max() < 1e-13
    assert abs(ranks - reference(begin, friends, 1000)).max() < 1e-11  # converged
    print("numpy's power iteration agrees")


if __name__ == "__main__":
    accy_async.run(main)
