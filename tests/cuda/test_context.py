"""The context that the CUDA backend shares with the process."""

from __future__ import annotations

import os

import pytest

from accy_async.backends.cuda import CudaBackend
from accy_async.errors import BackendUnavailable
from tests.cuda.fake import FakeDriver

QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


@pytest.mark.parametrize("given", [None, "1", "8"])
def test_a_context_gets_all_queues_unless_the_program_said_otherwise(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch, given: str | None
) -> None:
    """And the environment is afterwards what it was before."""
    monkeypatch.delenv(QUEUES, raising=False)
    if given is not None:
        monkeypatch.setenv(QUEUES, given)
    CudaBackend().close()
    assert driver.queues == (given or "32")
    assert os.environ.get(QUEUES) == given


def test_the_environment_is_left_alone_where_there_is_no_device(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(QUEUES, raising=False)
    driver._made["cuDeviceGetCount"] = lambda: (driver.CUresult.CUDA_SUCCESS, 0)
    with pytest.raises(BackendUnavailable):
        CudaBackend()
    assert QUEUES not in os.environ
