"""``python -m benchmarks [NAME ...]``: run them all, or those named."""

from __future__ import annotations

import importlib
import sys

NAMES = (
    *("launch_cost", "bandwidth", "startup", "waking", "ticker"),
    *("graph_cost", "graph_liveness", "graph_overlap", "graph_fairness"),
)


def main(names: list[str]) -> int:
    unknown = [name for name in names if name not in NAMES]
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are {', '.join(NAMES)}")
        return 2
    for name in names or NAMES:
        importlib.import_module(f"benchmarks.{name}").main()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
