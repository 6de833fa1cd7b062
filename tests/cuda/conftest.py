"""A CUDA backend on a made-up driver."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING

import pytest

from accy_async.backends.cuda import CudaBackend, context

if TYPE_CHECKING:
    from tests.cuda.fake import FakeDriver

# There are no bindings, and so no structs to look into, for other platforms.
collect_ignore_glob = [] if find_spec("cuda") else ["test_*.py"]


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """The driver that a backend made in the test finds."""
    from tests.cuda.fake import FakeDriver

    fake = FakeDriver()
    monkeypatch.setattr(context, "load_driver", lambda: fake)
    return fake


@pytest.fixture
def backend(driver: FakeDriver) -> Iterator[CudaBackend]:
    """A backend on the made-up driver."""
    del driver
    made = CudaBackend()
    yield made
    made.close()
