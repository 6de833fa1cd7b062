"""What a device has room for, as constraints of a space."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import update_wrapper
from typing import Any, cast

from accy_async.backends.capabilities import Capabilities
from accy_async.errors import InvalidValue
from accy_async.tuning.search.space import Constraint, Value, parameters_of

__all__ = ["resource_limits"]

Extents = tuple[int, int, int]


def resource_limits(
    capabilities: Capabilities,
    *,
    threadgroup: Callable[..., int | tuple[int, ...]] | None = None,
    shared_memory_bytes: Callable[..., int] | None = None,
) -> tuple[Constraint, ...]:
    """Constraints that keep schedules within a device's limits.

    ::

        resource_limits(
            session.capabilities,
            threadgroup=lambda tile, width: (tile, tile // width),
            shared_memory_bytes=lambda tile, stages: 4 * tile * tile * stages,
        )

    Args:
        capabilities: the device's.
        threadgroup: the threads of a block, in number or in each extent, from the
            parameters that it names; zero threads are ruled out too.
        shared_memory_bytes: the block-shared memory, static and dynamic together.

    Raises:
        InvalidType: one is no function of named parameters.
    """
    made = []
    if threadgroup is not None:
        limit = capabilities.max_threads_per_block
        most = capabilities.max_threadgroup
        made.append(
            _limit(
                threadgroup,
                lambda found: _fits(_extents(found), limit, most),
                f"a threadgroup of at most {limit} threads, within "
                f"{' x '.join(map(str, most))}",
                "threadgroup",
            )
        )
    if shared_memory_bytes is not None:
        room = capabilities.max_shared_memory_bytes
        made.append(
            _limit(
                shared_memory_bytes,
                lambda found: 0 <= int(found) <= room,
                f"at most {room} bytes of shared memory",
                "shared_memory_bytes",
            )
        )
    return tuple(made)


def _limit(
    function: Callable[..., Any], fits: Callable[[Any], bool], label: str, name: str
) -> Constraint:
    parameters_of(f"resource_limits.{name}", function)

    def predicate(**values: Value) -> bool:
        return fits(function(**cast("Mapping[str, Any]", values)))

    # The names that it takes are the function's.
    return Constraint(update_wrapper(predicate, function), label)


def _extents(found: int | tuple[int, ...]) -> Extents:
    extents = found if isinstance(found, tuple) else (found,)
    if not 1 <= len(extents) <= 3:
        raise InvalidValue("threadgroup", found, "one to three extents")
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


def _fits(extents: Extents, limit: int, most: tuple[int, int, int]) -> bool:
    threads = extents[0] * extents[1] * extents[2]
    within = all(1 <= one <= bound for one, bound in zip(extents, most, strict=True))
    return within and threads <= limit
