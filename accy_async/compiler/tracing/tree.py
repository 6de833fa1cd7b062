"""Arguments and results that are nested: tuples, lists and dicts of arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from accy_async.compiler.tracing.calls import counted, given
from accy_async.errors import LaunchArgumentMismatch

__all__ = ["Structure", "check_nesting", "constant_key", "flatten", "unhashable"]


@attrs.frozen
class Structure:
    """The nesting of some leaves.

    ``kind`` is "tuple", "list", "dict" (of ``keys`` in a fixed order), "none" for
    None, or "leaf".
    """

    kind: str
    children: tuple[Structure, ...] = ()
    keys: tuple[Any, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "dict":
                keys = ", ".join(str(key) for key in self.keys)
                return f"a dict of {keys}" if keys else "an empty dict"
            case "none":
                return "None"
            case "leaf":
                return "an array or a constant"
            case _:
                return f"a {self.kind} of {len(self.children)}"

    def unflatten(self, leaves: Iterator[Any]) -> Any:  # noqa: ANN401 - any nesting
        """The leaves, nested so."""
        if self.kind == "leaf":
            return next(leaves)
        if self.kind == "none":
            return None
        parts = [child.unflatten(leaves) for child in self.children]
        if self.kind == "dict":
            return dict(zip(self.keys, parts, strict=True))
        return tuple(parts) if self.kind == "tuple" else parts

    def names(self, prefix: str) -> Iterator[str]:
        """A name for each leaf, by its path: ``weights.hidden.0``."""
        if self.kind == "leaf":
            yield prefix
        keys: Sequence[Any] = self.keys or range(len(self.children))
        for key, child in zip(keys, self.children, strict=True):
            yield from child.names(f"{prefix}.{key}" if prefix else str(key))


def constant_key(value: object) -> tuple[object, object]:
    """What two constants share where a program made for one serves the other.

    1, 1.0 and True are three; so are 0.0 and -0.0 two, and all NaN of a type are one.
    """
    if isinstance(value, (float, complex, np.inexact)):
        return type(value), repr(value)
    return type(value), value


def check_nesting(name: str, got: Structure, traced: Structure) -> None:
    """Refuse a call's ``(args, kwargs)`` if they are nested otherwise than was traced.

    Raises:
        LaunchArgumentMismatch: they are; names the first argument that is.
    """
    here, there = got.children[0], traced.children[0]
    mine, theirs = got.children[1].keys, traced.children[1].keys
    if len(here.children) != len(there.children) or mine != theirs:
        by_name = f", and by name {', '.join(theirs)}" if theirs else ""
        raise LaunchArgumentMismatch(
            f"{name} was traced for {counted(len(there.children), 'argument')} by place"
            f"{by_name}; {given(len(here.children), mine)}"
        )
    for part, wanted in zip(got.children, traced.children, strict=True):
        _check_same(name, "argument", part, wanted)


def _check_same(name: str, path: str, got: Structure, traced: Structure) -> None:
    if (got.kind, got.keys, len(got.children)) != (
        traced.kind,
        traced.keys,
        len(traced.children),
    ):
        raise LaunchArgumentMismatch(
            f"{name}: {path} is nested otherwise than traced: {got}, expected {traced}"
        )
    keys: Sequence[Any] = got.keys or range(len(got.children))
    for key, one, wanted in zip(keys, got.children, traced.children, strict=True):
        joint = " " if path == "argument" else "."
        _check_same(name, f"{path}{joint}{key}", one, wanted)


def unhashable(leaves: Sequence[object]) -> object:
    """The first of the leaves that cannot be hashed; None if all can."""
    for leaf in leaves:
        try:
            hash(constant_key(leaf))
        except TypeError:
            if not hasattr(leaf, "shape"):
                return leaf
    return None


def flatten(tree: object) -> tuple[Structure, list[Any]]:
    """The nesting of a tree, and its leaves in order."""
    leaves: list[Any] = []
    return _flatten(tree, leaves.append), leaves


def _flatten(tree: object, leaf: Callable[[object], None]) -> Structure:
    if tree is None:
        return Structure("none")
    if isinstance(tree, dict):
        # In one order, however the dict was filled; keys of mixed kinds by their text.
        keys = sorted(tree, key=lambda key: (type(key).__name__, str(key)))
        children = tuple(_flatten(tree[key], leaf) for key in keys)
        return Structure("dict", children, tuple(keys))
    if isinstance(tree, (tuple, list)):
        if hasattr(tree, "_fields"):
            raise LaunchArgumentMismatch(
                f"{type(tree).__name__} is a named tuple: pass a dict or a tuple"
            )
        kind = "tuple" if isinstance(tree, tuple) else "list"
        return Structure(kind, tuple(_flatten(child, leaf) for child in tree))
    leaf(tree)
    return Structure("leaf")
