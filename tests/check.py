"""Everything a change must pass, in one command: ``python -m tests.check``.

The quickest checks come first, and each runs whatever the one before it said,
so that one run shows all there is to mend. Arguments go to pytest.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHECKS: tuple[tuple[str, ...], ...] = (
    ("ruff", "format", "--check"),
    ("ruff", "check"),
    ("mypy",),
    ("pytest", "-n", "auto"),
)


def main(arguments: Sequence[str]) -> int:
    """Run every check; the number that failed is the exit code."""
    failed = []
    for check in CHECKS:
        command = [*check, *(arguments if check[0] == "pytest" else ())]
        print(f"==> {' '.join(command)}", flush=True)
        begun = time.monotonic()
        result = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, check=False)
        print(f"    {time.monotonic() - begun:.1f} s", flush=True)
        if result.returncode != 0:
            failed.append(" ".join(check))
    print(f"failed: {', '.join(failed)}" if failed else "all checks passed")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
