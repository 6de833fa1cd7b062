"""The command as a whole: help, version, errors, exit codes."""

from __future__ import annotations

import subprocess
import sys

import pytest

import accy_async
from accy_async.backends.catalogue import BACKEND_NAMES
from accy_async.cli import app as app_module
from accy_async.cli.exits import ExitCode, UsageError, exit_code_of
from accy_async.errors import (
    AccyError,
    BackendUnavailable,
    DeviceError,
    GraphError,
    OutOfMemory,
)
from tests.cli.conftest import Run


def test_version_names_the_command(run: Run) -> None:
    ended = run("--version")
    assert (ended.code, ended.out) == (0, f"accy-async {accy_async.__version__}\n")


def test_help_names_commands_and_exit_codes(run: Run) -> None:
    """Whoever asks for help, or for nothing, learns what there is."""
    ended = run("--help")
    assert ended.code == 0
    for words in ("devices", "demo", "Exit codes", "130", "--version"):
        assert words in ended.out
    assert run().out == ended.out


@pytest.mark.parametrize("command", ["devices", "demo"])
def test_help_of_a_command_names_its_options(run: Run, command: str) -> None:
    ended = run(command, "--help")
    assert ended.code == 0
    assert "--json" in ended.out
    assert "--traceback" in ended.out
    assert ("--launches" in ended.out) == (command == "demo")


@pytest.mark.parametrize(
    "arguments",
    [
        ("frob",),
        ("demo", "--frob"),
        ("demo", "--length", "many"),
        ("demo", "--length", "-1"),
        ("demo", "--length", str(2**31 + 1)),
        ("demo", "--launches", "0"),
        ("demo", "--streams", "0"),
        ("demo", "--streams", "257"),
        ("demo", "--loop", "gevent"),
        ("demo", "--backend", "abacus"),
        ("demo", "--length", "5", "--input", "x.npy"),
        ("demo", "stray"),
        ("devices", "--length", "5"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(
    run: Run, arguments: tuple[str, ...]
) -> None:
    ended = run(*arguments)
    assert ended.code == ExitCode.USAGE
    assert ended.out == ""
    assert ended.err.startswith("accy-async: ")
    assert ended.err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("frob",), "(accy-async --help says more)"),
        (("demo", "--frob"), "(accy-async demo --help says more)"),
        (("devices", "--frob"), "(accy-async devices --help says more)"),
        (("trace", "--json"), "trace expects a FILE"),
        (("trace",), "(accy-async trace --help says more)"),
    ],
)
def test_wrong_usage_points_to_the_help_that_says_more(
    run: Run, arguments: tuple[str, ...], words: str
) -> None:
    assert words in run(*arguments).err


def test_help_of_the_demo_names_every_backend(run: Run) -> None:
    """In the option's own words, before its default."""
    text = run("demo", "--help").out.partition("--length")[0]
    assert all(name in text for name in BACKEND_NAMES)


def test_wrong_usage_is_a_document_where_that_is_wanted(run: Run) -> None:
    ended = run("demo", "--backend", "abacus", "--json")
    assert ended.code == ended.document["exit_code"] == ExitCode.USAGE
    assert ended.document["error"]["type"] == "UsageError"
    assert "abacus" in ended.document["error"]["message"]


def test_backend_without_its_package_is_exit_code_3(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vulkan", None)
    ended = run("demo", "--backend", "vulkan")
    assert ended.code == ExitCode.NO_BACKEND
    assert "install accy-async[vulkan]" in ended.err


def test_backend_whose_driver_is_missing_is_exit_code_3(
    run: Run, without_cuda: None
) -> None:
    ended = run("demo", "--backend", "cuda")
    assert ended.code == ExitCode.NO_BACKEND
    assert "no NVIDIA driver is installed" in ended.err


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("u"), ExitCode.USAGE),
        (BackendUnavailable("b"), ExitCode.NO_BACKEND),
        (OutOfMemory("m"), ExitCode.FAILED),
        (MemoryError(), ExitCode.FAILED),
        (DeviceError("d"), ExitCode.FAILED),
        (GraphError("g"), ExitCode.FAILED),
        (KeyError("k"), ExitCode.INTERNAL),
        (ExceptionGroup("e", [DeviceError("d"), OutOfMemory("m")]), ExitCode.FAILED),
        (ExceptionGroup("e", [DeviceError("d"), KeyError("k")]), ExitCode.INTERNAL),
    ],
)
def test_error_has_its_exit_code(error: Exception, code: ExitCode) -> None:
    assert exit_code_of(error) is code


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (DeviceError("it broke", kernel="k"), "accy-async: it broke [kernel=k]\n"),
        (KeyError("k"), "accy-async: KeyError: 'k' (a fault of accy_async; "),
        (
            ExceptionGroup("e", [AccyError("a"), AccyError("b\nc")]),
            "accy-async: a; b c",
        ),
    ],
)
def test_error_of_a_command_is_one_line(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, said: str
) -> None:
    def fail() -> list[object]:
        raise error

    monkeypatch.setattr(app_module, "device_rows", fail)
    ended = run("devices")
    assert ended.err.startswith(said)
    assert ended.err.count("\n") == 1
    assert "Traceback" not in ended.err
    traced = run("devices", "--traceback")
    assert "Traceback" in traced.err
    assert traced.code == ended.code == exit_code_of(error)


def test_module_is_the_command() -> None:
    """``python -m accy_async`` does the same."""
    result = subprocess.run(
        [sys.executable, "-m", "accy_async", "--version"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == f"accy-async {accy_async.__version__}\n"


def test_reader_who_goes_away_is_no_fault() -> None:
    """A closed pipe ends the command quietly."""
    result = subprocess.run(
        ["sh", "-c", f"{sys.executable} -m accy_async devices | true"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.stderr == ""
