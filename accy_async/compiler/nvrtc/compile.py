"""Compiling CUDA C++: checks, the cache, the compiler."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import attrs

from accy_async.artifact.fingerprint import digest
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.store import ArtifactStore, default_store
from accy_async.compiler.nvrtc import library
from accy_async.compiler.nvrtc.binary import CudaBinary
from accy_async.compiler.nvrtc.headers import inputs_of
from accy_async.errors import (
    CompilationError,
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    UnsupportedOperation,
)

__all__ = ["CACHE_SCHEMA", "compile_cuda"]

CACHE_SCHEMA = "cuda_cpp-1"
"""What `CudaBinary.to_bytes` gives, under the digest of all that made it."""

_FORMATS = (ArtifactFormat.CUDA_CUBIN, ArtifactFormat.CUDA_PTX)
_ARCHITECTURE = re.compile(r"sm_(\d{2,3})[af]?")

_TAKEN_OPTIONS = (
    # what they begin with, and what says it instead
    (("-arch", "--gpu-architecture"), "architecture=..."),
    (("-I", "--include-path"), "include_dirs=..."),
    (("-include", "--pre-include"), "an #include in the source"),
    (("-dlto", "--dlink-time-opt", "-gen-opt-lto", "--gen-opt-lto"), "no such code"),
    (("-optix-ir", "--optix-ir"), "no such code"),
    (("-pch", "--pch", "-create-pch", "--create-pch"), "the cache"),
    (("-use-pch", "--use-pch", "-time", "--time"), "the cache"),
)

_log = logging.getLogger("accy_async.compiler.nvrtc")


@attrs.frozen
class _Request:
    """A compile, checked."""

    source: str
    name: str
    entries: tuple[str, ...]
    architecture: str
    options: tuple[str, ...]
    folders: tuple[Path, ...]
    headers: dict[str, str]
    format: ArtifactFormat


def compile_cuda(
    source: str | Path,
    entries: str | Sequence[str],
    *,
    architecture: str,
    options: Sequence[str] = (),
    include_dirs: Sequence[str | os.PathLike[str]] = (),
    headers: Mapping[str, str] | None = None,
    name: str | None = None,
    format: ArtifactFormat | str = ArtifactFormat.CUDA_CUBIN,
    cache: bool | ArtifactStore = True,
) -> CudaBinary:
    """Compile CUDA C++, or find on disk what the same compile gave before.

    Args:
        source: the text, or the `Path` of a file, whose folder is then searched
            first for what it includes.
        entries: the kernels wanted, as C++ names them: ``"add"``,
            ``"scale<float, 4>"``, ``"mine::step"``. Templates need no instance in
            the source.
        architecture: what it is for, as ``"sm_90"``, or ``"sm_90a"`` for what only
            that architecture has. No device is needed.
        options: NVRTC's, as ``"-lineinfo"``, ``"-DN=4"``, ``"--std=c++20"``.
        include_dirs: folders to search for what is included. CUDA's own headers
            are found without them, where they are installed.
        headers: texts that can be included by their names.
        name: what messages call the source; ``kernel.cu``, or the file's path.
        format: ``CUDA_CUBIN``, or ``CUDA_PTX`` for newer devices as well.
        cache: True for `accy_async.artifact.default_store`, False for none, or a
            store. The key is made of the source, the options, every file that an
            include may mean, the compiler and the architecture. What includes a
            computed name, or uses ``__DATE__`` or ``__TIME__``, is not kept.

    Raises:
        CompilationError: the compiler refused it; with its log, and the source's
            name and the line of the first error.
        UnsupportedOperation: this NVRTC makes no code for the architecture, or the
            format is no format of CUDA.
        BackendUnavailable: NVRTC is not installed.
        InvalidValue, InvalidType: an argument is wrong.
        OSError: the source's file cannot be read.

    Blocks for 30 ms to some seconds, or 0.2 ms where it is found: call it in a
    worker thread, or use `Session.compile_cuda`. It gives up the interpreter lock.
    """
    request = _checked(
        source, entries, architecture, options, include_dirs, headers, name, format
    )
    if not isinstance(cache, (bool, ArtifactStore)):
        raise InvalidType("compile_cuda.cache", cache, "True, False or a store")
    store = default_store() if cache is True else cache or None
    key = None if store is None else _key(request)
    if store is not None and key is not None:
        kept = store.get(CACHE_SCHEMA, key)
        if kept is not None:
            try:
                return CudaBinary.from_bytes(kept, is_from_cache=True)
            except InvalidArtifact as error:
                _log.warning("cache entry %s not used: %s", key, error)
    binary = _compile(request)
    # A header that changed meanwhile: nobody knows which of both was compiled.
    if store is not None and key is not None and key == _key(request):
        store.put(CACHE_SCHEMA, key, binary.to_bytes())
    return binary


def _compile(request: _Request) -> CudaBinary:
    wants_ptx = request.format is ArtifactFormat.CUDA_PTX
    _check_architecture(request.architecture)
    target = request.architecture
    if wants_ptx:
        target = target.replace("sm_", "compute_")
    compiled = library.compile_program(
        request.source,
        request.name,
        request.entries,
        [
            f"--gpu-architecture={target}",
            # The folder that the process happens to be in is no place to search.
            "--no-source-include",
            *(f"--include-path={folder}" for folder in request.folders),
            *request.options,
        ],
        request.headers,
        wants_ptx=wants_ptx,
    )
    if not compiled.code:
        raise CompilationError(
            f"{request.name}: these options leave no {request.format}",
            log=compiled.log,
            source=request.name,
        )
    major, minor = library.nvrtc_version()
    return CudaBinary(
        format=request.format,
        architecture=request.architecture,
        payload=compiled.code.decode() if wants_ptx else compiled.code,
        entries=compiled.names,
        log=compiled.log,
        compiler=f"NVRTC {major}.{minor}",
    )


def _check_architecture(architecture: str) -> None:
    known = library.nvrtc_architectures()
    if architecture.rstrip("af") not in known:
        major, minor = library.nvrtc_version()
        raise UnsupportedOperation(
            f"NVRTC {major}.{minor} makes no code for {architecture}, only for "
            + ", ".join(known)
        )


def _key(request: _Request) -> str | None:
    """The fingerprint of everything that the result depends on, if it is known."""
    inputs = inputs_of(request.source, request.folders, request.headers)
    if inputs is None:
        return None
    return digest(
        (
            request.source,
            request.name,
            request.entries,
            request.architecture,
            request.options,
            tuple(str(folder) for folder in request.folders),
            request.headers,
            request.format,
            inputs,
            library.nvrtc_identity(),
        )
    )


def _checked(
    source: str | Path,
    entries: str | Sequence[str],
    architecture: str,
    options: Sequence[str],
    include_dirs: Sequence[str | os.PathLike[str]],
    headers: Mapping[str, str] | None,
    name: str | None,
    format: ArtifactFormat | str,
) -> _Request:
    folders = _folders(include_dirs)
    if isinstance(source, Path):
        name = str(source) if name is None else name
        folders = (source.absolute().parent, *folders)
        try:
            source = source.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidValue(
                "compile_cuda.source", name, f"a file in UTF-8: {error}"
            ) from error
    name = "kernel.cu" if name is None else name
    _check_text("source", source)
    _check_text("name", name)
    wanted = (entries,) if isinstance(entries, str) else _texts("entries", entries)
    if not wanted:
        raise InvalidValue("compile_cuda.entries", entries, "at least one kernel")
    for entry in wanted:
        _check_text("entries", entry)
    _check_text("architecture", architecture)
    if not _ARCHITECTURE.fullmatch(architecture):
        raise InvalidValue(
            "compile_cuda.architecture", architecture, "an architecture as 'sm_90'"
        )
    chosen = artifact_format(format)
    if chosen not in _FORMATS:
        raise UnsupportedOperation(
            f"CUDA C++ becomes {_FORMATS[0]} or {_FORMATS[1]}, not {chosen}"
        )
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidType("compile_cuda.headers", headers, "texts by their names")
    texts = dict(headers or {})
    for title, text in texts.items():
        _check_text("headers", title)
        _check_text(f"headers[{title!r}]", text)
    return _Request(
        source=source,
        name=name,
        entries=tuple(dict.fromkeys(wanted)),
        architecture=architecture,
        options=_options(options),
        folders=(*folders, *library.toolkit_folders()),
        headers=texts,
        format=chosen,
    )


def _options(options: Sequence[str]) -> tuple[str, ...]:
    given = _texts("options", options)
    for option in given:
        _check_text("options", option)
        for beginnings, instead in _TAKEN_OPTIONS:
            if option.partition("=")[0] in beginnings or (
                option.startswith("-I") and "-I" in beginnings
            ):
                raise InvalidValue(
                    "compile_cuda.options", option, f"{instead} instead of it"
                )
    return given


def _folders(include_dirs: Sequence[str | os.PathLike[str]]) -> tuple[Path, ...]:
    if isinstance(include_dirs, (str, os.PathLike)) or not isinstance(
        include_dirs, Iterable
    ):
        raise InvalidType("compile_cuda.include_dirs", include_dirs, "several paths")
    folders = []
    for folder in include_dirs:
        if not isinstance(folder, (str, os.PathLike)):
            raise InvalidType("compile_cuda.include_dirs", folder, "a path")
        folders.append(Path(folder).absolute())
    return tuple(folders)


def _texts(field: str, given: Sequence[str]) -> tuple[str, ...]:
    if isinstance(given, (str, bytes)) or not isinstance(given, Iterable):
        raise InvalidType(f"compile_cuda.{field}", given, "several texts")
    return tuple(given)


def _has_surrogate(given: str) -> bool:
    """Whether a text is none in UTF-8."""
    try:
        given.encode()
    except UnicodeEncodeError:
        return True
    return False


def _check_text(field: str, given: object) -> None:
    expected = "text that is not empty and has no NUL and no lone surrogate"
    if not isinstance(given, str):
        raise InvalidType(f"compile_cuda.{field}", given, expected)
    if not given or "\0" in given or _has_surrogate(given):
        raise InvalidValue(f"compile_cuda.{field}", given, expected)
