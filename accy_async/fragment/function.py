"""Functions of arrays, compiled for each combination of types that they meet."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import anyio

from accy_async.backends.closing import ClosedOnExit, close_each
from accy_async.backends.loops import uninterrupted
from accy_async.compiler.semantic import TensorType
from accy_async.compiler.tracing.program import Constant
from accy_async.compiler.tracing.tree import (
    Structure,
    constant_key,
    flatten,
    unhashable,
)
from accy_async.errors import InvalidType, SessionClosed
from accy_async.fragment.arguments import array_type

if TYPE_CHECKING:
    from accy_async.fragment.loaded import LoadedFragment

__all__ = ["MAX_SPECIALISATIONS", "FragmentFunction"]

MAX_SPECIALISATIONS = 32
"""Fragments that a function keeps loaded, unless told otherwise."""

Load = Callable[[Sequence[Any], Mapping[str, Any]], Awaitable["LoadedFragment"]]
"""Compiles and loads the function for arguments of these types."""


@uninterrupted
class FragmentFunction(ClosedOnExit):
    """A function of arrays on a device; `Session.load_fragment` makes one.

    Called, it is traced, compiled and loaded for the types of these arguments, unless
    it was before; then it runs. What is no array is a constant of the program, and
    has to be hashable. It is an async context manager; `aclose` closes its fragments.

    For one event loop. Any number of calls may go on at the same time: those that
    need the same fragment wait for one compilation.

    Args:
        name: for messages.
        load: compiles and loads it.
        limit: fragments that are kept; the one unused longest goes first.
    """

    def __init__(
        self, name: str, load: Load, *, limit: int = MAX_SPECIALISATIONS
    ) -> None:
        self.name = name
        self.limit = limit
        self._load = load
        self._loaded: OrderedDict[object, LoadedFragment] = OrderedDict()
        self._users: dict[LoadedFragment, int] = {}
        self._loading: dict[object, anyio.Event] = {}
        self._is_closed = False

    def __repr__(self) -> str:
        state = "closed" if self._is_closed else f"{len(self._loaded)} fragments"
        return f"<FragmentFunction {self.name}: {state}>"

    @property
    def is_closed(self) -> bool:
        """True once `aclose` has been called."""
        return self._is_closed

    @property
    def fragments(self) -> tuple[LoadedFragment, ...]:
        """The fragments that are loaded, the one used last at the end."""
        return tuple(self._loaded.values())

    async def __call__(self, *args: object, **kwargs: object) -> Any:  # noqa: ANN401
        """Run the function on these arrays; see `LoadedFragment`'s call.

        Raises:
            LaunchArgumentMismatch: the function takes more arguments, fewer, or
                others by name.
            InvalidType: a constant is not hashable, or an array's elements have no
                counterpart here.
            InvalidProgram, PassFailed, UnsupportedOperation: it cannot be compiled for
                these arguments; and what else `Session.compile_fragment` raises.
            SessionClosed: it was closed.

        Cancellation: as for `Session.load_fragment` and for `LoadedFragment`'s call.
        """
        asked = self._read(args, kwargs)
        loaded = self._find(asked)
        if loaded is None:
            loaded = await self._get(asked)
        try:
            results = await loaded.invoke(asked.arrays)
        finally:
            self._leave(loaded)
        program = loaded.compiled.program
        assert program is not None
        return program.unflatten(results)

    async def specialise(self, *specs: object, **named: object) -> LoadedFragment:
        """The fragment for arguments of these types; compiled and loaded if need be.

        Args:
            specs: types (``"f32[8,64]"``, `TensorType` values), arrays, or constants;
                nested as arguments are. A text that ends with a bracket is a type.
            named: the same by name.

        Raises, Cancellation: as for a call, but that nothing is run.
        """
        structure, leaves = flatten((specs, named))
        typed = iter([_type_of_text(leaf) for leaf in leaves])
        asked = self._read(*structure.unflatten(typed))
        loaded = self._find(asked)
        if loaded is None:
            loaded = await self._get(asked)
        self._leave(loaded)
        return loaded

    async def aclose(self) -> None:
        """Close every fragment; see `LoadedFragment.aclose`. Idempotent.

        Raises:
            AccyError: one could not be closed cleanly; the others were closed all the
                same. Several errors come as an ExceptionGroup.

        Cancellation: shielded from it, for the grace.
        """
        self._is_closed = True
        fragments = [*self._loaded.values()]
        self._loaded.clear()
        await close_each(f"closing the fragments of {self.name!r}", fragments)

    def _read(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> _Asked:
        structure, leaves = flatten((args, kwargs))
        types = [array_type(leaf) for leaf in leaves]
        kinds = tuple(
            constant_key(leaf) if found is None else found
            for leaf, found in zip(leaves, types, strict=True)
        )
        arrays = [
            leaf for leaf, found in zip(leaves, types, strict=True) if found is not None
        ]
        return _Asked((structure, kinds), structure, leaves, types, arrays)

    def _find(self, asked: _Asked) -> LoadedFragment | None:
        """The fragment of these types, in use from now on until `_leave`."""
        if self._is_closed:
            raise SessionClosed(f"fragment {self.name!r} was closed")
        try:
            found = self._loaded.get(asked.key)
        except TypeError:
            raise InvalidType(
                f"{self.name}'s arguments",
                unhashable(asked.leaves),
                "arrays, and hashable constants",
            ) from None
        if found is not None:
            self._loaded.move_to_end(asked.key)
            self._users[found] = self._users.get(found, 0) + 1
        return found

    async def _get(self, asked: _Asked) -> LoadedFragment:
        """The same, loaded if need be, once by whoever comes first."""
        key = asked.key
        while (loading := self._loading.get(key)) is not None:
            await loading.wait()
            found = self._find(asked)
            if found is not None:
                return found
        self._loading[key] = done = anyio.Event()
        try:
            loaded = await self._load(*asked.specs())
            if self._is_closed:
                await loaded.aclose()
            self._find(asked)  # refuses to go on if it was closed meanwhile
            self._loaded[key] = loaded
            self._users[loaded] = 1
        finally:
            del self._loading[key]
            done.set()
        try:
            await self._evict()
        except BaseException:
            self._leave(loaded)
            raise
        return loaded

    def _leave(self, loaded: LoadedFragment) -> None:
        left = self._users[loaded] - 1
        if left:
            self._users[loaded] = left
        else:
            del self._users[loaded]

    async def _evict(self) -> None:
        """Close those beyond the limit that nobody uses, the least used first."""
        surplus = []
        for key, loaded in list(self._loaded.items()):
            if len(self._loaded) <= self.limit:
                break
            if loaded not in self._users:
                surplus.append(self._loaded.pop(key))
        if surplus:
            await close_each(f"closing fragments of {self.name!r}", surplus)


class _Asked(NamedTuple):
    """The arguments of one call: what they are a key to, and what they hold."""

    key: object
    structure: Structure
    leaves: list[Any]
    types: list[TensorType | None]
    arrays: list[Any]

    def specs(self) -> tuple[Sequence[Any], Mapping[str, Any]]:
        """The arguments with types in place of arrays; no text is taken for one."""
        given = [
            found or (Constant(leaf) if isinstance(leaf, str) else leaf)
            for leaf, found in zip(self.leaves, self.types, strict=True)
        ]
        args, kwargs = self.structure.unflatten(iter(given))
        return args, kwargs


def _type_of_text(leaf: object) -> object:
    """The type that a text such as "f32[8]" names; anything else as it is."""
    is_type = isinstance(leaf, str) and leaf.endswith("]")
    return TensorType.parse(leaf) if is_type else leaf
