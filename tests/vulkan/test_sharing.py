"""Other libraries' arrays and ours: copied by an await, refused without one."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import numpy as np
import pytest

from accy_async.backends.array import DeviceArray
from accy_async.backends.vulkan import VulkanBackend
from accy_async.dtypes import DType
from accy_async.errors import ExchangeRefused, InterfaceMissing, UnsupportedOperation
from accy_async.session import Session, open_session

pytestmark = [pytest.mark.vulkan, pytest.mark.anyio]

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.fixture
async def session() -> AsyncIterator[Session]:
    backend = VulkanBackend()
    async with open_session(backend) as session:
        yield session
    backend.close()


async def test_arrays_of_the_host_are_copied_where_that_is_awaited(
    session: Session,
) -> None:
    array = await session.asarray(VALUES)
    np.testing.assert_array_equal(await session.download(array), VALUES)
    assert await session.asarray(array) is array


TAKEN: dict[str, Callable[[Session], object]] = {
    "await session.asarray": lambda session: session.adopt(VALUES),
    "upload a copy": lambda session: session.adopt_memory(
        VALUES.ctypes.data, (2, 3), DType.F32, owner=VALUES
    ),
    "takes no streams": lambda session: session.adopt_stream(5),
    "has no streams of a driver": lambda session: session.native_stream(),
}


@pytest.mark.parametrize(("words", "take"), TAKEN.items(), ids=TAKEN)
async def test_what_cannot_be_taken_is_refused(
    session: Session, words: str, take: Callable[[Session], object]
) -> None:
    before = session.live_objects()
    with pytest.raises(UnsupportedOperation, match=f"vulkan.* {words}"):
        take(session)
    assert session.live_objects() == before


GIVEN: dict[str, tuple[type[Exception], Callable[[DeviceArray], object]]] = {
    "from_dlpack": (ExchangeRefused, np.from_dlpack),
    "asarray": (ExchangeRefused, np.asarray),
    "interface": (InterfaceMissing, lambda array: array.__cuda_array_interface__),
}


@pytest.mark.parametrize(("error", "give"), GIVEN.values(), ids=GIVEN)
async def test_what_cannot_be_given_says_to_download(
    session: Session, error: type[Exception], give: Callable[[DeviceArray], object]
) -> None:
    array = await session.upload(VALUES)
    with pytest.raises(error, match=r"await session\.download\(array\)"):
        give(array)
    np.testing.assert_array_equal(await session.download(array), VALUES)
