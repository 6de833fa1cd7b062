"""Compiling for the session's device."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.backends.completion import run_abandonable
from accy_async.errors import UnsupportedOperation
from accy_async.observe.protocol import phase
from accy_async.session.core import SessionCore

if TYPE_CHECKING:
    from accy_async.artifact.store import ArtifactStore
    from accy_async.compiler.nvrtc import CudaBinary

__all__ = ["SessionCompiler"]


class SessionCompiler(SessionCore):
    """The compiler of a session."""

    async def compile_cuda(
        self,
        source: str | Path,
        entries: str | Sequence[str],
        *,
        architecture: str | None = None,
        options: Sequence[str] = (),
        include_dirs: Sequence[str | os.PathLike[str]] = (),
        headers: Mapping[str, str] | None = None,
        name: str | None = None,
        cache: bool | ArtifactStore = True,
    ) -> CudaBinary:
        """Compile CUDA C++ for the session's device, on a worker thread.

        What is compiled is kept on disk and found there the next time; see
        `accy_async.compiler.nvrtc.compile_cuda` for the arguments. The result is a
        value, which is not bound to the session.

        Args:
            source: the text, or the `Path` of a file.
            entries: the kernels wanted, as C++ names them.
            architecture: the device's own if left out.
            options: NVRTC's.
            include_dirs: folders to search for what is included.
            headers: texts that can be included by their names.
            name: what messages call the source.
            cache: True for the user's own, False for none, or a store.

        Raises:
            CompilationError: the compiler refused it.
            UnsupportedOperation: the session's device is none of CUDA's, or this
                NVRTC makes no code for it.
            BackendUnavailable: NVRTC is not installed; the message says how to.
            SessionClosed: the session is not open.

        Cancellation: returns at once; the compiler goes on to its end on its
            thread, and what it made is kept in the cache.
        """
        self._check("compile_cuda")
        identity = self.capabilities.identity
        if identity.backend is not BackendKind.CUDA:
            raise UnsupportedOperation(
                f"compile_cuda: the session's device is {identity.backend}, no CUDA"
            )
        formats = self.capabilities.formats
        is_cubin = ArtifactFormat.CUDA_CUBIN in formats
        wanted = ArtifactFormat.CUDA_CUBIN if is_cubin else ArtifactFormat.CUDA_PTX
        chosen = identity.architecture if architecture is None else architecture

        def compile_it() -> CudaBinary:
            from accy_async.compiler.nvrtc import compile_cuda

            return compile_cuda(
                source,
                entries,
                architecture=chosen,
                options=options,
                include_dirs=include_dirs,
                headers=headers,
                name=name,
                format=wanted,
                cache=cache,
            )

        title = name or (str(source) if isinstance(source, Path) else "CUDA C++")
        with phase(self.observer, "compile", title):
            return await run_abandonable(
                compile_it, lambda _: None, name=f"compile {title}"
            )
