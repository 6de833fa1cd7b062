"""The commands and their options, and what becomes of their errors."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, CycloptsError, MissingArgumentError, Parameter
from cyclopts.validators import Number

from accy_async import __version__, run
from accy_async.cli.bench import bench
from accy_async.cli.cache import cache_app
from accy_async.cli.devices import (
    device_rows,
    devices_document,
)
from accy_async.cli.devices import show as show_devices
from accy_async.cli.exits import ExitCode, UsageError
from accy_async.cli.options import Json, Traceback, check_backend
from accy_async.cli.terminal import (
    Interrupts,
    console,
    leave_broken_pipe,
    report_error,
    write_json,
)
from accy_async.cli.trace import trace
from accy_async.cli.tune import tune_app

__all__ = ["run_command"]

_HELP = """Run kernels as structured concurrency: see what can run here, and see it run.

Exit codes:
  0    all is well
  1    a check failed: a result is wrong, or something was left
  2    an option or an input file cannot be used
  3    no backend, or not the one asked for, can run here
  4    the device or the system failed
  70   a fault of accy_async itself
  130  interrupted (143: killed politely)
"""


def devices(*, json: Json = False, traceback: Traceback = False) -> int:
    """Show what is here, what can run, and why the rest cannot."""
    del traceback
    rows = device_rows()
    if json:
        write_json(devices_document(rows))
    else:
        console().print(show_devices(rows))
    can_run = any(row.is_available and row.is_device for row in rows)
    return ExitCode.OK if can_run else ExitCode.NO_BACKEND


def demo(
    *,
    backend: str = "auto",
    length: Annotated[int | None, Parameter(validator=Number(gte=0, lte=2**31))] = None,
    input: Path | None = None,  # noqa: A002 - the option is called --input
    launches: Annotated[int, Parameter(validator=Number(gte=1, lte=100_000))] = 64,
    streams: Annotated[int, Parameter(validator=Number(gte=1, lte=256))] = 4,
    loop: Literal["asyncio", "trio", "uvloop"] = "asyncio",
    json: Json = False,
    traceback: Traceback = False,
) -> int:
    """Scan values natively, check them, cancel a launch, and show nothing is left.

    A three-stage scan pipeline is launched many times from a loaded pool, on
    several streams, and timed beside numpy.

    Parameters
    ----------
    backend: str
        What to run on: auto (the best here), cuda, vulkan, cpu, or recording (executes
        nothing).
    length: int
        How many values of the made-up sensor signal to scan; 10,000,000 if left out.
    input: Path
        A .npy file to scan instead: one dimension of float32, int32 or uint32.
    launches: int
        How often to scan them.
    streams: int
        On how many streams.
    loop: str
        The event loop.
    """
    del traceback
    from accy_async.cli.demo import DemoOptions, run_demo
    from accy_async.cli.demo.progress import Bar
    from accy_async.cli.demo.report import demo_document, exit_code
    from accy_async.cli.demo.report import show as show_demo

    if input is not None and length is not None:
        raise UsageError("--length is for the made-up signal, not for --input")
    check_backend("--backend", backend)
    options = DemoOptions(
        backend=backend,
        length=DemoOptions().length if length is None else length,
        input=input,
        launches=launches,
        streams=streams,
        loop=loop,
    )
    interrupts = Interrupts()
    with Bar(console(stderr=True), is_shown=not json) as bar:
        try:
            outcome = run(interrupts.run, lambda: run_demo(options, bar), loop=loop)
        except ImportError as error:
            if loop != "uvloop" or error.name != "uvloop":
                raise
            raise UsageError(
                "--loop uvloop: it is not installed; pip install uvloop"
            ) from error
        except BaseException as error:
            if interrupts.signum is None:
                raise
            return interrupts.report(error, as_json=json)
    if json:
        write_json(demo_document(outcome))
    else:
        console().print(show_demo(outcome))
    return exit_code(outcome)


_COMMANDS: dict[str, Callable[..., int]] = {
    "devices": devices,
    "demo": demo,
    "bench": bench,
    "trace": trace,
}


_FILES = {
    "bench": "that declares benchmarks",
    "trace": "as save_trace writes it",
}
"""The commands that take a file, and what is in it."""


def _app() -> App:
    app = App(
        name="accy-async",
        help=_HELP,
        version=f"accy-async {__version__}",
        help_format="plaintext",
    )
    for command in _COMMANDS.values():
        app.command(command)
    app.command(cache_app())
    app.command(tune_app())
    return app


def _usage(error: CycloptsError, arguments: Sequence[str]) -> str:
    """What is wrong with the arguments, and whose help says more."""
    text = " ".join(str(error).split())
    command = next(
        (name for name in arguments if name in (*_COMMANDS, "cache", "tune")), None
    )
    if command in _FILES and isinstance(error, MissingArgumentError):
        text = f"{command} expects a FILE, {_FILES[command]}"
    asked = f"accy-async {command}" if command else "accy-async"
    return f"{text} ({asked} --help says more)"


def run_command(arguments: Sequence[str]) -> int:
    """Run the command with these arguments; returns the exit code."""
    as_json, with_traceback = "--json" in arguments, "--traceback" in arguments
    try:
        command, bound, *_ = _app().parse_args(
            list(arguments), print_error=False, exit_on_error=False
        )
        code = command(*bound.args, **bound.kwargs)
        sys.stdout.flush()
    except CycloptsError as error:
        usage = UsageError(_usage(error, arguments))
        return report_error(usage, as_json=as_json, with_traceback=with_traceback)
    except KeyboardInterrupt as error:  # before the event loop, or a second one
        return Interrupts().report(error, as_json=as_json)
    except BrokenPipeError:
        return leave_broken_pipe()
    except Exception as error:  # noqa: BLE001 - said in one line, with an exit code
        return report_error(error, as_json=as_json, with_traceback=with_traceback)
    return code if isinstance(code, int) else ExitCode.OK
