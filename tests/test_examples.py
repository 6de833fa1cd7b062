"""Every example runs as it stands, in a process of its own, and says what it should."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.gpu.peers import NAMES_GONE
from tests.conftest import cuda_missing

EXAMPLES = Path(__file__).parent.parent / "examples"


BORROWED = {
    "from_cupy": ("2 x + 3 x is 5 x", ["cupy"]),
    "from_numba": ("5 x is 5 x", ["numba"]),
    "from_triton": ("128 threads a block: right", ["torch", "triton"]),
}
"""Examples of other libraries' kernels: what they say on a GPU, and the libraries."""

GIVING_NAMES_BACK = f"""
import runpy, sys
import numpy as np
for name, now in {NAMES_GONE}.items():
    if not hasattr(np, name):
        setattr(np, name, getattr(np, now))
runpy.run_path(sys.argv[1], run_name="__main__")
"""
"""Runs a script with names that Numba's CUDA target asks numpy for, gone by 2.5."""


def _without_gpu(*libraries: str) -> list[str]:
    """What an example says that has these libraries, or lacks some, and no GPU."""
    if any(find_spec(library) is None for library in libraries):
        return ["not installed here: nothing to show"]
    return ["cuda: "]


SAYS = {
    "bench_softmax": ["softmax: softmax, step by step", "double: 64 threads"],
    "cancel_safely": ["given up: True", "nothing is left of it: True"],
    "fragment_hello": ["twice on the device: right", "compiled for (64, 1000)"],
    "fragment_kmeans": ["[250, 250, 250, 250] points, centres off by 0.07 at most"],
    "fragment_pagerank": ["all sum up to 1.000000", "off by less than 1e-12: True"],
    "fragment_training": [
        "first loss as numpy's: True",
        "losses of 200 steps as numpy's: True",
        "loss 1.50 -> 0.07, 96% right",
        "of 50 flowers never seen, 100% right",
    ],
    "fragment_transformer": ["right: "],
    **{name: _without_gpu(*libraries) for name, (_, libraries) in BORROWED.items()},
    "graph_diamond": ["join: finished", "7 nodes on 4 streams, right"],
    "graph_pipeline": ["speeds[1] sums_scan: finished", "right to the bit"],
    "graph_service": ["20 answered, 20 given up", "left of the service: 0 objects"],
    "graph_solver": ["78 friendships: 68 iterations", "power iteration agrees"],
    "keep_object": ["kept accy_add_f32", "loaded LLVM: False"],
    "many_streams": ["task 7: right", "launches=32"],
    "own_kernel": ["relu(2 x + y) for 1000 values: right"],
    "share_candidates": ["each candidate once: True", "the wrong one is out: True"],
    "scan_pipeline": ["the sum of 100000 values", "'buffers': 0"],
    "share_arrays": [
        "the last of 100000 is 100000",
        "[1.0, 2.0, 3.0, 4.0], and 1 buffer",
    ],
    "same_everywhere": ["cpu:0: ", "the same programs: within their bounds everywhere"],
    "two_devices": ["values on two devices: right", "left on both: 0 objects"],
    "service_lifespan": ["answer: b'1048576'", "left of the request: 0"],
}


def test_every_example_is_tested() -> None:
    """A new example is given what it has to say."""
    assert sorted(path.stem for path in EXAMPLES.glob("*.py")) == sorted(SAYS)


def check_says(name: str, *arguments: str) -> None:
    """It ends well and prints what it promises, and nothing to the error stream."""
    result = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLES / f"{name}.py"), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (result.returncode, result.stderr) == (0, "")
    for words in SAYS[name]:
        assert words in result.stdout


@pytest.mark.parametrize("name", SAYS)
def test_example_runs(name: str) -> None:
    if name in BORROWED and not cuda_missing():
        pytest.skip("there is a GPU, where it says more")
    check_says(name)


@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in SAYS if name.startswith("fragment")])
def test_fragment_examples_say_the_same_on_a_gpu(name: str) -> None:
    """The same source, results within the same bounds."""
    check_says(name, "cuda")


@pytest.mark.gpu
@pytest.mark.parametrize("name", BORROWED)
def test_kernels_of_other_libraries_run_on_a_gpu(name: str) -> None:
    words, libraries = BORROWED[name]
    for library in libraries:
        if find_spec(library) is None:
            pytest.skip(f"{library} is not installed")
    result = subprocess.run(
        [sys.executable, "-c", GIVING_NAMES_BACK, str(EXAMPLES / f"{name}.py")],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert words in result.stdout


@pytest.mark.parametrize("name", SAYS)
def test_example_is_short_and_says_what_it_is(name: str) -> None:
    """Under 100 lines of code, with a docstring."""
    text = (EXAMPLES / f"{name}.py").read_text(encoding="utf-8")
    assert ast.get_docstring(ast.parse(text))
    assert sum(bool(line.strip()) for line in text.splitlines()) < 100
