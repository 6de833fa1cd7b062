"""A GPU that cannot be had: the message says why, and what to do."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from accy_async.backends.cuda import CudaBackend
from accy_async.backends.cuda import driver as driver_module
from accy_async.errors import AccyError, BackendUnavailable, InvalidValue
from accy_async.session import open_session
from tests.cuda.fake import FakeDriver


@pytest.fixture
def bindings(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    """Stands in for the bindings themselves, so that `load_driver` runs."""
    import cuda.bindings

    fake = FakeDriver()
    monkeypatch.setattr(driver_module, "_has_library", lambda: True)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", fake)
    monkeypatch.setattr(cuda.bindings, "driver", fake, raising=False)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return fake


def reason() -> str:
    with pytest.raises(BackendUnavailable) as raised:
        CudaBackend()
    text = str(raised.value)
    assert text.startswith("cuda: ")
    return text


def test_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_has_library", lambda: False)
    text = reason()
    assert "no NVIDIA driver is installed" in text
    assert "--gpus all" in text


def test_bindings_that_do_not_find_the_library(
    bindings: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing(flags: int) -> Any:
        raise RuntimeError("libcuda.so: cannot open shared object file")

    monkeypatch.setitem(bindings._made, "cuInit", missing)
    assert "cannot open shared object file" in reason()


def test_no_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driver_module, "_has_library", lambda: True)
    monkeypatch.setitem(sys.modules, "cuda.bindings", None)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", None)
    assert "install cuda-python" in reason()


@pytest.mark.parametrize("version", [11040, 11080])
def test_old_driver(
    bindings: FakeDriver, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr(bindings, "_cuDriverGetVersion", lambda: (version,))
    text = reason()
    assert f"CUDA 11.{version % 1000 // 10}, expected at least 12.0" in text
    assert "update it" in text


@pytest.mark.parametrize("code", [100, 101])
def test_no_device(bindings: FakeDriver, code: int) -> None:
    bindings.answers["cuInit"] = [code]
    assert "finds no device; nvidia-smi lists" in reason()


@pytest.mark.parametrize("visible", ["", "7", "-1"])
def test_variable_that_hides_every_device(
    bindings: FakeDriver, monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    bindings.answers["cuInit"] = [100]
    assert f"CUDA_VISIBLE_DEVICES={visible!r} names none; unset it" in reason()


def test_count_of_nothing(
    bindings: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bindings, "_cuDeviceGetCount", lambda: (0,))
    assert "finds no device" in reason()


@pytest.mark.parametrize(
    ("call", "code", "words"),
    [
        ("cuInit", 3, "spawn"),
        ("cuInit", 34, "stub"),
        ("cuInit", 802, "fabricmanager"),
        ("cuInit", 803, "restart"),
        ("cuInit", 804, "compatibility"),
        ("cuInit", 805, "MPS"),
        ("cuInit", 999, "nvidia_uvm"),
        ("cuInit", 1, "CUDA_ERROR_INVALID_VALUE (1)"),
        ("cuDriverGetVersion", 999, "nvidia_uvm"),
        ("cuDevicePrimaryCtxRetain", 46, "for itself"),
        ("cuDevicePrimaryCtxRetain", 3, "spawn"),
    ],
)
def test_codes_come_with_advice(
    bindings: FakeDriver, call: str, code: int, words: str
) -> None:
    bindings.answers[call] = [code]
    assert words in reason()


def test_memory_that_is_all_taken_is_said_as_that(bindings: FakeDriver) -> None:
    bindings.answers["cuDevicePrimaryCtxRetain"] = [2]
    with pytest.raises(AccyError, match="cuDevicePrimaryCtxRetain"):
        CudaBackend()


@pytest.mark.anyio
async def test_session_passes_debug_on(bindings: FakeDriver) -> None:
    async with open_session("cuda", debug=True) as session:
        session.backend.fill_buffer(session.backend.allocate_buffer(8), b"\1")
        waited = bindings.calls["cuStreamSynchronize"]
        session.backend.fill_buffer(session.backend.allocate_buffer(0), b"\1")
        assert bindings.calls["cuStreamSynchronize"] == waited
    plain = CudaBackend()
    with pytest.raises(InvalidValue, match="debug"):
        async with open_session(plain, debug=True):
            pass
    plain.close()
