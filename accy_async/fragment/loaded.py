"""Loaded fragments: a compiled program's kernels on a device, ready to be invoked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from accy_async.backends.cleanup import Cleanup, raise_together
from accy_async.backends.closing import ClosedOnExit
from accy_async.backends.loops import uninterrupted
from accy_async.errors import LaunchArgumentMismatch
from accy_async.fragment.bindings import allocate_bindings
from accy_async.fragment.capturing import InvocationCapture
from accy_async.fragment.invoker import Invoker
from accy_async.fragment.streams import FragmentStreams
from accy_async.fragment.tuned import TunedFragment
from accy_async.values import listed

if TYPE_CHECKING:
    from accy_async.artifact.entry import KernelCallArtifact
    from accy_async.artifact.kernel import KernelArtifact
    from accy_async.backends.array import DeviceArray
    from accy_async.backends.base import Backend
    from accy_async.backends.handles import Handle, LoadedArtifact
    from accy_async.backends.loading import LoadedKernel
    from accy_async.compiler.tracing import TracedProgram
    from accy_async.dtypes import ScalarArgument
    from accy_async.fragment.arguments import HostArray
    from accy_async.fragment.compiled import CompiledFragment
    from accy_async.observe.protocol import Observer
    from accy_async.tuning.launches import LaunchTuningCacheRecord

__all__ = ["Lend", "LoadedFragment"]

Lend = Callable[
    [
        "Sequence[KernelCallArtifact]",
        "Mapping[int, tuple[KernelArtifact, LoadedArtifact]]",
    ],
    Callable[[list[Exception]], None],
]
"""`GraphExecutive.lend`: has runs of graphs use the fragment's kernels."""


