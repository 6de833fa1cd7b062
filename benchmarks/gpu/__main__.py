"""``python -m benchmarks.gpu [SECTION ...]``: run all sections, or those named."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import traceback

import benchmarks.gpu
from benchmarks.gpu.machine import describe

ORDER = ("launch", "replay", "wake", "overlap", "scan", "cancel")
"""The first ones first; ``cancel`` ends a process while its kernel spins, and so comes
last."""

_PARTS = {
    *("__main__", "bare", "busywork", "kernels", "machine", "peers", "tables"),
    *("triton_kernel", "tunables", "tuning_ways"),
}


def sections() -> list[str]:
    """The sections that there are, in the order in which they run."""
    found = {module.name for module in pkgutil.iter_modules(benchmarks.gpu.__path__)}
    found -= _PARTS
    last = [name for name in ORDER if name in found]
    return [*last[:-1], *sorted(found - set(ORDER)), *last[-1:]]


def main(names: list[str]) -> int:
    known = sections()
    if "-h" in names or "--help" in names:
        print("usage: python -m benchmarks.gpu [SECTION ...]\n")
        print("\n".join(f"  {name}" for name in known))
        return 0
    unknown = [name for name in names if name not in known]
    if unknown:
        print(f"no such section: {', '.join(unknown)}; there are {', '.join(known)}")
        return 2
    print(describe(), flush=True)
    failed = 0
    for name in names or known:
        try:
            importlib.import_module(f"benchmarks.gpu.{name}").main()
        except Exception:  # noqa: BLE001 - the others' figures are not to be lost
            failed = 1
            print(f"{name} failed:", traceback.format_exc()[-2000:], sep="\n")
        sys.stdout.flush()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
