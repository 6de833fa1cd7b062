"""What searching makes of a kernel whose default is poor, within a budget of 2 s.

The kernel scales a million numbers. Its schedule is the threads of a block, how many
numbers each thread takes, and whether these lie beside each other or a block's width
apart; the default is 8 threads that take one number each. On the device that
``--device`` names (the best here), each strategy has the same budget of device time.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

import accy_async
from accy_async import Capabilities, DType
from accy_async.bench import compile_variant
from accy_async.compiler.form import KernelBuilder
from accy_async.errors import RuntimeUnavailable
from accy_async.tuning.search import (
    ModelSearch,
    RandomSearch,
    Schedule,
    SearchOptions,
    SearchSpace,
    Strategy,
    SuccessiveHalving,
    Variant,
    resource_limits,
    search,
)

LENGTH = 1 << 20
BUDGET_S = 2.0
STRATEGIES: dict[str, Strategy] = {
    "random": RandomSearch(),
    "halving": SuccessiveHalving(),
    "model": ModelSearch(),
}


def space_of(capabilities: Capabilities) -> SearchSpace:
    """Every schedule that divides the numbers evenly, within the device's limits."""
    return SearchSpace(
        {
            "threads": (8, 16, 32, 64, 128, 256, 512, 1024),
            "each": (1, 2, 4, 8, 16),
            "order": ("apart", "beside"),
        },
        constraints=[
            lambda threads, each: threads * each <= 4096,
            *resource_limits(capabilities, threadgroup=lambda threads: threads),
        ],
    )


def scaled(schedule: Schedule, capabilities: Capabilities) -> Variant:
    """The kernel of one schedule."""
    threads, each = schedule["threads"], schedule["each"]
    k = KernelBuilder("scaled", threadgroup=(threads, 1, 1))
    out = k.buffer("out", DType.F32, "write_only")
    x = k.buffer("x", DType.F32, "read_only")
    first = k.let("first", k.block_x.cast(DType.U64) * (threads * each))
    with k.region():
        t = k.thread.cast(DType.U64)
        for n in range(each):
            is_apart = schedule["order"] == "apart"
            i = first + (t + n * threads if is_apart else t * each + n)
            out[i] = x[i] * 3.0
    blocks = LENGTH // (threads * each)
    return compile_variant(k.build(), capabilities, grid=(blocks, 1, 1))


async def compare(device: str) -> None:
    """Print what each strategy finds."""
    async with accy_async.open_session(device) as session:
        capabilities = session.capabilities
        x = await session.upload(np.ones(LENGTH, np.float32))
        out = session.allocate(LENGTH, DType.F32)
        space = space_of(capabilities)
        print(f"{capabilities.identity.name}: {BUDGET_S:g} s of device time each")
        print("strategy | than the default        | schedule, of how many measured")
        for name, strategy in STRATEGIES.items():
            try:
                found = await search(
                    session.backend,
                    space,
                    lambda schedule: scaled(schedule, capabilities),
                    [out.binding("write_only"), x.binding("read_only")],
                    strategy=strategy,
                    options=SearchOptions(budget_s=BUDGET_S, workers=1),
                )
            except RuntimeUnavailable as error:  # the model's library
                print(f"{name:8} | {error}")
                continue
            measured = sum(one.is_measured for one in found.trials)
            print(
                f"{name:8} | {found.speedup:6.2f}x, {found.standing!s:13} | "
                f"{found.winner}, of {measured}",
                flush=True,
            )


def main(arguments: Sequence[str] = ()) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--device", default="auto")
    accy_async.run(compare, parser.parse_args(arguments).device)


if __name__ == "__main__":
    main(sys.argv[1:])
