"""Runs kernels of the suite under compute-sanitizer: ``python -m tools.sanitize``.

Each tool watches the tests that have something for it to find, in a process of its own,
and has five minutes for them. ``memcheck`` looks for accesses out of bounds and of what
was freed, ``racecheck`` for hazards in shared memory, ``initcheck`` for reads of what
nobody wrote, ``synccheck`` for barriers that not all threads reach.

    python -m tools.sanitize                      memcheck, then racecheck
    python -m tools.sanitize synccheck            one of them
    python -m tools.sanitize memcheck -- -k scan  with arguments for pytest

Source: the options and the exit code are of NVIDIA's Compute Sanitizer manual, 2.1.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["SUBSETS", "command", "find_sanitizer", "main", "run"]

_KERNELS = (
    "tests/gpu/test_scan.py",
    "tests/gpu/test_products.py",
    "tests/kernels/test_regions.py",
    "tests/fragment/test_results.py",
)
"""Where barriers and shared memory are: scans, regions, reductions, products."""

SUBSETS: dict[str, tuple[str, ...]] = {
    "memcheck": (
        *_KERNELS,
        "tests/kernels/test_expressions.py",
        "tests/kernels/test_functions.py",
        "tests/gpu/test_graphs.py",
        "tests/gpu/test_launching.py",
    ),
    "racecheck": _KERNELS,
    "initcheck": _KERNELS,
    "synccheck": _KERNELS,
}
"""What each tool watches. Every access takes 10 to 100 times as long meanwhile."""

_LONG = ("10000000", "262209", "262207")
"""Lengths that take long, and show a tool nothing that shorter ones do not."""

_LIKE_OTHERS = ("i8", "i16", "i64", "u8", "u16", "u64", "bool", "bf16", "random")
"""Dtypes whose accesses are those of others of their size, and programs of what the
other tests have by itself."""

_DESELECTED = " and ".join(f"not {name}" for name in _LONG + _LIKE_OTHERS)

_FOUND_ERRORS = 9
_LIMIT_S = 300.0


def find_sanitizer() -> str | None:
    """Where compute-sanitizer is; None where it is not installed."""
    usual = Path("/usr/local/cuda/bin/compute-sanitizer")
    found = shutil.which("compute-sanitizer")
    return found or (str(usual) if usual.exists() else None)


def command(sanitizer: str, tool: str, extra: Sequence[str] = ()) -> list[str]:
    """What runs a tool over its tests.

    Args:
        sanitizer: the program.
        tool: its tool.
        extra: further arguments for pytest.
    """
    return [
        sanitizer,
        f"--tool={tool}",
        f"--error-exitcode={_FOUND_ERRORS}",
        "--target-processes=application-only",
        "--report-api-errors=no",  # some tests want calls to be refused
        "--print-limit=20",
        sys.executable,
        *("-m", "pytest", "-q", "-x", "-m", "gpu", "-k", _DESELECTED),
        # Its plugin stays: without it the project's setting of it would be unknown.
        *("-p", "no:cacheprovider", "-o", "faulthandler_timeout=0"),
        *SUBSETS[tool],
        *extra,
    ]


def run(
    sanitizer: str, tool: str, extra: Sequence[str] = (), limit_s: float = _LIMIT_S
) -> bool:
    """Run one tool, and say what came of it; True where it found nothing."""
    print(f"{tool}: {', '.join(SUBSETS[tool])}", flush=True)
    root = Path(__file__).parent.parent
    # In a group of their own: the tests are the sanitizer's child, and end with it.
    with subprocess.Popen(
        command(sanitizer, tool, extra), cwd=root, start_new_session=True
    ) as started:
        try:
            code = started.wait(limit_s)
        except BaseException as error:
            os.killpg(started.pid, signal.SIGKILL)
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
            print(f"{tool}: not done within {limit_s:g} s; see SUBSETS for its tests")
            return False
    if code == 0:
        print(f"{tool}: clean")
    elif code == _FOUND_ERRORS:
        print(f"{tool}: found errors, named above")
    else:
        print(f"{tool}: the tests themselves failed ({code})")
    return code == 0


def main(arguments: Sequence[str]) -> int:
    """Run the tools that are named, or the usual two; the program's exit code."""
    given = list(arguments)
    split = given.index("--") if "--" in given else len(given)
    tools, extra = given[:split] or ["memcheck", "racecheck"], given[split + 1 :]
    unknown = [tool for tool in tools if tool not in SUBSETS]
    if unknown:
        print(f"no tool {unknown[0]!r}; there are {', '.join(SUBSETS)}")
        return 2
    sanitizer = find_sanitizer()
    if sanitizer is None:
        print("compute-sanitizer is not here; it comes with the CUDA toolkit")
        return 2
    clean = [run(sanitizer, tool, extra) for tool in tools]  # each, whatever one found
    return 0 if all(clean) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
