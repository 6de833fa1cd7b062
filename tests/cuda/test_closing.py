"""What the driver refuses to destroy when nobody asked, and closing under makers."""

from __future__ import annotations

import pytest

from accy_async.artifact import ArtifactFormat, ArtifactRequest, KernelArtifact
from accy_async.artifact.geometry import FixedLaunch
from accy_async.backends import LaunchRequest
from accy_async.backends.cuda import CudaBackend
from accy_async.backends.handles import LoadedArtifact, ObjectKind
from accy_async.errors import DeviceError, SessionClosed
from accy_async.session import open_session
from tests.cuda.fake import FakeDriver
from tests.cuda.faults import faulty_cuda
from tests.harness.racing import HOOKS, make, meanwhile

PTX = """.version 7.0
.target sm_80
.visible .entry step() { ret; }
"""
STEP = KernelArtifact.from_request(
    ArtifactRequest(
        kernel_name="step",
        requested_format=ArtifactFormat.CUDA_PTX,
        argument_count=0,
        payload=PTX,
    )
)
BUSY, REFUSED = 600, 304


def launched(driver: FakeDriver, backend: CudaBackend) -> LoadedArtifact:
    """A kernel that was destroyed while the device was at work."""
    kernel = backend.load_artifact(STEP)
    backend.launch(
        LaunchRequest(
            artifact=STEP,
            loaded=kernel,
            geometry=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        )
    )
    driver.answers["cuStreamQuery"] = [BUSY] * 2
    assert not backend.destroy(kernel)
    return kernel


@pytest.mark.anyio
@pytest.mark.parametrize("by_hub", [False, True])
async def test_a_refused_unload_is_told_by_the_session(
    driver: FakeDriver, backend: CudaBackend, by_hub: bool
) -> None:
    """Whether the hub has met it before, or leaving does."""
    driver.answers["cuModuleUnload"] = [REFUSED]
    with pytest.raises(DeviceError, match="cuModuleUnload") as caught:
        async with open_session(backend) as session:
            kernel = launched(driver, session.backend)  # type: ignore[arg-type]
            if by_hub:
                driver.answers.clear()
                backend._default.timeline.is_idle  # noqa: B018 - asks the driver
                driver.answers["cuModuleUnload"] = [REFUSED]
                backend._after_completion()
            assert driver.calls["cuModuleUnload"] == by_hub
    assert f"artifact {kernel.id} (step)" in caught.value.__notes__[0]
    assert driver.calls["cuModuleUnload"] == 1
    assert not any(backend.live_objects().values())


def test_a_refused_unload_is_told_when_the_backend_is_closed(
    driver: FakeDriver,
) -> None:
    """Where no session was there."""
    backend = CudaBackend()
    launched(driver, backend)
    driver.answers["cuModuleUnload"] = [REFUSED]
    with pytest.raises(ExceptionGroup) as caught:
        backend.close()
    assert "cuModuleUnload" in str(caught.value.exceptions[0])
    assert driver.calls["cuDevicePrimaryCtxRelease"] == 1


def test_one_that_is_destroyed_at_once_tells_who_did(
    driver: FakeDriver, backend: CudaBackend
) -> None:
    """Nothing is kept then."""
    kernel = backend.load_artifact(STEP)
    driver.answers["cuModuleUnload"] = [REFUSED]
    with pytest.raises(DeviceError, match="cuModuleUnload"):
        backend.destroy(kernel)


@pytest.mark.parametrize("kind", [pytest.param(kind, id=kind.value) for kind in HOOKS])
@pytest.mark.parametrize("is_before", [True, False], ids=["asking", "made"])
def test_the_device_is_given_back_behind_who_makes_something(
    monkeypatch: pytest.MonkeyPatch, kind: ObjectKind, is_before: bool
) -> None:
    """The driver is not asked for anything of a context that was given back."""
    driver = faulty_cuda(monkeypatch, FakeDriver())
    backend = CudaBackend()

    def close() -> None:
        backend.close()
        assert not backend._is_given_back

    found = meanwhile(
        backend,
        HOOKS[kind],
        lambda: make(backend, kind, STEP),
        close,
        is_before=is_before,
    )
    assert isinstance(found, SessionClosed)
    assert backend._is_given_back
    assert driver.made() == {}
    assert driver.calls[-1] == "cuDevicePrimaryCtxRelease"


@pytest.mark.parametrize("is_closed", [False, True])
def test_whatever_the_hub_meets_is_kept_and_raised_to_nobody_there(
    driver: FakeDriver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    is_closed: bool,
) -> None:
    """Not only what the driver says."""
    backend = CudaBackend()
    if is_closed:
        backend._table.refusals.close()

    def refuse() -> None:
        raise OSError("cannot unmap")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_unload_if_idle", refuse)
        backend._after_completion()
    assert ("cannot unmap" in caplog.text) is is_closed
    if is_closed:
        backend.close()
        return
    with pytest.RaisesGroup(pytest.RaisesExc(OSError, match="cannot unmap")):
        backend.close()


def test_a_device_is_given_back_by_the_hub_though_a_kernel_cannot_be_unloaded(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would come again to do it."""
    backend = CudaBackend()
    line = backend._default.timeline
    line.advance()  # somebody else's, which ends later
    driver.answers["cuStreamQuery"] = [BUSY] * 8
    backend.close()
    assert not backend._is_given_back
    driver.answers.clear()
    line.complete(line.submitted)

    def refuse() -> None:
        raise DeviceError("not now")

    with monkeypatch.context() as patch:
        patch.setattr(backend, "_unload_if_idle", refuse)
        backend._after_completion()
    assert backend._is_given_back
    assert driver.calls["cuDevicePrimaryCtxRelease"] == 1
