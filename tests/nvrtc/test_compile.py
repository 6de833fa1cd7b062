"""CUDA C++ becomes cubins without a driver, and errors say where."""

from __future__ import annotations

import builtins
import logging
import sys
import threading
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest

from accy_async.artifact import ArtifactFormat, ArtifactStore, FixedLaunch
from accy_async.backends import RecordingBackend
from accy_async.compiler.nvrtc import CudaBinary, compile_cuda, library, nvrtc_version
from accy_async.compiler.nvrtc.compile import CACHE_SCHEMA
from accy_async.errors import (
    BackendUnavailable,
    CompilationError,
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    UnsupportedOperation,
)
from accy_async.observe import SpanRecorder
from accy_async.session import open_session

SOURCE = """
template <class T> __global__ void scale(T* x, T by) { x[threadIdx.x] *= by; }
namespace mine { __global__ void step(int* x) { *x += 1; } }
extern "C" __global__ void plain(float* x) { int unused; *x = 1.0f; }
"""
LAUNCH = FixedLaunch(grid=(1, 1, 1), threadgroup=(32, 1, 1))


def compile_it(source: str | Path = SOURCE, **given: Any) -> CudaBinary:
    given = {"entries": "plain", "architecture": "sm_90", **given}
    return compile_cuda(source, **given)


def test_templates_namespaces_and_c_names_are_found() -> None:
    binary = compile_it(entries=["scale<float>", "mine::step", "plain"])
    assert binary.format is ArtifactFormat.CUDA_CUBIN
    assert isinstance(binary.payload, bytes)
    assert binary.payload.startswith(b"\x7fELF")
    assert binary.entry_name("plain") == "plain"
    for entry in ("scale<float>", "mine::step"):
        assert binary.entry_name(entry).encode() in binary.payload
    with pytest.raises(InvalidValue, match=r"scale<float>.*mine::step"):
        binary.entry_name("other")
    artifact = binary.artifact(
        "scale<float>", argument_count=2, scalar_argument_count=1
    )
    assert artifact.kernel_name == binary.entry_name("scale<float>")
    call = binary.kernel_call(
        "mine::step", target="mine.step", argument_count=1, launch=LAUNCH
    )
    assert (call.target, call.format) == ("mine.step", ArtifactFormat.CUDA_CUBIN)
    assert call.payload == binary.payload
    major, minor = nvrtc_version()
    assert binary.compiler == f"NVRTC {major}.{minor}"


def test_warnings_are_kept_from_the_cache_too() -> None:
    first, again = compile_it(), compile_it()
    assert (first.is_from_cache, again.is_from_cache) == (False, True)
    assert first == again
    assert 'variable "unused" was declared' in first.log
    assert again.log == first.log


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a", "sm_100"])
def test_architecture_is_free_and_its_own_entry(
    architecture: str, cache: ArtifactStore
) -> None:
    binary = compile_it(architecture=architecture)
    assert binary.architecture == architecture
    assert not compile_it(architecture="sm_90").is_from_cache
    assert len(cache.entries()) == 2


def test_ptx_can_be_asked_for() -> None:
    binary = compile_it(format="cuda_ptx", architecture="sm_80")
    assert isinstance(binary.payload, str)
    assert ".target sm_80" in binary.payload
    assert ".entry plain" in binary.payload


@pytest.mark.parametrize(
    ("source", "entries", "line", "words"),
    [
        ("\n__global__ void f() { g(); }", "f", 2, 'identifier "g" is undefined'),
        ('\n\n#include "missing.h"\n', "f", 3, '"missing.h"'),
        ("__global__ void f() {}", "nope", None, "entry 'nope'"),
        ("__device__ void f() {}", "f", None, "entry 'f'"),
        (
            "__global__ void f(int* x) { __shared__ char a[300000];\n"
            "a[threadIdx.x] = 1; __syncthreads(); *x = a[5]; }",
            "f",
            None,
            "too much shared data",
        ),
    ],
)
def test_error_has_source_line_and_log(
    source: str, entries: str, line: int | None, words: str, cache: ArtifactStore
) -> None:
    with pytest.raises(CompilationError) as raised:
        compile_it(source, entries=entries, name="mine.cu")
    error = raised.value
    assert (error.source, error.line) == ("mine.cu", line)
    first = str(error).splitlines()[0]
    assert first.startswith("mine.cu")
    assert words in first
    assert error.log
    assert error.log in str(error)
    assert cache.entries() == ()


