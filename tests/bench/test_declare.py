"""Declaring benchmarks, and finding them in a file, whose faults are told by line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from accy_async.bench import (
    FragmentBenchmark,
    FragmentVariant,
    InvalidBenchmark,
    KernelBenchmark,
    Output,
    fragment_benchmark,
    load_benchmarks,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidValue

Write = Callable[[str], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Writes a benchmark file; gives its path."""

    def make(text: str) -> Path:
        file = tmp_path / "my-bench.py"
        file.write_text(text, encoding="utf-8")
        return file

    return make


HEAD = "from accy_async.bench import *\nimport numpy as np\n"


def test_a_file_declares_by_its_global_names_in_order(write: Write) -> None:
    file = write(
        HEAD
        + """
@fragment_benchmark(inputs=lambda: [np.ones(4)])
def second(x):
    return x + x

first = KernelBenchmark(name="first", candidates={"a": print}, arguments=[])
several = [first, KernelBenchmark(name="third", candidates={"a": print}, arguments=[])]
_hidden = KernelBenchmark(name="hidden", candidates={"a": print}, arguments=[])
"""
    )
    found = load_benchmarks(file)
    assert [one.name for one in found] == ["second", "first", "third"]
    assert [one.declared.rpartition(":")[2] for one in found] == ["4", "8", "9"]
    assert all(one.declared.startswith(str(file)) for one in found)
    assert str(file.parent) not in sys.path


def test_a_file_may_import_from_its_folder_and_define_classes(write: Write) -> None:
    file = write(
        HEAD
        + """
import attrs
from neighbour_of_bench import NAME

@attrs.frozen
class Shape:
    rows: int

one = KernelBenchmark(name=NAME, candidates={"a": print}, arguments=[])
"""
    )
    (file.parent / "neighbour_of_bench.py").write_text("NAME = 'near'\n")
    assert load_benchmarks(file)[0].name == "near"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import nothing_at_all\n", r"my-bench\.py:1: ModuleNotFoundError: "),
        ("x = 1\n\ny = (\n", r"my-bench\.py:3: "),
        ("x = 1\nx.y.z\n", r"my-bench\.py:2: AttributeError: "),
        ("def f():\n    raise KeyError('a')\n\nf()\n", r"my-bench\.py:2: KeyError"),
        ("import sys\nsys.exit(3)\n", r"my-bench\.py:2: SystemExit: 3"),
        ("x = 1\n", "declares no benchmark"),
        (
            HEAD + "FragmentBenchmark(name='a', candidates={}, inputs=[])\n",
            r"my-bench\.py:3: InvalidValue: FragmentBenchmark\.candidates",
        ),
        (
            HEAD + "a = [KernelBenchmark(name='a', candidates={'a': print},\n"
            "     arguments=[]) for _ in range(2)]\n",
            r"my-bench\.py:3: a second benchmark is called 'a', after .*my-bench\.py:3",
        ),
        ("x = '\x00'\n", "null bytes"),
    ],
)
def test_what_is_wrong_with_a_file_is_told_with_its_line(
    write: Write, text: str, words: str
) -> None:
    with pytest.raises(InvalidBenchmark, match=words):
        load_benchmarks(write(text))


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidBenchmark, match="No such file"):
        load_benchmarks(tmp_path / "none.py")


def test_a_decorated_function_is_the_first_candidate() -> None:
    other = FragmentVariant(program=np.exp)

    @fragment_benchmark(inputs=[np.ones(3)], also={"other": other}, kernels=False)
    def work(x: Any) -> Any:
        return x

    assert isinstance(work, FragmentBenchmark)
    assert list(work.candidates) == ["work", "other"]
    assert work.variant("other") == (np.exp, None)
    assert not work.kernels
    assert Path(work.declared.rpartition(":")[0]).name == "test_declare.py"


@pytest.mark.parametrize(
    "fields",
    [
        {"candidates": []},
        {"candidates": {"": print}},
        {"candidates": {"a": 3}},
        {"inputs": 3},
        {"name": ""},
        {"flops": -1.0},
        {"bytes_moved": -1},
    ],
)
def test_declarations_that_make_no_sense_are_refused(fields: dict[str, Any]) -> None:
    given: dict[str, Any] = {"name": "a", "candidates": {"a": print}, "inputs": []}
    with pytest.raises(InvalidValue):
        FragmentBenchmark(**{**given, **fields})
    renamed = {("arguments" if k == "inputs" else k): v for k, v in fields.items()}
    given["arguments"] = given.pop("inputs")
    with pytest.raises(InvalidValue):
        KernelBenchmark(**{**given, **renamed})


def test_an_output_knows_its_size() -> None:
    assert Output((3, 4), "f64").byte_size == 96
    assert Output(()).byte_size == 4
    assert Output((1 << 30, 1 << 30)).byte_size == 1 << 62
    assert Output((5,)).dtype is DType.F32
    with pytest.raises(InvalidValue):
        Output((-1,))
