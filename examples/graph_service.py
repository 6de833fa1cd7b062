"""Many requests to one session, some of which their clients give up.

Every request is a run of a plan of its own size, with a deadline. Half of the
clients ask for far too much and hang up after 30 ms: their runs stop, and the
others' answers keep coming.
"""

import functools
import statistics
import time

import anyio
import numpy as np

import accy_async
from accy_async import ArtifactFormat, DType, ScalarArgument, Session
from accy_async.compiler.kernels.catalogue import cpu_registry
from accy_async.graph import LaunchGraphBuilder, LaunchGraphPlan, LaunchOptions

COUNT, REQUESTS, MODEST, GREEDY = 10_000, 40, 20, 1_000_000


@functools.cache
def accumulate(rounds: int) -> LaunchGraphPlan:
    """``answer = question * (1 + 0.5) ** rounds``, one axpy a round, in turns."""
    axpy = cpu_registry().get("accy.kernel.axpy", 1, ArtifactFormat.CPU_MACHINE_CODE)
    scalars = (ScalarArgument.u32(COUNT), ScalarArgument.f32(0.5))
    g = LaunchGraphBuilder()
    question, answer = (
        g.host(name, DType.F32, COUNT) for name in ("question", "answer")
    )
    x, y = (g.scratch(name, DType.F32, COUNT) for name in "xy")
    g.copy_in(question, x)
    with g.loop(count=rounds, carries=[(x, y)]):
        g.kernel(axpy, [y.write, x.read, x.read], scalars)
    g.copy_out(x, answer)
    return g.build()


class Service:
    def __init__(self, session: Session) -> None:
        self.session = session
        self.latencies_ms: list[float] = []
        self.given_up = 0

    async def answer(self, number: int, rounds: int) -> np.ndarray:
        question = np.full(COUNT, number, np.float32)
        answer = np.empty_like(question)
        options = LaunchOptions(name=f"request {number}")
        bindings = {"question": question, "answer": answer}
        await self.session.run(accumulate(rounds), bindings, options)
        return answer

    async def client(self, number: int) -> None:
        await anyio.sleep(0.005 * number)
        began = time.perf_counter()
        if number % 2:
            with anyio.move_on_after(0.03):
                await self.answer(number, GREEDY)
            self.given_up += 1
            return
        with anyio.fail_after(60):
            answer = await self.answer(number, MODEST)
        self.latencies_ms.append(1e3 * (time.perf_counter() - began))
        expected = np.float32(number)
        for _ in range(MODEST):
            expected = np.float32(0.5) * expected + expected
        assert np.all(answer == expected)


async def main() -> None:
    for rounds in (MODEST, GREEDY):
        accumulate(rounds)  # compiled before anybody asks
    async with accy_async.open_session("cpu", max_streams=16) as session:
        service = Service(session)
        async with anyio.create_task_group() as group:
            for number in range(REQUESTS):
                group.start_soon(service.client, number)
        left = session.statistics()
        print(f"runs left: {left.runs}, streams leased: {left.streams_leased}")
    median, worst = statistics.median(service.latencies_ms), max(service.latencies_ms)
    print(f"{len(service.latencies_ms)} answered, {service.given_up} given up")
    print(f"latency: median {median:.1f} ms, worst {worst:.1f} ms")
    print(f"left of the service: {sum(session.live_objects().values())} objects")
    assert left.runs == left.streams_leased == 0
    assert not any(session.live_objects().values())


if __name__ == "__main__":
    accy_async.run(main)