def test_unknown_option_is_the_compilers_to_refuse() -> None:
    with pytest.raises(CompilationError, match="unrecognized option --frob"):
        compile_it(options=["--frob"])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"options": ["-arch=sm_80"]}, InvalidValue),
        ({"options": ["--gpu-architecture=sm_80"]}, InvalidValue),
        ({"options": ["-I/usr/include"]}, InvalidValue),
        ({"options": ["--pre-include=x.h"]}, InvalidValue),
        ({"options": ["-time=file"]}, InvalidValue),
        ({"options": "-lineinfo"}, InvalidType),
        ({"options": [3]}, InvalidType),
        ({"options": ["-D\0"]}, InvalidValue),
        ({"architecture": "90"}, InvalidValue),
        ({"architecture": "sm_90; rm"}, InvalidValue),
        ({"architecture": None}, InvalidType),
        ({"architecture": "sm_42"}, UnsupportedOperation),
        ({"format": "vulkan_spirv"}, UnsupportedOperation),
        ({"entries": []}, InvalidValue),
        ({"entries": [""]}, InvalidValue),
        ({"source": ""}, InvalidValue),
        ({"source": "int x;\0"}, InvalidValue),
        ({"source": b"int x;"}, InvalidType),
        ({"include_dirs": "folder"}, InvalidType),
        ({"include_dirs": [3]}, InvalidType),
        ({"headers": {"x.h": 3}}, InvalidType),
        ({"name": ""}, InvalidValue),
    ],
)
def test_wrong_arguments_are_refused(
    given: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        compile_it(**given)


def test_headers_are_part_of_the_key(tmp_path: Path) -> None:
    (tmp_path / "n.h").write_text("#define N 1")
    source = '#include "n.h"\nextern "C" __global__ void plain(int* x) { *x = N; }'

    def again(**given: Any) -> CudaBinary:
        return compile_it(source, include_dirs=[tmp_path], **given)

    first = again()
    assert again().is_from_cache
    (tmp_path / "n.h").write_text("#define N 2")
    second = again()
    assert not second.is_from_cache
    assert second.payload != first.payload
    assert not again(options=["-DOTHER"]).is_from_cache
    assert not again(name="other.cu").is_from_cache
    held = compile_it(source, headers={"n.h": "#define N 2"})
    assert not held.is_from_cache
    assert compile_it(source, headers={"n.h": "#define N 2"}).is_from_cache
    assert not compile_it(source, headers={"n.h": "#define N 3"}).is_from_cache


def test_header_that_changes_while_it_is_compiled_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: ArtifactStore
) -> None:
    header = tmp_path / "n.h"
    header.write_text("#define N 1")
    compile_program = library.compile_program

    def change(*given: Any, **more: Any) -> library.Compiled:
        header.write_text("#define N 2")
        return compile_program(*given, **more)

    monkeypatch.setattr(library, "compile_program", change)
    compile_it(
        '#include "n.h"\nextern "C" __global__ void plain(int* x) { *x = N; }',
        include_dirs=[tmp_path],
    )
    assert cache.entries() == ()


def test_computed_include_is_compiled_and_not_kept(
    tmp_path: Path, cache: ArtifactStore
) -> None:
    (tmp_path / "n.h").write_text("#define N 1")
    source = (
        '#define WHICH "n.h"\n#include WHICH\n'
        'extern "C" __global__ void plain(int* x) { *x = N; }'
    )
    for _ in range(2):
        assert not compile_it(source, include_dirs=[tmp_path]).is_from_cache
    assert cache.entries() == ()


def test_file_finds_its_neighbours_and_the_working_folder_is_not_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = '#include "n.h"\nextern "C" __global__ void plain(int* x) { *x = N; }'
    (tmp_path / "n.h").write_text("#define N 1")
    file = tmp_path / "kernel.cu"
    file.write_text(source)
    assert compile_it(file).entries == {"plain": "plain"}
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CompilationError, match="open source file"):
        compile_it(source)


def test_cache_can_be_another_store_or_none(
    tmp_path: Path, cache: ArtifactStore
) -> None:
    other = ArtifactStore(tmp_path / "other")
    compile_it(cache=False)
    compile_it(cache=other)
    assert cache.entries() == ()
    assert [entry.schema for entry in other.entries()] == [CACHE_SCHEMA]
    assert compile_it(cache=other).is_from_cache


