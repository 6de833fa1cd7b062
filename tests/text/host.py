"""Runs printed MSL and CUDA C++ on this host's CPU, through its C++ compiler.

The texts are C++ but for a few words, which the shims beside this file define. So what
a kernel computes is tested where there is neither Metal nor CUDA; the compiler also
watches for what C++ leaves undefined.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.compiler.emit.text import emit_cuda, emit_msl
from accy_async.compiler.emit.text.dialect import CUDA, MSL
from accy_async.compiler.emit.text.printer import has_assert
from accy_async.compiler.form import Kernel
from accy_async.dtypes import ScalarArgument
from tests.compiler.harness import Array, Grid, KernelRunner

__all__ = ["COMPILER", "HostRunner"]

COMPILER = shutil.which("g++")
_SHIMS = Path(__file__).parent / "shims"
_OPTIONS = (
    *("-std=c++20", "-O0", "-fPIC", "-pthread"),
    *("-ffp-contract=off", "-Wall", "-Wextra", "-Werror", "-Winvalid-pch"),
    *("-Wno-attributes", "-Wno-unknown-pragmas", "-Wno-unused-parameter"),
    *(
        "-Wno-unused-function",
        "-Wno-unused-variable",
        "-Wno-type-limits",
        "-Wno-tautological-compare",
    ),
    "-fsanitize=signed-integer-overflow,integer-divide-by-zero,float-cast-overflow",
    "-fsanitize-undefined-trap-on-error",
)


class HostRunner(KernelRunner):
    """Kernels in one language, ``cuda`` or ``msl``."""

    def __init__(self, kernels: Sequence[Kernel], language: str) -> None:
        super().__init__(kernels)
        self._is_metal = language == "msl"
        text = emit_msl(kernels) if self._is_metal else emit_cuda(kernels)
        shims = "<metal_stdlib>" if self._is_metal else '"cuda.h"'
        # One kernel of the tests has the name of a function of C's.
        head = f"#include {shims}\n#define random kernel_random\n"
        if "barrier(" in text or "__syncthreads" in text:
            head = "#define MEETS\n" + head
        runners = [self._runner(kernel) for kernel in kernels]
        self._library = _built(head, "\n".join([text, *runners]))

    def _launch(
        self,
        kernel: Kernel,
        buffers: Sequence[Array],
        scalars: Sequence[ScalarArgument],
        grid: Grid,
    ) -> int:
        status = np.zeros(1, np.uint32)
        arguments = [array.ctypes.data for array in buffers]
        if self._is_metal:
            pushed = ScalarBlock(s.dtype for s in kernel.scalars).pack(scalars)
            block = ctypes.create_string_buffer(pushed, len(pushed) + 8)
            arguments += [ctypes.addressof(block), status.ctypes.data]
        else:
            slots = (ctypes.c_uint64 * max(len(scalars), 1))(
                *(scalar.slot for scalar in scalars)
            )
            arguments += [
                ctypes.addressof(slots) + 8 * index for index in range(len(scalars))
            ]
        packed = (ctypes.c_void_p * max(len(arguments), 1))(*arguments)
        sizes = (ctypes.c_uint32 * 3)(*grid)
        returned: int = self._library[f"run_{kernel.name}"](packed, sizes)
        return returned or int(status[0])

    def _runner(self, kernel: Kernel) -> str:
        """A C function that runs a kernel's grid."""
        count = len(kernel.buffers)
        dialect = MSL if self._is_metal else CUDA
        arguments = [
            f"({dialect.element(buffer.dtype)} *)arguments[{index}]"
            for index, buffer in enumerate(kernel.buffers)
        ]
        if self._is_metal:
            number = list(self.kernels).index(kernel.name)
            if kernel.scalars:
                arguments.append(f"*(Scalars{number} *)arguments[{count}]")
            if has_assert(kernel.body):
                arguments.append(f"(metal::atomic_uint *)arguments[{count + 1}]")
            arguments += [
                "metal::uint3{here.x, here.y, here.z}",
                "linear_here",
                "metal::uint3{block_here.x, block_here.y, block_here.z}",
                "metal::uint3{grid_here.x, grid_here.y, grid_here.z}",
            ]
        else:
            arguments += [
                f"*({dialect.element(scalar.dtype)} *)arguments[{index}]"
                for index, scalar in enumerate(kernel.scalars, count)
            ]
        size = ", ".join(f"{extent}u" for extent in kernel.threadgroup)
        call = f"{kernel.name}({', '.join(arguments)});"
        return (
            f'extern "C" int run_{kernel.name}(void **arguments, const unsigned *grid)'
            f" {{\n    return run_grid(grid, {{{size}}}, [&] {{ {call} }});\n}}"
        )


@functools.lru_cache(maxsize=64)
def _built(head: str, text: str) -> ctypes.CDLL:
    with tempfile.TemporaryDirectory() as folder:
        source, library = Path(folder, "kernels.cc"), Path(folder, "kernels.so")
        source.write_text(text)
        _compile(source, "-shared", "-include", _precompiled(head), "-o", library)
        return ctypes.CDLL(str(library))


@functools.cache
def _precompiled(head: str) -> Path:
    """A header that says this, compiled once: reading it is most of a build."""
    folder = tempfile.TemporaryDirectory()
    atexit.register(folder.cleanup)
    header = Path(folder.name, "head.h")
    header.write_text(head)
    _compile(header, "-o", f"{header}.gch")
    return header


def _compile(source: Path, *options: str | Path) -> None:
    assert COMPILER is not None
    ended = subprocess.run(
        [COMPILER, *_OPTIONS, f"-I{_SHIMS}", source, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr + source.read_text()
