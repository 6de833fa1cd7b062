"""The only door to glslang: a compute shader in, a SPIR-V module out.

glslang runs as a child process, so that nothing it does ends ours. Where SPIRV-Tools'
validator is found too, it has to agree with every module.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path

from accy_async.errors import CompilationError, RuntimeUnavailable

__all__ = ["TARGET_ENVIRONMENT", "compile_shader", "find_glslang"]

TARGET_ENVIRONMENT = "vulkan1.2"
"""The version of Vulkan, and with it SPIR-V 1.5, that modules are for."""

_TIMEOUT_S = 120.0
_INSTALL = (
    "install accy-async[vulkan], or your system's glslang (Debian: glslang-tools)"
)


@functools.lru_cache(maxsize=512)
def compile_shader(text: str, entry_name: str) -> bytes:
    """The module of a shader whose ``main`` becomes the entry point ``entry_name``.

    Modules are kept, so that asking again for one of the last 512 costs nothing.

    Raises:
        RuntimeUnavailable: there is no glslang.
        CompilationError: it, or the validator, refused the text; a bug of the emitter.

    Blocks for some 100 ms: call it in a worker thread.
    """
    glslang = find_glslang()
    if glslang is None:
        raise RuntimeUnavailable(f"no glslang to make SPIR-V with: {_INSTALL}")
    with tempfile.TemporaryDirectory(prefix="accy-spirv-") as folder:
        source, module = Path(folder, "kernel.comp"), Path(folder, "kernel.spv")
        source.write_text(text)
        _run(
            glslang,
            *("-V", "--target-env", TARGET_ENVIRONMENT, "-g0", "--quiet"),
            *("-e", entry_name, "--source-entrypoint", "main"),
            *("-o", str(module), str(source)),
        )
        if not module.is_file():
            raise CompilationError("glslang made no module")
        validator = _find("spirv-val")
        if validator is not None:
            _run(validator, "--target-env", TARGET_ENVIRONMENT, str(module))
        return module.read_bytes()


def find_glslang() -> str | None:
    """The path of glslang's executable, or None."""
    return _find("glslang") or _find("glslangValidator")


def _wheels() -> Path:
    """Where the wheels that bring such tools put them."""
    return Path(sysconfig.get_path("purelib"), "cmeel.prefix")


def _find(name: str) -> str | None:
    """A tool of the wheels that can be run, or one on the path."""
    own = shutil.which(name, path=str(_wheels() / "bin"))
    return own if own is not None and _can_run(own) else shutil.which(name)


@functools.cache
def _can_run(tool: str) -> bool:
    """Whether a tool finds its libraries, which the wheels do not see to."""
    try:
        ended = subprocess.run(
            [tool, "--version"],
            capture_output=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=_environment(tool),
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return ended.returncode == 0


def _environment(tool: str) -> dict[str, str]:
    environment = dict(os.environ)
    if Path(tool).is_relative_to(_wheels()):
        # The wheels' tools do not know where their own libraries are.
        known = environment.get("LD_LIBRARY_PATH")
        paths = [str(_wheels() / "lib"), *([known] if known else [])]
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(paths)
    return environment


def _run(*command: str) -> None:
    name, environment = Path(command[0]).name, _environment(command[0])
    try:
        ended = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            check=False,
            env=environment,
        )
    except subprocess.TimeoutExpired:
        raise CompilationError(f"{name} did not end within {_TIMEOUT_S:g} s") from None
    except OSError as error:
        raise RuntimeUnavailable(f"{name} cannot be run: {error}") from error
    if ended.returncode:
        raise CompilationError(
            f"{name} refused a kernel", log=ended.stdout + ended.stderr
        )
