"""``python -m benchmarks [NAME ...]``: run them all, or those named."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    *(
        "launch_cost",
        "bandwidth",
        "fragments",
        "fragment_calls",
        "startup",
        "waking",
        "ticker",
    ),
    *("graph_cost", "graph_liveness", "graph_overlap", "graph_fairness"),
    *("tuning_truth", "tuning_beside", "tuning_store"),
    *("search_landscapes", "search_speedup"),
)

HELP = f"""\
usage: python -m benchmarks [NAME ...]

Prints tables of ratios, which travel between machines better than times do. Without
a NAME all are run, which takes a minute or two.

{chr(10).join(f"  {name}" for name in NAMES)}

Those that need an NVIDIA GPU are apart: python -m benchmarks.gpu; the one that needs
two is python -m benchmarks.multigpu. Any Vulkan device will do for
python -m benchmarks.vulkan.
What each measures is in the first lines of benchmarks/NAME.py, and in
docs/performance.md. Some need the extra "bench": pip install -e '.[bench]'."""


def main(names: list[str]) -> int:
    if "-h" in names or "--help" in names:
        print(HELP)
        return 0
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
        print("python -m benchmarks --help says more")
        return 2
    for name in names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
