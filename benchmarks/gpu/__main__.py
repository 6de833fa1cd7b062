"""``python -m benchmarks.gpu [SECTION ...]``: run all sections, or those named."""

from __future__ import annotations

import importlib
import pkgutil
import sys

import benchmarks.gpu
from benchmarks.gpu.machine import describe

ORDER = ("launch", "replay", "wake", "overlap", "scan", "cancel")
"""The first ones first; ``cancel`` leaves a kernel running, and so comes last."""

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
    for name in names or known:
        importlib.import_module(f"benchmarks.gpu.{name}").main()
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
