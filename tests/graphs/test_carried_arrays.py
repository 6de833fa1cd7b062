"""Which array holds a carried value, and that slots swap rather than copy."""

from __future__ import annotations

import numpy as np
import pytest

from accy_async.artifact import ScalarArgument
from accy_async.compiler.kernels.catalogue import library_entries
from accy_async.dtypes import DType
from accy_async.errors import GraphError
from accy_async.graph import LaunchGraphBuilder
from accy_async.session import open_session

pytestmark = pytest.mark.anyio
N = 8


@pytest.mark.parametrize("times", [0, 1, 2, 5])
async def test_binding_tells_where_a_carried_value_is(times: int) -> None:
    """After an odd number of iterations it is in the other array."""
    [add] = library_entries(targets=["accy.kernel.add"])
    g = LaunchGraphBuilder()
    old, new = g.buffer("old", DType.F32, N), g.buffer("new", DType.F32, N)
    with g.loop(count=times, carries=[(old, new)]):
        g.kernel(add, [new, old, old], [ScalarArgument.u32(N)])
    async with open_session("cpu") as session:
        first = await session.upload(np.ones(N, np.float32))
        second = session.allocate(N, DType.F32)
        run = session.start(g.build(), {"old": first, "new": second})
        with pytest.raises(GraphError, match="expected a bound slot of a run that is"):
            run.binding("old")
        await run
        holder = run.binding("old")
        assert holder is (second if times % 2 else first)
        assert run.binding("new") is (first if times % 2 else second)
        assert np.all(await session.download(holder) == 2**times)
        with pytest.raises(GraphError, match="'other'"):
            run.binding("other")
