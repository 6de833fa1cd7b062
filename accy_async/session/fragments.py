"""Fragments of a session: compiled for its device, loaded onto it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, overload

from accy_async.errors import InvalidType
from accy_async.observe.protocol import phase
from accy_async.session.records import SessionRecords

if TYPE_CHECKING:
    from accy_async.artifact.store import ArtifactStore
    from accy_async.compiler.preparation import FragmentCompilerOptions, PreparedJob
    from accy_async.compiler.semantic import Module
    from accy_async.compiler.tracing import TracedProgram
    from accy_async.fragment import (
        CompiledFragment,
        FragmentFunction,
        LoadedFragment,
    )
    from accy_async.fragment.compiling import Program
    from accy_async.tuning.store import TuningStore

__all__ = ["SessionFragments"]


class SessionFragments(SessionRecords):
    """The fragments of a session."""

    async def compile_fragment(
        self,
        program: Program,
        *specs: object,
        options: FragmentCompilerOptions | None = None,
        cache: bool | ArtifactStore = True,
        tuning: bool | TuningStore | None = True,
        **named: object,
    ) -> CompiledFragment:
        """Compile a program for the session's device, on a worker thread.

        The result is a value, which is not bound to the session. See
        `accy_async.fragment.compile_fragment` for arguments and errors.

        Args:
            program: as there; so are the others but the last.
            specs: of a function, the type of each argument.
            options: schedules, tuning artifacts, a registry of kernels.
            cache: where code is kept.
            tuning: where the records are read from that say which schedules are best
                on this device: True for the user's own store, None or False for
                nowhere. What the options choose goes before them.
            named: types of arguments by name.

        Raises:
            SessionClosed: the session is not open.

        Cancellation: returns at once; the thread stops at its next kernel.
        """
        # Whoever compiles nothing loads no compiler.
        from accy_async.fragment import compile_fragment

        self._check("compile_fragment")
        options = await self._tuned(options, tuning)
        with phase(self.observer, "compile", _title(program)):
            return await compile_fragment(
                self.backend, program, *specs, options=options, cache=cache, **named
            )

    @overload
    async def load_fragment(
        self,
        program: CompiledFragment | Module | TracedProgram | PreparedJob,
        /,
        *,
        options: FragmentCompilerOptions | None = None,
        cache: bool | ArtifactStore = True,
        tuning: bool | TuningStore | None = True,
    ) -> LoadedFragment: ...

    @overload
    async def load_fragment(
        self,
        program: Callable[..., Any],
        /,
        *,
        options: FragmentCompilerOptions | None = None,
        cache: bool | ArtifactStore = True,
        tuning: bool | TuningStore | None = True,
    ) -> FragmentFunction: ...

    @overload
    async def load_fragment(
        self,
        program: Callable[..., Any],
        first: object,
        /,
        *specs: object,
        options: FragmentCompilerOptions | None = None,
        cache: bool | ArtifactStore = True,
        tuning: bool | TuningStore | None = True,
        **named: object,
    ) -> LoadedFragment: ...

    async def load_fragment(
        self,
        program: CompiledFragment | Program,
        /,
        *specs: object,
        options: FragmentCompilerOptions | None = None,
        cache: bool | ArtifactStore = True,
        tuning: bool | TuningStore | None = True,
        **named: object,
    ) -> LoadedFragment | FragmentFunction:
        """Load a program onto the device, compiled for it where it is not yet.

        ::

            async with await session.load_fragment(softmax) as fragment:
                y = await fragment(x)

        It can be closed early; the session destroys what it has at the latest.

        Args:
            program: a compiled fragment, a program, or a function of arrays.
            specs: of a function, the type of each argument, nested as the argument
                is: see `accy_async.fragment.compile_fragment`. With none, it is
                compiled when it is called, for each combination of argument types.
            options: as for `compile_fragment`.
            cache: as for `compile_fragment`.
            tuning: where the records are read from that say which schedules are best
                on this device, and how kernels are launched best: True for the user's
                own store, None or False for nowhere. It is read once in a session.
            named: types of arguments by name.

        Returns:
            A `LoadedFragment`; of a function without types a `FragmentFunction`.

        Raises:
            As `compile_fragment`, and as `accy_async.fragment.load_fragment`.
            SessionClosed: the session is not open.

        Cancellation: returns at once; what was loaded is unloaded.
        """
        from accy_async.compiler.preparation import PreparedJob
        from accy_async.compiler.semantic import Module
        from accy_async.compiler.tracing import TracedProgram
        from accy_async.fragment import CompiledFragment

        self._check("load_fragment")
        if isinstance(program, CompiledFragment):
            return await self._load_compiled(program, options, tuning)
        typed = (Module, TracedProgram, PreparedJob)
        if not isinstance(program, typed) and not callable(program):
            raise InvalidType(
                "Session.load_fragment.program",
                program,
                "a function of arrays, a CompiledFragment, a Module, a TracedProgram "
                "or a PreparedJob",
            )
        if isinstance(program, typed) or specs or named:
            compiled = await self.compile_fragment(
                program, *specs, options=options, cache=cache, tuning=tuning, **named
            )
            return await self._load_compiled(compiled, options, tuning)
        return self._make_function(program, options, cache, tuning)

    async def _load_compiled(
        self,
        compiled: CompiledFragment,
        options: FragmentCompilerOptions | None,
        tuning: bool | TuningStore | None,
    ) -> LoadedFragment:
        from accy_async.fragment import load_fragment
        from accy_async.fragment.streams import FragmentStreams

        self._check("load_fragment")
        if self._fragment_streams is None:
            self._fragment_streams = FragmentStreams(
                self.backend, self.max_streams, self._bell
            )
        records = await self._launch_tuning_for(compiled, tuning)
        self._check("load_fragment")
        artifact = b"" if options is None else options.launch_tuning_artifact
        with phase(self.observer, "load", compiled.name):
            return await load_fragment(
                self.backend,
                compiled,
                streams=self._fragment_streams,
                grace_s=self.grace_s,
                observer=self.observer,
                check_open=self._check,
                launch_tuning_artifact=artifact,
                lend=self._runs.lend,
                launch_tuning_records=records,
                instrumentation=None if options is None else options.instrumentation,
            )

    async def _tuned(
        self,
        options: FragmentCompilerOptions | None,
        tuning: bool | TuningStore | None,
    ) -> FragmentCompilerOptions | None:
        """Options that choose by what is known of this device as well."""
        known = await self._choices_for(tuning)
        if not known:
            return options
        from accy_async.compiler.preparation import FragmentCompilerOptions
        from accy_async.fragment.schedules import with_known

        device = self.capabilities.fingerprint
        return with_known(options or FragmentCompilerOptions(), device, known)

    def _make_function(
        self,
        function: Callable[..., Any],
        options: FragmentCompilerOptions | None,
        cache: bool | ArtifactStore,
        tuning: bool | TuningStore | None,
    ) -> FragmentFunction:
        from accy_async.fragment import FragmentFunction
        from accy_async.fragment.compiling import compile_program

        async def load(
            specs: Sequence[Any], named: Mapping[str, Any]
        ) -> LoadedFragment:
            self._check("compile_fragment")
            chosen = await self._tuned(options, tuning)
            with phase(self.observer, "compile", _title(function)):
                compiled = await compile_program(
                    self.backend, function, specs, named, options=chosen, cache=cache
                )
            return await self._load_compiled(compiled, options, tuning)

        return FragmentFunction(getattr(function, "__name__", "function"), load)


def _title(program: object) -> str:
    """What an observer is told that a program is called."""
    return str(getattr(program, "name", None) or getattr(program, "__name__", ""))
