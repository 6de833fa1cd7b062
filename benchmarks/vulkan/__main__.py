"""``python -m benchmarks.vulkan [--device DEVICE] [SECTION ...]``."""

from __future__ import annotations

import argparse
import datetime
import sys
import traceback
from importlib.metadata import PackageNotFoundError, version

from accy_async.backends.vulkan import VulkanBackend
from accy_async.errors import BackendUnavailable, InvalidValue
from benchmarks.measuring import machine
from benchmarks.vulkan.sections import SECTIONS, Settings

__all__ = ["main"]


def describe(settings: Settings) -> str:
    """The device, its driver, and the libraries with their versions."""
    backend = VulkanBackend(settings.device)
    try:
        identity = backend.capabilities.identity
        queues = backend._device.queue_count  # noqa: SLF001 - for the heading
    finally:
        backend.close()
    found = []
    for name in ("accy-async", "vulkan", "wgpu", "cuda-bindings", "anyio", "trio"):
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            continue
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    what = "software" if identity.is_software else "hardware"
    return (
        f"{today}: {identity.name} ({what}, {queues} queues), {identity.driver}\n"
        f"{machine()}\n{', '.join(found)}"
    )


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.vulkan")
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"{[*SECTIONS]}")
    parser.add_argument("--device", help="a number, or part of a name; the best one")
    parser.add_argument("--rounds", type=int, default=Settings().rounds)
    parser.add_argument("--limit", type=float, default=Settings().limit_s, metavar="S")
    given = parser.parse_args(arguments)
    unknown = [name for name in given.sections if name not in SECTIONS]
    if unknown:
        print(f"no such section: {', '.join(unknown)}; there are {', '.join(SECTIONS)}")
        return 2
    device = given.device
    if device is not None and device.isdigit():
        device = int(device)
    settings = Settings(device=device, rounds=given.rounds, limit_s=given.limit)
    try:
        print(describe(settings), flush=True)
    except (BackendUnavailable, InvalidValue) as error:
        print(error)
        return 1
    failed = 0
    for name in given.sections or SECTIONS:
        try:
            SECTIONS[name](settings)
        except Exception:  # noqa: BLE001 - told; the next section is another matter
            failed += 1
            traceback.print_exc()
        sys.stdout.flush()
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
