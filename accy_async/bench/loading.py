"""Reading a benchmark file: it is run, and what it declares is found by its names."""

from __future__ import annotations

import sys
import traceback
import types
from collections import Counter
from pathlib import Path

from accy_async.bench.declare import Benchmark, FragmentBenchmark, KernelBenchmark
from accy_async.errors import InvalidProgram

__all__ = ["InvalidBenchmark", "load_benchmarks", "where_of"]


class InvalidBenchmark(InvalidProgram):
    """A benchmark file that cannot be used; the message begins with file and line."""


def load_benchmarks(file: Path) -> tuple[Benchmark, ...]:
    """Run a file, and return the benchmarks among its global names, in order.

    Lists and tuples of benchmarks count too. The file's folder can be imported from.

    Raises:
        InvalidBenchmark: it cannot be read or run, declares none, or two of one name.
    """
    name = f"accy_async_bench_{file.stem}"
    module = types.ModuleType(name)
    module.__file__ = str(file)
    folder = str(file.resolve().parent)
    sys.path.insert(0, folder)
    sys.modules[name] = module  # attrs, pickle and inspect look there
    try:
        code = compile(file.read_bytes(), str(file), "exec")
        exec(code, module.__dict__)
    except OSError as error:
        raise InvalidBenchmark(f"{file}: {error.strerror or error}") from error
    except SyntaxError as error:
        where = file if error.filename != str(file) else f"{file}:{error.lineno}"
        raise InvalidBenchmark(f"{where}: {error.msg}") from error
    except (Exception, SystemExit) as error:
        raise InvalidBenchmark(
            f"{where_of(error, file)}: {type(error).__name__}: {error}"
        ) from error
    finally:
        del sys.modules[name]
        if folder in sys.path:
            sys.path.remove(folder)
    found = _declared(module)
    if not found:
        raise InvalidBenchmark(
            f"{file}: it declares no benchmark; accy_async.bench has "
            "fragment_benchmark, FragmentBenchmark and KernelBenchmark"
        )
    (most, count), *_ = Counter(one.name for one in found).most_common()
    if count > 1:
        lines = [one.declared for one in found if one.name == most]
        raise InvalidBenchmark(
            f"{lines[1]}: a second benchmark is called {most!r}, after {lines[0]}"
        )
    return tuple(found)


def _declared(module: types.ModuleType) -> list[Benchmark]:
    found: dict[int, Benchmark] = {}
    for name, value in vars(module).items():
        if name.startswith("_"):
            continue
        several = value if isinstance(value, (list, tuple)) else (value,)
        for one in several:
            if isinstance(one, (FragmentBenchmark, KernelBenchmark)):
                found.setdefault(id(one), one)
    return list(found.values())


def where_of(error: BaseException, file: Path | str, fallback: str = "") -> str:
    """The line of a file that an error passed through last; the file for none."""
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(file)
    ]
    return f"{file}:{lines[-1]}" if lines else fallback or str(file)


def shortened(benchmark: Benchmark) -> str:
    """Where it was declared, the folder left out."""
    return Path(benchmark.declared).name
