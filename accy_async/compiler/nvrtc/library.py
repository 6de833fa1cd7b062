"""The only door to NVRTC: source and options in, code and log out.

The bindings are imported and the library is looked for when something is compiled.
NVRTC may be called from several threads at once, and the bindings give up the
interpreter lock while it works.

Source: NVRTC 13 documentation, "User Interface".
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from accy_async.errors import BackendUnavailable, CompilationError

__all__ = [
    "Compiled",
    "compile_program",
    "nvrtc_architectures",
    "nvrtc_identity",
    "nvrtc_version",
    "toolkit_folders",
]

_INSTALL = "install it by: pip install 'accy-async[nvrtc]'"

_DIAGNOSTIC = re.compile(
    r"^(?P<source>.+?)\((?P<line>\d+)\): (?:catastrophic )?error(?: [^:]*)?: "
    r"(?P<text>.*)$",
    re.MULTILINE,
)
_OF_A_NAME = re.compile(r'Input name expression was: "\s*(?P<entry>.*?)\s*"')
_PLAIN = re.compile(
    r"^(?:ptxas (?:error|fatal)|nvrtc: error)\s*: (?P<text>.*)$", re.MULTILINE
)
_NAME_MAP = "__nv_name_map"


@attrs.frozen
class Compiled:
    """What NVRTC made: the code, each entry's name in it, and what it said."""

    code: bytes
    names: dict[str, str]
    log: str


def nvrtc_version() -> tuple[int, int]:
    """Major and minor of the NVRTC that is installed.

    Raises:
        BackendUnavailable: it is not; the message says what to install.
    """
    nvrtc = _nvrtc()
    result, major, minor = nvrtc.nvrtcVersion()
    _check(nvrtc, result, "nvrtcVersion")
    return int(major), int(minor)


def nvrtc_architectures() -> tuple[str, ...]:
    """The architectures that it makes code for, as ``"sm_90"``, the oldest first.

    Those with a letter, as ``"sm_90a"``, come with their number.

    Raises:
        BackendUnavailable: it is not installed.
    """
    nvrtc = _nvrtc()
    result, numbers = nvrtc.nvrtcGetSupportedArchs()
    _check(nvrtc, result, "nvrtcGetSupportedArchs")
    return tuple(f"sm_{number}" for number in numbers)


@functools.cache
def nvrtc_identity() -> tuple[int, int, str, int]:
    """The version, the library's file name and its size, which tells builds apart."""
    from cuda import pathfinder

    major, minor = nvrtc_version()
    path = Path(pathfinder.load_nvidia_dynamic_lib("nvrtc").abs_path)
    try:
        size = path.stat().st_size
    except OSError:
        size = 0
    return major, minor, path.name, size


@functools.cache
def toolkit_folders() -> tuple[Path, ...]:
    """Where CUDA's own headers are, as ``cuda_fp16.h``; none if nowhere."""
    from cuda import pathfinder

    try:
        found = pathfinder.find_nvidia_header_directory("cudart")
    except (AttributeError, RuntimeError):  # before pathfinder 1.3, or unsure
        return ()
    return (Path(found),) if found else ()


def compile_program(
    source: str,
    name: str,
    entries: Sequence[str],
    options: Sequence[str],
    headers: Mapping[str, str],
    *,
    wants_ptx: bool,
) -> Compiled:
    """Compile one program.

    Raises:
        CompilationError: NVRTC refused it.
        BackendUnavailable: NVRTC is not installed.
    """
    nvrtc = _nvrtc()
    texts = [text.encode() for text in headers.values()]
    names = [header.encode() for header in headers]
    result, program = nvrtc.nvrtcCreateProgram(
        source.encode(), name.encode(), len(texts), texts, names
    )
    _check(nvrtc, result, "nvrtcCreateProgram")
    try:
        for entry in entries:
            (result,) = nvrtc.nvrtcAddNameExpression(program, entry.encode())
            _check(nvrtc, result, "nvrtcAddNameExpression")
        given = [option.encode() for option in options]
        (result,) = nvrtc.nvrtcCompileProgram(program, len(given), given)
        log = _text(nvrtc, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)(
            program
        )
        said = log.rstrip(b"\0").decode(errors="replace").strip()
        if result != 0:
            raise _refusal(name, said, _word(nvrtc, result))
        if wants_ptx:
            get = _text(nvrtc, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
            code = get(program).rstrip(b"\0")
        else:
            get = _text(nvrtc, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
            code = get(program)
        lowered = {}
        for entry in entries:
            result, found = nvrtc.nvrtcGetLoweredName(program, entry.encode())
            _check(nvrtc, result, "nvrtcGetLoweredName")
            lowered[entry] = found.decode()
        return Compiled(code, lowered, said)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _nvrtc() -> Any:  # noqa: ANN401 - the bindings have no types
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise BackendUnavailable(
            f"CUDA C++: the package cuda-bindings is not installed; {_INSTALL}"
        ) from error
    try:
        nvrtc.nvrtcVersion()
    except RuntimeError as error:  # the library is looked for at the first call
        raise BackendUnavailable(
            f"CUDA C++: the library NVRTC was not found; {_INSTALL}"
        ) from error
    return nvrtc


def _text(nvrtc: Any, get_size: Any, get: Any) -> Any:  # noqa: ANN401
    def read(program: Any) -> bytes:  # noqa: ANN401
        result, size = get_size(program)
        _check(nvrtc, result, get_size.__name__)
        out = bytes(size)  # the bindings have the library write into it
        (result,) = get(program, out)
        _check(nvrtc, result, get.__name__)
        return out

    return read


def _check(nvrtc: Any, result: Any, call: str) -> None:  # noqa: ANN401
    if result != 0:
        raise CompilationError(f"{call}: {_word(nvrtc, result)}")


def _word(nvrtc: Any, result: Any) -> str:  # noqa: ANN401
    _, text = nvrtc.nvrtcGetErrorString(result)
    return text.decode() if isinstance(text, bytes) else str(text)


def _refusal(name: str, log: str, word: str) -> CompilationError:
    """The error of a compile that failed: its first complaint, and the whole log."""
    complaints = list(_DIAGNOSTIC.finditer(log))
    of_source = [one for one in complaints if one["source"] != _NAME_MAP]
    if of_source:
        first = of_source[0]
        where, line = first["source"], int(first["line"])
        return CompilationError(
            f"{where}, line {line}: {first['text']}", log=log, source=where, line=line
        )
    entry = _OF_A_NAME.search(log)
    if complaints and entry is not None:
        text = complaints[0]["text"].partition(" Input name expression")[0]
        return CompilationError(
            f"{name}: entry {entry['entry']!r}: {text}", log=log, source=name
        )
    plain = _PLAIN.search(log)
    text = word if plain is None else plain["text"]
    return CompilationError(f"{name}: {text}", log=log, source=name)
