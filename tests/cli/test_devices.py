"""``accy-async devices``: honest about what is here, and about what is not yet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from accy_async.backends.catalogue import BackendStatus, open_backend
from accy_async.cli import devices as devices_module
from accy_async.cli.drivers import cuda_findings, vulkan_findings
from accy_async.cli.exits import ExitCode
from tests.cli.conftest import Run
from tests.vulkan import harness


def test_devices_lists_every_backend(run: Run) -> None:
    ended = run("devices")
    assert ended.code == 0
    for words in ("cpu", "cuda", "vulkan", "recording", "auto takes: "):
        assert words in ended.out


def test_devices_document(run: Run) -> None:
    """One JSON document with a row for each backend, and nothing else."""
    ended = run("devices", "--json")
    document = ended.document
    assert document["auto"] in ("cuda", "vulkan", "cpu")
    rows = {row["backend"]: row for row in document["backends"]}
    assert list(rows) == ["cuda", "vulkan", "cpu", "recording"]
    assert rows["cpu"]["is_available"]
    assert rows["cpu"]["device"]["compute_units"] >= 1
    assert "cpu_object" in rows["cpu"]["device"]["formats"]
    assert not rows["recording"]["is_device"]


@pytest.mark.gpu
def test_gpu_is_what_auto_takes(run: Run) -> None:
    document = run("devices", "--json").document
    assert document["auto"] == "cuda"
    rows = {row["backend"]: row for row in document["backends"]}
    assert rows["cuda"]["is_available"]
    assert rows["cuda"]["device"]["vendor"] == "NVIDIA"
    assert "cuda_ptx" in rows["cuda"]["device"]["formats"]
    assert rows["cuda"]["device"]["name"] in run("devices").out


@pytest.mark.vulkan
def test_software_device_can_run_and_is_not_what_auto_takes(run: Run) -> None:
    if reason := harness.unavailable():
        pytest.skip(f"no Vulkan: {reason}")
    document = run("devices", "--json").document
    (row,) = [r for r in document["backends"] if r["backend"] == "vulkan"]
    assert row["is_available"]
    assert row["device"]["formats"] == ["vulkan_spirv"]
    if "software" in row["reason"]:
        assert document["auto"] != "vulkan"


def test_missing_vulkan_says_what_to_install(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vulkan", None)
    rows = {r["backend"]: r for r in run("devices", "--json").document["backends"]}
    assert not rows["vulkan"]["is_available"]
    assert "install accy-async[vulkan]" in rows["vulkan"]["reason"]


def test_missing_gpu_says_so_and_what_was_found(
    run: Run, monkeypatch: pytest.MonkeyPatch, without_cuda: None
) -> None:
    found = {"cuda": lambda: ("devices: nvidia0",)}
    monkeypatch.setattr(devices_module, "_FINDINGS", found)
    ended = run("devices", "--json")
    rows = {row["backend"]: row for row in ended.document["backends"]}
    assert not rows["cuda"]["is_available"]
    assert "no NVIDIA driver is installed" in rows["cuda"]["reason"]
    assert rows["cuda"]["found"] == ["devices: nvidia0"]
    assert ended.document["auto"] == "cpu"
    assert ended.err == ""


def test_auto_falls_back_to_the_cpu_without_a_driver(
    capfd: pytest.CaptureFixture[str], without_cuda: None
) -> None:
    """Without a word: nothing is wrong with a machine that has no GPU."""
    backend = open_backend("auto")
    assert str(backend.kind) == "cpu"
    backend.close()
    assert capfd.readouterr() == ("", "")


def test_nothing_that_can_run_is_exit_code_3(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    status = BackendStatus(name="cpu", capabilities=None, reason="no such processor")
    monkeypatch.setattr(devices_module, "backend_statuses", lambda: (status,))
    ended = run("devices")
    assert ended.code == ExitCode.NO_BACKEND
    assert "no such processor" in ended.out
    assert "nothing can run here" in ended.out
    assert run("devices", "--json").document["auto"] is None


def test_drivers_are_found_by_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only files are looked at; no library is loaded."""
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    for variable in ("VK_DRIVER_FILES", "VK_ICD_FILENAMES"):
        monkeypatch.delenv(variable, raising=False)
    for name, text in (
        ("proc/driver/nvidia/version", "NVRM version:  NVIDIA  999.1\nGCC 12\n"),
        ("dev/nvidia0", ""),
        ("dev/nvidiactl", ""),
        ("usr/lib64/libcuda.so.1", "no library"),
        ("etc/ld.so.cache", "...libvulkan.so.1\0"),
        ("usr/share/vulkan/icd.d/lvp_icd.json", "{}"),
    ):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    cuda = cuda_findings(tmp_path)
    assert cuda[:2] == ("kernel driver: NVRM version: NVIDIA 999.1", "devices: nvidia0")
    assert cuda[2].endswith("usr/lib64/libcuda.so.1")
    assert vulkan_findings(tmp_path)[:2] == (
        "library: libvulkan.so.1",
        "drivers: lvp_icd.json",
    )
    monkeypatch.setenv("VK_DRIVER_FILES", "/somewhere/my_icd.json")
    assert "drivers: my_icd.json" in vulkan_findings(tmp_path)


def test_no_driver_is_nothing_found(tmp_path: Path) -> None:
    for findings in (cuda_findings, vulkan_findings):
        assert all(found.startswith("Python package") for found in findings(tmp_path))
