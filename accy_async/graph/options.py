"""How a plan is run: where, after what, with which scalars and candidates."""

from __future__ import annotations

import math
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING

import attrs

from accy_async.backends.handles import EventHandle, StreamHandle
from accy_async.dtypes import ScalarArgument
from accy_async.errors import InvalidType, InvalidValue, LaunchArgumentMismatch
from accy_async.values import (
    enum,
    field_name,
    instances,
    member_of,
    number,
    optional,
    some_names,
    text,
    to_tuple,
    tuple_of,
)

if TYPE_CHECKING:
    from typing import Any

    from attrs import Attribute

    from accy_async.backends.base import Backend
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = [
    "LaunchOptions",
    "Lowering",
    "OnError",
    "check_options",
    "refuse_whereabouts",
]


class OnError(str, Enum):
    """What becomes of the nodes that do not depend on one that failed."""

    FINISH = "finish"
    """They finish; only what depends on the failed node is skipped."""

    CANCEL = "cancel"
    """Nothing further is submitted, and what has not begun yet is skipped."""

    def __str__(self) -> str:
        return self.value


class Lowering(str, Enum):
    """Whether a plan is run as one graph of the device."""

    AUTOMATIC = "automatic"
    """From its second run with the same bindings on, where it can be."""

    ALWAYS = "always"
    """From its first run on; refused where it cannot be, with the reasons."""

    NEVER = "never"
    """It is submitted node by node."""

    def __str__(self) -> str:
        return self.value


def _lowering(value: Lowering | str) -> Lowering:
    """Converter: a member, or its value as text."""
    return member_of(Lowering, value)


def on_error(value: OnError | str) -> OnError:
    """Converter: a member, or its value as text."""
    return member_of(OnError, value)


def _check_tuning(
    instance: object, attribute: Attribute[Any], value: Mapping[str, int]
) -> None:
    name = field_name(instance, attribute)
    expected = "a mapping from node names to candidate indices"
    if not isinstance(value, Mapping):
        raise InvalidType(name, value, expected)
    for node, candidate in value.items():
        if not isinstance(node, str):
            raise InvalidType(name, node, expected)
        if isinstance(candidate, bool) or not isinstance(candidate, int):
            raise InvalidType(f"{name}[{node!r}]", candidate, expected)
        if candidate < 0:
            raise InvalidValue(f"{name}[{node!r}]", candidate, expected)


@attrs.frozen(kw_only=True, eq=False)
class LaunchOptions:
    """How one run of a plan differs from the plain one.

    Attributes:
        stream: run everything on this stream, one after the other in the order of
            the plan's layout on one; None for its own layout on leased streams.
        wait_events: events that the run waits for on the device before anything.
        signal_event: an event that the run signals when all of it is done.
        tuning: the index of the launch candidate that a node uses, by its name.
        runtime_scalars: what the plan's `RuntimeScalar` references stand for.
        on_error: what becomes of the nodes that do not depend on a failed one.
        lowering: whether the run is submitted as one graph of the device.
        weight: the run's share, against that of the other runs.
        name: the run's name in errors, logs and traces.
    """

    stream: StreamHandle | None = attrs.field(
        default=None, validator=optional(instances(StreamHandle))
    )
    wait_events: tuple[EventHandle, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(EventHandle, expected="EventHandle values"),
    )
    signal_event: EventHandle | None = attrs.field(
        default=None, validator=optional(instances(EventHandle))
    )
    tuning: Mapping[str, int] = attrs.field(factory=dict, validator=_check_tuning)
    runtime_scalars: tuple[ScalarArgument, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(ScalarArgument, expected="ScalarArgument values"),
    )
    on_error: OnError = attrs.field(
        default=OnError.FINISH, converter=on_error, validator=enum(OnError)
    )
    lowering: Lowering = attrs.field(
        default=Lowering.AUTOMATIC, converter=_lowering, validator=enum(Lowering)
    )
    weight: float = attrs.field(default=1.0, validator=number(0.001, 1000.0))
    name: str | None = attrs.field(default=None, validator=optional(text()))

    @property
    def leaves_plan_unchanged(self) -> bool:
        """True where a plan prepared without options serves as it is."""
        return (
            self.stream is None
            and not self.wait_events
            and self.signal_event is None
            and not self.tuning
            and not self.runtime_scalars
        )


def check_options(
    backend: Backend, plan: LaunchGraphPlan, options: LaunchOptions
) -> None:
    """Refuse options that do not fit a plan, or are of another device.

    Raises:
        InvalidType: they are none.
        LaunchArgumentMismatch: a scalar, a tuned node or a handle does not fit.
    """
    if not isinstance(options, LaunchOptions):
        raise InvalidType("start.options", options, "LaunchOptions")
    handles = [("stream", options.stream), ("signal_event", options.signal_event)]
    handles += [("wait_events", event) for event in options.wait_events]
    for name, handle in handles:
        if handle is not None and (why := backend.foreign(handle)):
            raise LaunchArgumentMismatch(f"options.{name}: it {why}")
    given, taken = len(options.runtime_scalars), plan.runtime_scalar_count
    if given != taken:
        raise LaunchArgumentMismatch(
            f"options.runtime_scalars: {given} were given, the plan takes {taken}"
        )
    for index, scalar in enumerate(options.runtime_scalars):
        dtype = plan.scalar_dtypes.get(index, scalar.dtype)
        if scalar.dtype is not dtype:
            raise LaunchArgumentMismatch(
                f"options.runtime_scalars[{index}]: got {scalar!r}, expected {dtype}"
            )
    for name in options.tuning:
        if name not in plan.node_index:
            raise LaunchArgumentMismatch(
                f"options.tuning: the plan has no node {name!r}; it has "
                f"{some_names(plan.node_index)}"
            )
    if not math.isfinite(options.weight):
        raise LaunchArgumentMismatch("options.weight: expected a finite number")


def refuse_whereabouts(options: LaunchOptions) -> None:
    """Refuse options that say where and after what a single run is to be."""
    if not isinstance(options, LaunchOptions):
        raise InvalidType("prepare.options", options, "LaunchOptions")
    if options.stream or options.wait_events or options.signal_event:
        raise LaunchArgumentMismatch(
            "prepare.options: a stream and events are for single runs; name events in "
            "the plan instead"
        )
