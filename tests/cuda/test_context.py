"""The context that the CUDA backend shares with the process."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from accy_async.artifact import KernelArtifact
from accy_async.backends.catalogue import is_backend_name, open_backend
from accy_async.backends.cuda import CudaBackend
from accy_async.errors import BackendUnavailable, InvalidArtifact, InvalidValue
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


PTX = """.version {version}
.target {target}
.address_size 64
.visible .entry add() {{ ret; }}
"""


@pytest.mark.parametrize(
    ("driver_version", "taken", "refused"),
    [
        (12060, "8.5", "8.6"),
        (13000, "9.0", "9.1"),
        (13020, "9.2", "9.3"),
        (14000, "10.3", None),  # the driver says what it does not take
    ],
)
def test_ptx_that_a_driver_does_not_take_is_refused_by_both_versions(
    driver: FakeDriver, driver_version: int, taken: str, refused: str | None
) -> None:
    driver._made["cuDriverGetVersion"] = lambda: (0, driver_version)
    backend = CudaBackend()

    def load(version: str, target: str = "sm_80") -> None:
        text = PTX.format(version=version, target=target)
        artifact = KernelArtifact(
            kernel_name="add",
            format="cuda_ptx",
            argument_count=0,
            scalar_argument_count=0,
            payload=text,
        )
        backend.destroy(backend.load_artifact(artifact))

    load(taken)
    if refused is not None:
        with pytest.raises(InvalidArtifact, match=f"PTX {refused}.*up to {taken}"):
            load(refused)
    with pytest.raises(InvalidArtifact, match="PTX for sm_999, the device is sm_"):
        load(taken, "sm_999")
    backend.close()


UUIDS = [f"GPU-ab000102-0304-0506-0708-090a0b0c0d{i:02x}" for i in range(3)]


@pytest.mark.parametrize("index", [0, 2])
@pytest.mark.parametrize("written", [str, str.upper, lambda uuid: f"MIG-{uuid[4:]}"])
def test_devices_are_opened_by_their_uuid(
    driver: FakeDriver, index: int, written: Callable[[str], str]
) -> None:
    driver.devices = 3
    name = f"cuda:{written(UUIDS[index])}"
    assert is_backend_name(name)
    backend = open_backend(name)
    assert isinstance(backend, CudaBackend)
    assert (backend.device, backend.uuid) == (f"cuda:{index}", UUIDS[index])
    backend.close()


@pytest.mark.parametrize("name", ["cuda:GPU-", "cuda:GPU-ab000102", "cuda:MIG-x"])
def test_a_uuid_that_is_not_here_is_refused_by_those_that_are(
    driver: FakeDriver, name: str
) -> None:
    driver.devices = 2
    with pytest.raises(InvalidValue, match=f"{UUIDS[0]}, {UUIDS[1]}"):
        open_backend(name)
    assert driver.calls["cuDevicePrimaryCtxRetain"] == 0


@pytest.mark.parametrize("device", [2, -1, True, 0.0, None])
def test_an_index_that_is_none_is_refused(driver: FakeDriver, device: object) -> None:
    driver.devices = 2
    with pytest.raises(InvalidValue, match="an index below 2, or a device's UUID"):
        CudaBackend(device)  # type: ignore[arg-type]
