"""``accy-async demo --input``: what can be scanned is, the rest is refused by name."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from accy_async.cli.demo.source import read_source
from accy_async.cli.exits import ExitCode
from tests.cli.conftest import Run

F32 = np.linspace(-5, 5, 3000, dtype=np.float32)


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        (F32, "f32"),
        (np.arange(-1500, 1500, dtype=np.int32), "i32"),
        (np.full(3000, 2**32 - 1, np.uint32), "u32"),
        (F32.astype(">f4"), "f32"),
        (F32[:0], "f32"),
        (F32[:1], "f32"),
        (np.asfortranarray(F32[::3]), "f32"),
    ],
    ids=["f32", "i32", "u32", "big-endian", "empty", "one", "strided"],
)
def test_input_is_scanned(
    run: Run, tmp_path: Path, values: np.ndarray, dtype: str
) -> None:
    path = tmp_path / "values.npy"
    np.save(path, values)
    ended = run("demo", "--input", path, "--launches", 5, "--json")
    assert ended.code == 0, ended.err
    document = ended.document
    assert document["passed"]
    assert document["input"]["dtype"] == dtype
    assert document["input"]["length"] == len(values)
    assert document["check"]["checked"] == 5
    assert "values.npy" in document["input"]["description"]


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 3.4e38])
def test_input_that_is_not_finite_is_scanned(
    run: Run, tmp_path: Path, bad: float
) -> None:
    """The bits are compared all the same; the bound as far as it means something."""
    values = F32.copy()
    values[1000:1002] = bad
    path = tmp_path / "values.npy"
    np.save(path, values)
    ended = run("demo", "--input", path, "--launches", 3, "--json")
    assert ended.code == 0, ended.err
    check = ended.document["check"]
    assert (check["checked"], check["wrong"]) == (3, 0)
    assert 1000 <= check["distance"]["values"] <= 1001
    text = " ".join(run("demo", "--input", path, "--launches", 3).out.split())
    assert "values before the first NaN, infinity or overflow" in text


def test_input_report_of_integers(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "counts.npy"
    np.save(path, np.full(2000, 2**31 - 1, np.int32))
    text = " ".join(run("demo", "--input", path, "--launches", 3).out.split())
    assert "and are numpy.cumsum's, which wraps as they do" in text


def _header(text: str) -> bytes:
    body = text.encode() + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(body)) + body


REFUSED = {
    "text": (b"1 2 3\n", "no .npy file"),
    "nothing": (b"", "no .npy file"),
    "zip": (b"PK\x03\x04" + bytes(60), "no .npy file"),
    "only magic": (b"\x93NUMPY", "--input"),
    "unknown version": (b"\x93NUMPY\x09\x00" + bytes(60), "version 9.0"),
    "code in the header": (_header("__import__('os').getpid()"), "--input"),
    "huge header": (
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**31) + bytes(99),
        "--input",
    ),
    "truncated": (
        _header("{'descr': '<f4', 'fortran_order': False, 'shape': (100,), }")
        + bytes(396),
        "it is truncated: its header says 400 bytes of values, 396 are there",
    ),
    "trailing bytes": (
        _header("{'descr': '<f4', 'fortran_order': False, 'shape': (100,), }")
        + bytes(1401),
        "it has 1,001 bytes after its values",
    ),
    "cut in its header": (_header("{'descr': '<f4'}")[:-3], "--input"),
    "more than there is memory": (
        _header("{'descr': '<f4', 'fortran_order': False, 'shape': (10**17,), }"),
        "--input",
    ),
    "a size beyond 64 bits": (
        _header(
            "{'descr': '<f4', 'fortran_order': False, "
            "'shape': (100000000000000000000000,), }"
        ),
        "--input",
    ),
    "a negative size": (
        _header("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,), }"),
        "--input",
    ),
    "a pickle": (
        _header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }")
        + b"cos\nsystem\n(S'touch /tmp/never'\ntR.",
        "it holds Python objects, which are never loaded",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_file_that_is_no_array_is_refused(run: Run, tmp_path: Path, name: str) -> None:
    data, words = REFUSED[name]
    path = tmp_path / "values.npy"
    path.write_bytes(data)
    ended = run("demo", "--input", path)
    assert ended.code == ExitCode.USAGE, ended.err
    assert ended.out == ""
    assert words in ended.err
    assert str(path) in ended.err
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (F32.astype(np.float64), "float64, the scan takes float32, int32 or uint32"),
        (F32.astype(np.float16), "float16"),
        (F32.astype(np.int64), "int64"),
        (F32 > 0, "bool"),
        (F32.astype(np.complex64), "complex64"),
        (np.array(["a", "b"]), "the scan takes"),
        (np.zeros(3, [("x", "f4")]), "the scan takes"),
        (np.zeros(3, "M8[s]"), "the scan takes"),
        (np.zeros((3, 4), np.float32), "its shape is (3, 4), the scan takes one"),
        (np.zeros((), np.float32), "its shape is ()"),
        (np.array([{}, None], object), "Python objects, which are never loaded"),
    ],
)
def test_array_of_another_kind_is_refused(
    run: Run, tmp_path: Path, values: np.ndarray, words: str
) -> None:
    path = tmp_path / "values.npy"
    np.save(path, values, allow_pickle=True)
    ended = run("demo", "--input", path, "--json")
    assert ended.code == ended.document["exit_code"] == ExitCode.USAGE
    assert words in ended.err


def test_archive_is_refused(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "values.npz"
    np.savez(path, values=F32)
    assert "no .npy file" in run("demo", "--input", path).err


def test_missing_file_and_folder_are_refused(run: Run, tmp_path: Path) -> None:
    ended = run("demo", "--input", tmp_path / "nowhere.npy")
    assert ended.code == ExitCode.USAGE
    assert "does not exist" in ended.err
    assert "is no file" in run("demo", "--input", tmp_path).err


def test_source_is_in_memory_and_does_not_follow_the_file(tmp_path: Path) -> None:
    """Whoever writes to the file during the demo changes nothing."""
    path = tmp_path / "values.npy"
    np.save(path, F32)
    source = read_source(path)
    np.save(path, F32 + 1)
    assert np.array_equal(source.values, F32)
    assert type(source.values) is np.ndarray
