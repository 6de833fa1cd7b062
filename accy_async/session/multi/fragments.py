"""Fragments of a session over several devices: each call finds its device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.lowlevel

from accy_async.backends.array import DeviceArray
from accy_async.errors import (
    AccyError,
    InvalidType,
    LaunchArgumentMismatch,
    SessionClosed,
    UnsupportedOperation,
)
from accy_async.interop.dlpack import CPU, CUDA_HOST
from accy_async.interop.foreign import device_of, is_foreign
from accy_async.session.multi.perdevice import PerDevice
from accy_async.session.multi.places import MultiPlaces
from accy_async.session.policy import Work

if TYPE_CHECKING:
    from accy_async.artifact.store import ArtifactStore
    from accy_async.compiler.preparation import FragmentCompilerOptions
    from accy_async.fragment import (
        CompiledFragment,
        FragmentFunction,
        LoadedFragment,
    )
    from accy_async.fragment.compiling import Program
    from accy_async.session.single import Session
    from accy_async.tuning.store import TuningStore

__all__ = ["MultiFragment", "MultiFragments"]

_Loaded: TypeAlias = "LoadedFragment | FragmentFunction"


class MultiFragment(PerDevice[Any]):
    """A program on several devices; `MultiSession.load_fragment` makes one.

    Called, it runs where its arguments lie, or where the session's policy says if all
    are in host memory: ``y = await fragment(x)``. It is compiled and loaded for a
    device at the first call there. `on` gives that of one device: a `LoadedFragment`,
    or of a function without types a `FragmentFunction`.

    It is an async context manager; `aclose` destroys what it has on all devices, and
    waits for its calls within the grace of each.
    """

    def __init__(
        self,
        session: MultiFragments,
        name: str,
        load: Callable[[Session], Any],
        among: Sequence[int],
    ) -> None:
        super().__init__(name, session.on)
        self._session = session
        self._load_on = load
        self._among = tuple(among)

    async def __call__(self, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
        """Run it on these arrays, on their device; see `LoadedFragment`'s call.

        Arrays in host memory are copied to wherever it runs. All others must lie on
        one device: a call reaches no other's memory.

        Raises:
            LaunchArgumentMismatch: arrays are on two devices; both are named, and
                which arguments these are.
            InvalidBuffer: an array is on none of the session's devices.
            DeviceLost: no device is healthy.
            SessionClosed: it was closed, or the session.
            As `on`, and as the fragment's call.

        Cancellation: as for that call; while it is loaded, nothing was submitted.
        """
        session = self._session
        session._check(f"fragment {self.name!r}")  # noqa: SLF001 - its own
        self._check()
        number = session._called_on(self, args, kwargs, self._among)  # noqa: SLF001
        with session._calling_on(number, self):  # noqa: SLF001
            fragment = self._loaded.get(session.devices[number])
            if fragment is None:
                fragment = await self.on(number)
            return await fragment(*args, **kwargs)

    async def _load(self, seat: Session) -> _Loaded:
        loaded: _Loaded = await self._load_on(seat)
        return loaded

    def _closed(self) -> AccyError:
        return SessionClosed(f"fragment {self.name!r} was closed")


class MultiFragments(MultiPlaces):
    """The fragments of a session over several devices."""

    async def load_fragment(
        self,
        program: CompiledFragment | Program,
        /,
        *specs: object,
        options: FragmentCompilerOptions | None = None,
        cache: bool | ArtifactStore = True,
        tuning: bool | TuningStore | None = True,
        **named: object,
    ) -> MultiFragment:
        """A program for all devices, compiled and loaded on each when first called.

        ::

            async with await session.load_fragment(softmax) as fragment:
                y = await fragment(x)          # where x is

        Args:
            program: as for `Session.load_fragment`. One that is compiled already runs
                on the devices that load its format.
            specs: as there.
            options: as there.
            cache: as there.
            tuning: as there; what is known of each device is used on that device.
            named: as there.

        Raises:
            InvalidType: it is no program.
            UnsupportedOperation: none of the devices loads the compiled format.
            SessionClosed: the session is not open.

        What is wrong with the program itself is raised where it is first compiled, by a
        call or by `MultiFragment.on`.
        """
        from accy_async.compiler.preparation import PreparedJob
        from accy_async.compiler.semantic import Module
        from accy_async.compiler.tracing import TracedProgram
        from accy_async.fragment import CompiledFragment

        self._check("load_fragment")
        await anyio.lowlevel.checkpoint()
        among: Sequence[int] = range(len(self._seats))
        if isinstance(program, CompiledFragment):
            if specs or named:
                raise LaunchArgumentMismatch(
                    f"load_fragment: {program.name!r} is compiled: it has its types"
                )
            among = self._that_load(program)
        elif not callable(program) and not isinstance(
            program, (Module, TracedProgram, PreparedJob)
        ):
            raise InvalidType(
                "load_fragment.program", program, "a program, or a compiled fragment"
            )

        async def load(seat: Session) -> _Loaded:
            loaded: _Loaded = await seat.load_fragment(
                program,
                *specs,
                options=options,
                cache=cache,
                tuning=tuning,
                **named,
            )
            return loaded

        return MultiFragment(self, _title(program), load, among)

    # Within

    def _that_load(self, compiled: CompiledFragment) -> list[int]:
        """The numbers of the devices that load a compiled fragment's format."""
        formats = [seat.capabilities.formats for seat in self._seats]
        among = [n for n, known in enumerate(formats) if compiled.format in known]
        if not among:
            loaded = "; ".join(
                f"{name} loads {', '.join(sorted(known))}"
                for name, known in zip(self._names, formats, strict=True)
            )
            raise UnsupportedOperation(
                f"load_fragment: {compiled.name!r} is {compiled.format}: {loaded}"
            )
        return among

    def _called_on(
        self,
        fragment: MultiFragment,
        args: tuple[object, ...],
        kwargs: Mapping[str, object],
        among: Sequence[int],
    ) -> int:
        """The number of the device where a call is to run.

        Raises:
            LaunchArgumentMismatch: its arrays are on two.
            InvalidBuffer: one is on none.
        """
        found = -1
        first = ""
        for what, leaf in _leaves(args, kwargs):
            number = self._lies_on(what, leaf)
            if number < 0:
                continue
            if found < 0:
                found, first = number, what
            elif number != found:
                raise LaunchArgumentMismatch(
                    f"fragment {fragment.name!r}: {first} is on {self._names[found]} "
                    f"and {what} on {self._names[number]}: copy one to the other's "
                    "device, session.copy_to"
                )
        if found >= 0:
            return found
        work = Work(kind="call", name=fragment.name)
        return self._choose(work, {}, id(fragment), among)

    def _lies_on(self, what: str, leaf: object) -> int:
        """The number of the device that an argument is on; -1 for host memory."""
        if isinstance(leaf, DeviceArray):
            return self._seats.index(self._seat_of(what, leaf))
        if not is_foreign(leaf) or device_of(leaf, what)[0] in (CPU, CUDA_HOST):
            return -1
        return self._seats.index(self._seat_for(leaf))


def _leaves(
    args: tuple[object, ...], kwargs: Mapping[str, object]
) -> list[tuple[str, object]]:
    """The arguments of a call, with names; those that are nested are taken apart."""
    if not kwargs and not any(isinstance(a, (tuple, list, dict)) for a in args):
        return [(f"argument {place}", leaf) for place, leaf in enumerate(args)]
    from accy_async.compiler.tracing.tree import flatten

    structure, leaves = flatten((args, dict(kwargs)))
    names = [path.partition(".")[2] for path in structure.names("")]
    return [(f"argument {n}", leaf) for n, leaf in zip(names, leaves, strict=True)]


def _title(program: object) -> str:
    """What messages call a program."""
    return str(
        getattr(program, "name", None) or getattr(program, "__name__", "function")
    )