def test_entry_that_is_no_binary_is_compiled_again(
    cache: ArtifactStore, caplog: pytest.LogCaptureFixture
) -> None:
    compile_it()
    [entry] = cache.entries()
    cache.put(CACHE_SCHEMA, entry.key, b"whole, but no binary")
    with caplog.at_level(logging.WARNING):
        assert not compile_it().is_from_cache
    assert len(caplog.records) == 1
    assert compile_it().is_from_cache


def test_bytes_that_are_no_binary_are_refused() -> None:
    data = compile_it().to_bytes()
    assert CudaBinary.from_bytes(data) == compile_it()
    for length in range(0, len(data), 7):
        with pytest.raises(InvalidArtifact):
            CudaBinary.from_bytes(data[:length])


def test_interpreter_goes_on_while_it_compiles() -> None:
    """NVRTC works without the interpreter lock: other threads are not held up."""
    kernels = "\n".join(
        f'extern "C" __global__ void k{i}(float* x) {{ for (int j = 0; j < 99; j++)'
        f" x[j] = sinf(x[j]) * powf(x[j + 1], {i}.5f); }}"
        for i in range(20)
    )
    beats = 0
    done = threading.Event()

    def beat() -> None:
        nonlocal beats
        while not done.wait(0.001):
            beats += 1

    thread = threading.Thread(target=beat)
    thread.start()
    compile_it(kernels, entries="k0", cache=False)
    done.set()
    thread.join()
    assert beats > 10


def test_missing_library_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    from cuda.bindings import nvrtc

    def missing() -> None:
        raise RuntimeError("libnvrtc.so was not found")

    monkeypatch.setattr(nvrtc, "nvrtcVersion", missing)
    library.nvrtc_identity.cache_clear()
    with pytest.raises(BackendUnavailable, match=r"pip install 'accy-async\[nvrtc\]'"):
        compile_it()


def test_missing_bindings_say_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    library.nvrtc_identity.cache_clear()
    library.toolkit_folders()
    load = builtins.__import__

    def refuse(name: str, *given: Any) -> Any:
        if name == "cuda.bindings":
            raise ImportError(name)
        return load(name, *given)

    monkeypatch.delitem(sys.modules, "cuda.bindings.nvrtc", raising=False)
    monkeypatch.setattr(builtins, "__import__", refuse)
    with pytest.raises(BackendUnavailable, match=r"accy-async\[nvrtc\]"):
        compile_it()


@pytest.mark.anyio
async def test_session_compiles_on_a_thread_and_tells_the_observer() -> None:
    with SpanRecorder() as recorder:
        async with open_session(RecordingBackend(), observer=recorder) as session:
            binary = await session.compile_cuda(
                SOURCE, "scale<int>", architecture="sm_90", name="mine.cu"
            )
            with pytest.raises(CompilationError):
                await session.compile_cuda("oops", "f", architecture="sm_90")
            # The recording backend's own architecture is none.
            with pytest.raises(InvalidValue, match="architecture"):
                await session.compile_cuda(SOURCE, "plain")
    assert binary.format is ArtifactFormat.CUDA_PTX  # all that this backend loads
    phases = [(span.name, span.detail, span.state) for span in recorder.trace().phases]
    assert phases == [
        ("compile", "mine.cu", "ok"),
        ("compile", "CUDA C++", "failed"),
        ("compile", "CUDA C++", "failed"),
    ]


@pytest.mark.anyio
async def test_session_on_another_device_refuses() -> None:
    async with open_session("cpu") as session:
        with pytest.raises(UnsupportedOperation, match="cpu"):
            await session.compile_cuda(SOURCE, "plain")


@pytest.mark.anyio
async def test_cancelled_compile_returns_at_once_and_is_kept_when_it_ends(
    monkeypatch: pytest.MonkeyPatch, cache: ArtifactStore
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    compile_program = library.compile_program

    def slow(*given: Any, **more: Any) -> library.Compiled:
        begun.set()
        assert go_on.wait(30)
        return compile_program(*given, **more)

    monkeypatch.setattr(library, "compile_program", slow)
    async with open_session(RecordingBackend()) as session:
        async with anyio.create_task_group() as group:

            async def run() -> None:
                await session.compile_cuda(SOURCE, "plain", architecture="sm_90")

            group.start_soon(run)
            assert await anyio.to_thread.run_sync(begun.wait, 30)
            group.cancel_scope.cancel()
        go_on.set()
        for _ in range(3000):
            if cache.entries():
                break
            await anyio.sleep(0.01)
    assert len(cache.entries()) == 1
