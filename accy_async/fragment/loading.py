"""Loading a compiled fragment: every kernel onto the device, or none."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import anyio.lowlevel

from accy_async.backends.cleanup import destroy_all, raise_together
from accy_async.backends.loading import LoadedKernel, load_kernel
from accy_async.compiler.preparation import FragmentInstrumentation, FragmentPhase
from accy_async.errors import InvalidType
from accy_async.fragment.compiled import CompiledFragment
from accy_async.fragment.graphs import kernel_entries
from accy_async.fragment.loaded import Lend, LoadedFragment
from accy_async.tuning.launches import decode_launch_tuning_artifact

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.fragment.streams import FragmentStreams
    from accy_async.observe.protocol import Observer
    from accy_async.tuning.launches import LaunchTuningCacheRecord

__all__ = ["load_fragment"]


async def load_fragment(
    backend: Backend,
    compiled: CompiledFragment,
    *,
    streams: FragmentStreams | None = None,
    grace_s: float | None = None,
    observer: Observer | None = None,
    instrumentation: FragmentInstrumentation | None = None,
    check_open: Callable[[str], None] | None = None,
    launch_tuning_artifact: bytes = b"",
    launch_tuning_records: Iterable[LaunchTuningCacheRecord] = (),
    lend: Lend | None = None,
) -> LoadedFragment:
    """Load a compiled fragment's kernels; awaits it, on threads where loads block.

    Kernels with equal code are loaded once.

    Args:
        backend: the device.
        compiled: what to load; it stays as it is, and may be loaded elsewhere too.
        streams: what invocations by call run on; of its own if left out.
        grace_s: how long cleanup may wait for the device, in seconds; the backend's
            own if left out.
        observer: told of invocations by call.
        instrumentation: told how long loading took.
        check_open: called with what is to be done before anything is; what it raises
            refuses it.
        launch_tuning_artifact: measured launch candidates, to be used where they are
            of this device and these kernels; no bytes are none.
        launch_tuning_records: more of them, as values.
        lend: has runs of its graph use its kernels, instead of loading them again.

    Raises:
        InvalidType: ``compiled`` is none.
        InvalidArtifact: the tuning artifact cannot be read; nothing was loaded.
        UnsupportedOperation: the device does not load its format.
        CapabilityMismatch: the device lacks what a kernel requires.
        InvalidArtifact, CompilationError, RuntimeUnavailable, OutOfMemory: a kernel
            could not be made or loaded; those loaded already are unloaded.

    Cancellation: the kernels loaded already are unloaded, and one that is being
        loaded as soon as it is.
    """
    if not isinstance(compiled, CompiledFragment):
        raise InvalidType("load_fragment.compiled", compiled, "a CompiledFragment")
    told = instrumentation or FragmentInstrumentation()
    tuning = list(launch_tuning_records)
    if launch_tuning_artifact:
        with told.timed(FragmentPhase.IMPORT_LAUNCH_TUNING):
            tuning += decode_launch_tuning_artifact(launch_tuning_artifact)
    begun = time.perf_counter_ns()
    await anyio.lowlevel.checkpoint()
    loaded: dict[object, LoadedKernel] = {}
    kernels: list[LoadedKernel] = []
    try:
        for entry, kernel in zip(
            kernel_entries(compiled.plan), compiled.plan.kernels, strict=True
        ):
            found = loaded.get(kernel.artifact)
            if found is None:
                if loaded:
                    await anyio.lowlevel.checkpoint()
                backend.capabilities.check_request(entry.artifact_request())
                found = await load_kernel(backend, kernel.artifact)
                loaded[kernel.artifact] = found
            kernels.append(found)
        fragment = LoadedFragment(
            backend,
            compiled,
            kernels,
            streams=streams,
            grace_s=grace_s,
            observer=observer,
            check_open=check_open,
            launch_tuning=tuning,
            lend=lend,
        )
        elapsed_ns = time.perf_counter_ns() - begun
        told.record(FragmentPhase.LOAD_BACKEND_ARTIFACTS, elapsed_ns)
        return fragment
    except BaseException as error:
        errors: list[Exception] = []
        destroy_all(backend, (one.loaded for one in loaded.values()), errors)
        raise_together(f"loading fragment {compiled.name!r}", error, errors)
        raise
