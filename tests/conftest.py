"""Both event loops for every async test, devices only where there are any.

``pytest -n auto`` runs the modules in as many processes as there are cores, but in
one where there is a GPU: its tests measure it, and count what is left on it.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import functools
import os
import shutil
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import hypothesis
import pytest

from accy_async.artifact.store import CACHE_FOLDER_VARIABLE
from tests.threads import join_threads

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler import LoadFileScheduling

Probe = Callable[[], str | None]

# A test takes as long as its machine does. Where CI is set, hypothesis itself sees to
# it that a commit's tests are the same at each run.
hypothesis.settings.register_profile(
    "unhurried",
    parent=hypothesis.settings(),
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("unhurried")


def pytest_configure(config: pytest.Config) -> None:
    """Give the run caches of its own, empty: kernels, records, the drivers' shaders.

    Processes that tests start find the same ones, as do xdist's workers.
    """
    if hasattr(config, "workerinput"):
        return
    caches = tempfile.mkdtemp(prefix="accy_async-caches-")
    config.add_cleanup(functools.partial(shutil.rmtree, caches, ignore_errors=True))
    os.environ["XDG_CACHE_HOME"] = caches
    os.environ[CACHE_FOLDER_VARIABLE] = os.path.join(caches, "accy_async")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int | None:
    """Share no GPU between processes."""
    return 0 if cuda_missing() is None else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(
    config: pytest.Config, log: Producer
) -> LoadFileScheduling | None:
    """Keep each module's tests in one process, unless asked for another ``--dist``."""
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import LoadFileScheduling

    return LoadFileScheduling(config, log)


@pytest.fixture(
    params=[
        pytest.param(("asyncio", {"use_uvloop": False}), id="asyncio"),
        pytest.param(("trio", {}), id="trio"),
    ]
)
def anyio_backend(request: pytest.FixtureRequest) -> tuple[str, dict[str, object]]:
    """Run each async test once per loop.

    A test that only makes sense on one, or with a fake clock, overrides this.
    """
    backend: tuple[str, dict[str, object]] = request.param
    return backend


def _load(*names: str) -> ctypes.CDLL | None:
    """The first of these shared libraries that the system has."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    return None


@functools.cache
def cuda_missing() -> str | None:
    """Why no CUDA kernel can run here; None where one can.

    Asks the driver itself, so that a fault in our own bindings fails the tests
    instead of skipping them.
    """
    driver = _load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    if driver is None:
        return "no CUDA driver library is installed"
    if (code := driver.cuInit(0)) != 0:
        return f"the CUDA driver refuses to start: cuInit returned {code}"
    count = ctypes.c_int(0)
    if (code := driver.cuDeviceGetCount(ctypes.byref(count))) != 0:
        return f"the CUDA driver counts no devices: cuDeviceGetCount returned {code}"
    return None if count.value else "the CUDA driver sees no device"


class _InstanceCreateInfo(ctypes.Structure):
    """``VkInstanceCreateInfo``, all of it optional but its type."""

    _fields_ = (
        ("s_type", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("flags", ctypes.c_uint32),
        ("application_info", ctypes.c_void_p),
        ("layer_count", ctypes.c_uint32),
        ("layer_names", ctypes.c_void_p),
        ("extension_count", ctypes.c_uint32),
        ("extension_names", ctypes.c_void_p),
    )


@functools.cache
def vulkan_missing() -> str | None:
    """Why no Vulkan kernel can run here; None where one can."""
    loader = _load("vulkan-1.dll" if sys.platform == "win32" else "libvulkan.so.1")
    if loader is None:
        return "no Vulkan loader is installed"
    # VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO is 1.
    info = _InstanceCreateInfo(s_type=1)
    instance = ctypes.c_void_p()
    code = loader.vkCreateInstance(ctypes.byref(info), None, ctypes.byref(instance))
    if code != 0:
        return f"no Vulkan driver is installed: vkCreateInstance returned {code}"
    try:
        count = ctypes.c_uint32(0)
        code = loader.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None)
        if code != 0:
            return f"vkEnumeratePhysicalDevices returned {code}"
        return None if count.value else "the Vulkan drivers see no device"
    finally:
        loader.vkDestroyInstance(instance, None)


def second_gpu_missing() -> str | None:
    """Why there are no two GPUs here; None where there are."""
    if (reason := cuda_missing()) is not None:
        return reason
    driver = _load("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    count = ctypes.c_int(0)
    assert driver is not None
    driver.cuDeviceGetCount(ctypes.byref(count))
    return None if count.value > 1 else "there is one GPU alone"


DEVICES: dict[str, Probe] = {
    "gpu": cuda_missing,
    "multigpu": second_gpu_missing,
    "vulkan": vulkan_missing,
}


@pytest.fixture(scope="session")
def kept_vulkan_devices() -> Iterator[None]:
    """Vulkan's native devices outlive the tests that open them; see `kept`."""
    from tests.vulkan.kept import keeping

    with keeping():
        yield


@pytest.fixture(autouse=True, scope="module")
def threads_end() -> Iterator[None]:
    """The threads that a module's tests started for devices end with the module.

    A thread left over would fail a later module that counts threads, and not the one
    that left it.
    """
    before = set(threading.enumerate())
    yield
    join_threads(before, named=("accy_async cpu",))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip, with the reason, a test whose device is not here.

    A driver is first spoken to by a test that is about to use it: collecting
    the tests, or running those without a device, starts none.
    """
    for marker, missing in DEVICES.items():
        if item.get_closest_marker(marker) is not None:
            reason = missing()
            if reason is not None:
                pytest.skip(reason)
