"""Ctrl-C in the middle of the demo: exit code 130, no traceback, nothing left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

import accy_async
from accy_async.cli import app as app_module
from accy_async.cli.terminal import Interrupts
from accy_async.errors import GraceExpired
from tests.cli.conftest import Run

pytestmark = pytest.mark.skipif(
    sys.platform == "win32", reason="Windows has no signals to send"
)


def wait_until_at_work(process: subprocess.Popen[str]) -> None:
    """Return somewhere among its thousands of launches, however slow it starts."""
    tasks = Path(f"/proc/{process.pid}/task")
    if not tasks.is_dir():
        time.sleep(5)
        return
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and process.poll() is None:
        # The main thread, that of a stream (it comes with the first launch), a worker.
        if len(list(tasks.iterdir())) >= 3:
            return
        time.sleep(0.02)


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize(
    ("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)]
)
def test_signal_during_the_demo(loop: str, signum: signal.Signals, code: int) -> None:
    """It is said by the exit code and one line."""
    command = [sys.executable, "-m", "accy_async", "demo", "--backend", "cpu"]
    process = subprocess.Popen(
        [*command, "--launches", "3000", "--loop", loop],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},  # no threads of numpy's
    )
    wait_until_at_work(process)
    assert process.poll() is None
    process.send_signal(signum)
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, err
    assert out == ""
    assert err == "accy-async: interrupted; everything was given back\n"


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_signal_is_a_cancellation(loop: str) -> None:
    """The work is cancelled as any task is, and its cleanup runs."""
    interrupts, seen = Interrupts(), list[str]()

    async def work() -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
            await anyio.sleep(60)
        finally:
            seen.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        accy_async.run(interrupts.run, work, loop=loop)
    assert seen == ["cleaned up"]
    assert interrupts.signum is signal.SIGINT
    assert interrupts.exit_code == 130


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
@pytest.mark.parametrize("as_json", [False, True])
def test_trouble_in_leaving_is_told(
    loop: str, as_json: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """An interrupted command says what it could not give back."""
    interrupts = Interrupts()

    async def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        try:
            await anyio.sleep(60)
        except anyio.get_cancelled_exc_class():
            raise GraceExpired("the session", 5.0, ["buffer 3"]) from None

    with pytest.raises(KeyboardInterrupt) as caught:
        accy_async.run(interrupts.run, work, loop=loop)
    assert interrupts.report(caught.value, as_json=as_json) == 130
    out, err = capsys.readouterr()
    assert err.startswith("accy-async: interrupted; in leaving: the session: ")
    assert "buffer 3" in err
    assert (json.loads(out)["exit_code"] if as_json else out) == (
        130 if as_json else ""
    )


@pytest.mark.parametrize("loop", ["asyncio", "trio"])
def test_work_that_is_not_interrupted(loop: str) -> None:
    """Its result and its errors come through as they are."""

    async def work() -> int:
        await anyio.lowlevel.checkpoint()
        return 7

    async def fail() -> None:
        raise LookupError("its own")

    assert accy_async.run(Interrupts().run, work, loop=loop) == 7
    with pytest.raises(LookupError, match="its own"):
        accy_async.run(Interrupts().run, fail, loop=loop)


_IMPORTING = """
import os, signal, sys
from importlib.abc import MetaPathFinder
import accy_async.cli as command

class Signalling(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name == "cyclopts":
            try:
                os.kill(os.getpid(), signal.Signals[sys.argv.pop(1)])
            except BaseException:  # as libraries may, around what they import
                pass
            sys.exit(99)

sys.meta_path.insert(0, Signalling())
sys.exit(command.main())
"""


@pytest.mark.parametrize("as_json", [False, True])
@pytest.mark.parametrize(("signum", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_signal_while_importing(signum: str, code: int, as_json: bool) -> None:
    """It is said as at any other time, whoever catches everything around imports."""
    options = ["--json"] if as_json else []
    ended = subprocess.run(
        [sys.executable, "-c", _IMPORTING, signum, "devices", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == code, ended.stderr
    assert ended.stderr == "accy-async: interrupted; everything was given back\n"
    if as_json:
        document = json.loads(ended.stdout)
        assert document["exit_code"] == code
        assert document["error"]["type"] == "KeyboardInterrupt"
    else:
        assert ended.stdout == ""


@pytest.mark.parametrize("name", ["/usr/bin/accy-async", "other"])
def test_signal_before_the_command_is_there(name: str) -> None:
    """In the command's own process signals are told as soon as `early` is there."""
    program = (
        f"import os, signal, sys; sys.argv = [{name!r}]; import accy_async.cli.early; "
        "os.kill(os.getpid(), signal.SIGINT)"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = ended.stderr == "accy-async: interrupted; everything was given back\n"
    assert (ended.returncode == 130 and said) == (name != "other"), ended.stderr


def test_command_gives_the_handlers_back(run: Run) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    assert run("--version").code == 0
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_interrupt_outside_the_event_loop_is_told(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted() -> list[object]:
        raise KeyboardInterrupt

    monkeypatch.setattr(app_module, "device_rows", interrupted)
    ended = run("devices")
    assert ended.code == 130
    assert ended.err == "accy-async: interrupted; everything was given back\n"
