"""An array's mask would be lost on the way to a device: it is refused everywhere."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import numpy as np
import pytest

from accy_async.backends.cpu import CpuBackend
from accy_async.dtypes import DType
from accy_async.errors import AccyError
from accy_async.session import Session, open_session
from tests.attacks.test_bindings import copy_plan

pytestmark = pytest.mark.anyio

MASKED = np.ma.masked_array(np.zeros(4, np.float32), mask=[True, False, False, False])


async def write(session: Session) -> None:
    await session.write(session.allocate(4, DType.F32), MASKED)


async def download(session: Session) -> None:
    array = session.allocate(4, DType.F32)
    await session.download(array, out=MASKED)


async def bound(session: Session) -> None:
    x = session.allocate(4, DType.F32)
    await session.run(copy_plan(), {"x": x, "out": MASKED})


async def called(session: Session) -> None:
    async with await session.load_fragment(lambda x: x + 1) as fragment:
        await fragment(MASKED)


async def captured(session: Session) -> None:
    await session.load_fragment(lambda x: x + MASKED, "f32[4]")


async def adopted(session: Session) -> None:
    session.adopt(MASKED)


WAYS: tuple[Callable[[Session], Awaitable[object]], ...] = (
    lambda session: session.upload(MASKED),
    *(write, download, bound, called, captured, adopted),
)


@pytest.mark.parametrize("way", WAYS)
async def test_a_masked_array_is_refused(
    way: Callable[[Session], Awaitable[object]],
) -> None:
    """By every way in, with what to pass in its place."""
    backend = CpuBackend()
    async with open_session(backend) as session:
        with pytest.raises(AccyError, match=r"masked array.*filled\(value\)"):
            await way(session)
    assert not any(backend.live_objects().values())
    backend.close()
