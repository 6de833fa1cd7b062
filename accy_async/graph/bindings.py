"""What a plan's slots are bound to: checked, and taken from other libraries.

Checking refuses what a slot cannot be before anything is allocated or loaded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from accy_async.backends.adopting import adopt_array
from accy_async.backends.array import DeviceArray
from accy_async.backends.handles import (
    BufferBinding,
    BufferHandle,
    EventHandle,
)
from accy_async.dtypes import DType
from accy_async.errors import InvalidType, LaunchArgumentMismatch
from accy_async.graph.aliases import check_aliases
from accy_async.graph.nodes import BufferSlot, HostSlot
from accy_async.interop.foreign import is_foreign
from accy_async.values import refuse_masked, some_names

if TYPE_CHECKING:
    from accy_async.backends.base import Backend
    from accy_async.graph.plan import LaunchGraphPlan

__all__ = ["Binding", "Memory", "adopt_bindings", "check_array", "check_bindings"]

Binding = DeviceArray | BufferBinding | BufferHandle | EventHandle | object
"""What a slot or an external event is bound to; host slots take numpy arrays."""

Memory = BufferHandle | np.ndarray

_OURS = (DeviceArray, BufferBinding, BufferHandle, EventHandle)


def adopt_bindings(
    backend: Backend, plan: LaunchGraphPlan, bindings: Mapping[str, Binding]
) -> dict[str, Binding]:
    """The bindings, with arrays of other libraries as device arrays over their memory.

    Raises:
        InvalidType: they are no mapping.
        ExchangeRefused: one cannot be taken as it is.
    """
    if not isinstance(bindings, Mapping):
        raise InvalidType("bindings", bindings, "a mapping from names of slots")
    adopted = dict(bindings)
    if backend.exchange_device is None:
        return adopted
    known: dict[int, DeviceArray] = {}
    for slot in plan.slots:
        given = adopted.get(slot.name)
        if isinstance(slot, HostSlot) or isinstance(given, _OURS):
            continue
        if is_foreign(given):
            # One array bound to two slots is one memory for both.
            if id(given) not in known:
                where = f"bindings[{slot.name!r}]"
                known[id(given)] = adopt_array(backend, given, what=where)
            adopted[slot.name] = known[id(given)]
    return adopted


def check_bindings(
    backend: Backend, plan: LaunchGraphPlan, bindings: Mapping[str, Binding]
) -> dict[str, Memory]:
    """The buffer or array of every slot that the caller binds.

    Raises:
        LaunchArgumentMismatch: a slot or event is not bound, something is bound
            that the plan does not have, or a buffer or array is too small, of
            another dtype, of another backend, or read-only where it is written; or
            slots are bound to one memory that the plan does not order as one.
        InvalidType: something is bound to what it cannot be.
    """
    wanted = {slot.name: slot for slot in plan.slots}
    known = (*wanted, *plan.external_events)
    for name in bindings:
        if name not in known:
            raise LaunchArgumentMismatch(
                f"bindings: the plan has no slot or external event {name!r}; it has "
                f"{some_names(known)}"
            )
    bound: dict[str, Memory] = {}
    for name, slot in wanted.items():
        if isinstance(slot, BufferSlot) and slot.is_scratch:
            if name in bindings:
                raise LaunchArgumentMismatch(
                    f"bindings[{name!r}]: a scratch slot is the run's own"
                )
            continue
        if name not in bindings:
            raise LaunchArgumentMismatch(f"bindings: slot {name!r} is not bound")
        bound[name] = _bind(backend, plan, slot, bindings[name])
    for name in plan.external_events:
        event = bindings.get(name)
        if not isinstance(event, EventHandle):
            raise LaunchArgumentMismatch(
                f"bindings: external event {name!r} is not bound to an event"
            )
        if why := backend.foreign(event):
            raise LaunchArgumentMismatch(f"bindings: external event {name!r} {why}")
    check_aliases(plan, bound)
    return bound


def _bind(
    backend: Backend,
    plan: LaunchGraphPlan,
    slot: BufferSlot | HostSlot,
    given: Binding,
) -> Memory:
    where = f"bindings[{slot.name!r}]"
    if isinstance(slot, HostSlot):
        return check_array(where, plan, slot, given)
    if isinstance(given, DeviceArray):
        if given.dtype is not slot.dtype:
            raise LaunchArgumentMismatch(
                f"{where}: {given!r}, expected dtype {slot.dtype}"
            )
        handle = given.binding().handle
    elif isinstance(given, BufferBinding):
        _check_binding(where, plan, slot, given)
        handle = given.handle
    elif isinstance(given, BufferHandle):
        handle = given
    else:
        raise InvalidType(where, given, "a DeviceArray, BufferBinding or BufferHandle")
    if why := backend.foreign(handle):
        raise LaunchArgumentMismatch(f"{where}: the buffer {why}")
    if handle.is_read_only and plan.is_written(slot.name):
        raise LaunchArgumentMismatch(
            f"{where}: the plan writes it, and the array is read-only"
        )
    if handle.byte_size < slot.byte_size:
        raise LaunchArgumentMismatch(
            f"{where}: {handle.byte_size} bytes, expected at least {slot.byte_size}"
        )
    return handle


def check_array(
    where: str, plan: LaunchGraphPlan, slot: HostSlot, given: Binding
) -> np.ndarray:
    """The array that a host slot is bound to.

    Raises:
        LaunchArgumentMismatch: it is not what the slot is.
        InvalidType: it is no array.
        InvalidValue: it has a mask.
    """
    if not isinstance(given, np.ndarray):
        raise InvalidType(where, given, "a numpy array")
    refuse_masked(where, given)
    # numpy has no name for bf16, which travels as uint16.
    wanted = np.dtype("uint16") if slot.dtype is DType.BF16 else slot.dtype.numpy
    if given.dtype != wanted or given.shape != slot.shape:
        raise LaunchArgumentMismatch(
            f"{where}: an array of {given.dtype} and shape {given.shape}, expected "
            f"{wanted} and {slot.shape}"
        )
    if not given.flags.c_contiguous:
        raise LaunchArgumentMismatch(f"{where}: the array is not C-contiguous")
    if not given.flags.writeable and plan.is_written(slot.name):
        raise LaunchArgumentMismatch(f"{where}: the array is read-only")
    return given


def _check_binding(
    where: str, plan: LaunchGraphPlan, slot: BufferSlot, given: BufferBinding
) -> None:
    if given.byte_size < slot.byte_size:
        raise LaunchArgumentMismatch(
            f"{where}: a binding of {given.byte_size} bytes, expected at least "
            f"{slot.byte_size}"
        )
    if not given.access.writes and plan.is_written(slot.name):
        raise LaunchArgumentMismatch(f"{where}: the binding is {given.access}")