@uninterrupted
class LoadedFragment(TunedFragment, ClosedOnExit):
    """A fragment on a device; `load_fragment` and `Session.load_fragment` make one.

    It is called with arrays, ``y = await fragment(x)``; or step by step, with bindings
    that are kept: `prepare_invocation_bindings`, `submit_invocation`,
    `complete_invocation`, `read_invocation_output`. It owns its kernels and what
    invocations need again, and is an async context manager: `aclose` destroys them.
    """

    def __init__(
        self,
        backend: Backend,
        compiled: CompiledFragment,
        kernels: Sequence[LoadedKernel],
        *,
        streams: FragmentStreams | None = None,
        grace_s: float | None = None,
        observer: Observer | None = None,
        check_open: Callable[[str], None] | None = None,
        launch_tuning: Iterable[LaunchTuningCacheRecord] = (),
        lend: Lend | None = None,
    ) -> None:
        super().__init__(
            backend,
            compiled,
            kernels,
            grace_s=grace_s,
            check_open=check_open,
            launch_tuning=launch_tuning,
        )
        self._own_streams = streams is None
        self._streams = streams or FragmentStreams(
            backend, backend.capabilities.max_streams
        )
        self._invoker = Invoker(
            backend,
            self.plan,
            self._graph,
            self._kernels,
            self._streams,
            self._grace_s,
            observer,
            check_open,
        )
        self._take_back = lend and lend(self._entries, self._kernels)
        # Arguments of a program of plain arrays need no taking apart.
        program = compiled.program
        self._is_flat = program is not None and _takes_arrays_alone(program)

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{self.kernel_count} kernels"
        return f"<LoadedFragment {self.name} {self.compiled.format}: {state}>"

    # What it is

    @property
    def is_closed(self) -> bool:
        """True once `aclose` has been called."""
        return self._is_closed

    @property
    def loaded_kernel_count(self) -> int:
        """How many kernels the device has of it; equal code is loaded once."""
        return 0 if self._is_closed else len({k.loaded for k in self._loaded})

    @property
    def in_flight(self) -> int:
        """Invocations by call that are going on."""
        return self._invoker.in_flight

    # Invocation by call

    async def __call__(self, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
        """Run it on these arrays; awaits the results.

        Arguments and results are nested as those of the function that was traced; of
        a fragment without one, arguments are arrays in the order of its parameters,
        and there is one result, or a tuple of them.

        Arrays may be numpy's, of the session, or of any library with DLPack or the
        CUDA array interface. If all are in host memory, the results are numpy arrays
        (bf16 as uint16), else `DeviceArray` values of the caller's. Arguments are
        never changed, and results never share memory with them. An array must be done
        with: what other calls still write has to be awaited first.

        Any number of calls may go on at the same time.

        Raises:
            LaunchArgumentMismatch: arrays of other types, or nested otherwise.
            InvalidBuffer, ExchangeRefused: an array cannot be used.
            OutOfMemory: no room for results or scratch.
            DeviceError: a kernel failed, by name.
            SessionClosed: the fragment or its session was closed.
            WrongEventLoop: its session is another loop's.

        Cancellation: nothing further is submitted; what was is awaited for the grace,
            then left to the reaper, with a `GraceExpired` in an ExceptionGroup.
        """
        program = self.compiled.program
        if program is None:
            if kwargs:
                named = ", ".join(kwargs)
                raise LaunchArgumentMismatch(
                    f"{self.name!r} takes arrays in their order, not {named}"
                )
            results = await self._invoker.invoke(args)
            return results[0] if len(results) == 1 else tuple(results)
        is_plain = self._is_flat and not kwargs and len(args) == len(program.statics)
        arrays = args if is_plain else program.flatten(*args, **kwargs)
        results = await self._invoker.invoke(arrays)
        return program.unflatten(results)

    async def invoke(
        self,
        arguments: Sequence[object],
        *,
        runtime_scalars: Iterable[ScalarArgument] = (),
    ) -> list[DeviceArray | HostArray]:
        """As a call, with a list of arrays, and scalars for kernels that take some.

        Args:
            arguments: the arrays, in the order of the plan's inputs.
            runtime_scalars: the graph's, in the order of the kernels that have no
                defaults for theirs.

        Raises, Cancellation: as for a call.
        """
        return await self._invoker.invoke(
            listed("invoke.arguments", arguments, "a list of arrays"),
            listed("invoke.runtime_scalars", runtime_scalars, "a list of scalars"),
        )

    def capture_invocation(self) -> InvocationCapture:
        """Have the next call copy what it works on, into bindings. Sync.

        ::

            async with fragment.capture_invocation() as capture:
                bindings = await capture.wait()

        Raises:
            OutOfMemory, DeviceError: no room for the bindings; nothing is left.
            SessionClosed: the fragment was closed.
        """
        self._check("capture_invocation")
        bindings = allocate_bindings(self._backend, self.plan, self._kernels, None)
        return InvocationCapture(self._backend, bindings, self._invoker.taps)

    def _graph_changed(self) -> None:
        self._invoker.graph = self._graph

    # Its end

    async def aclose(self) -> None:
        """Destroy the kernels and what invocations left. Idempotent.

        Invocations in flight are awaited for the grace; what the device still uses
        then is freed when it is done. Bindings stay, until they are closed. Runs of
        its graph in a session use its kernels: let them end first.

        Raises:
            GraceExpired: invocations did not end in time.
            AccyError: the device refused to destroy something; the rest was destroyed
                all the same. Several errors come as an ExceptionGroup.

        Cancellation: shielded from it, for the grace.
        """
        if self._is_closed:
            return
        self._is_closed = True
        errors: list[Exception] = []
        if self._take_back is not None:
            self._take_back(errors)
        handles: list[Handle] = [*self._invoker.detach()]
        handles += dict.fromkeys(kernel.loaded for kernel in reversed(self._loaded))
        if self._own_streams:
            handles += self._streams.detach()
        what = f"closing fragment {self.name!r}"
        try:
            await Cleanup(self._backend, what, self._grace_s).leave(
                None, wait=self._invoker.wait_for(), handles=handles
            )
        except BaseException as error:
            raise_together(what, error, errors)
            raise
        raise_together(what, None, errors)
        await anyio.lowlevel.cancel_shielded_checkpoint()


def _takes_arrays_alone(program: TracedProgram) -> bool:
    """True where every argument is an array by its place."""
    positional, keyword = program.arguments.children
    return (
        not keyword.children
        and all(child.kind == "leaf" for child in positional.children)
        and all(static is None for static in program.statics)
    )
