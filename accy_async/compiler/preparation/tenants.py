"""Which values share memory, and what has to be copied so that none is lost.

A *tenant* is memory with what is in it over time: one value, its views, and what a
kernel call writes in its place. Walking the launches in their order gives each value
its tenant; where a call takes over memory whose value is needed afterwards, a copy is
put before it.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from accy_async.artifact.planned import CompileLaunch
from accy_async.compiler.preparation.dispatch import DispatchItem, DispatchPlan
from accy_async.compiler.preparation.extraction import copy_function
from accy_async.compiler.semantic import Constant, TensorType, Value

__all__ = ["Launch", "Tenancy", "Tenant"]


@attrs.define(eq=False)
class Tenant:
    """Memory that a value and its successors live in.

    Attributes:
        type: of what is in it, as the plan shows it.
        parameter: the number of the parameter that comes in it, or None.
        constant: the constant that lies in it, or None.
        is_result: whether a result of the program is in it at last.
        writers: the launches that write it, in order.
        users: the launches that write or read it.
    """

    type: TensorType
    parameter: int | None = None
    constant: Constant | None = None
    is_result: bool = False
    writers: list[int] = attrs.field(factory=list)
    users: list[int] = attrs.field(factory=list)

    @property
    def is_scratch(self) -> bool:
        """Whether only launches see it."""
        return self.parameter is None and self.constant is None and not self.is_result


@attrs.define(eq=False)
class Launch:
    """A work item with its memory.

    Attributes:
        item: the work item.
        results: the tenants written, in the order of the kernel's arguments.
        operands: the tenants read, in that order.
        taken: for a kernel call, the results that take an operand's memory over.
        needs: the launches that must be done before, direct ones.
    """

    item: DispatchItem
    results: list[Tenant]
    operands: list[Tenant]
    taken: frozenset[int] = frozenset()
    needs: set[int] = attrs.field(factory=set)


class Tenancy:
    """Tenants and launches of a program.

    Attributes:
        tenants: in the order in which they come to be.
        launches: in an order in which they can run, copies among them.
        parameters: the tenant of each parameter.
        results: the tenant of each result.
    """

    def __init__(self, plan: DispatchPlan) -> None:
        self.tenants: list[Tenant] = []
        self.launches: list[Launch] = []
        self._plan = plan
        self._of: dict[Value, Tenant] = {}
        self._results = {plan.base(value) for value in plan.function.results}
        self._last_read: dict[Value, int] = {}
        for place, item in enumerate(plan.items):
            for value in item.operands:
                self._last_read[plan.base(value)] = place
        self.parameters = [
            self._settle(value, Tenant(value.type, parameter=number))
            for number, value in enumerate(plan.function.parameters)
        ]
        for value, constant in plan.constants.items():
            self._settle(value, Tenant(value.type, constant=constant))
        for place, item in enumerate(plan.items):
            self._launch(place, item)
        self.results = [self._result(value) for value in plan.function.results]

    def _settle(self, value: Value, tenant: Tenant) -> Tenant:
        self._of[value] = tenant
        self.tenants.append(tenant)
        return tenant

    def _tenant(self, value: Value) -> Tenant:
        return self._of[self._plan.base(value)]

    def _launch(self, place: int, item: DispatchItem) -> None:
        operands = [self._tenant(value) for value in item.operands]
        taken = {}
        if item.call is not None:
            for result, operand in enumerate(item.call.result_aliases):
                if operand is not None:
                    operands[operand] = self._taken_over(place, item, operand)
                    taken[result] = operands[operand]
        results = []
        for number, value in enumerate(item.results):
            if number in taken:
                self._of[value] = taken[number]
                results.append(taken[number])
            else:
                results.append(self._settle(value, Tenant(value.type)))
        self._append(Launch(item, results, operands, frozenset(taken)))

    def _taken_over(self, place: int, item: DispatchItem, operand: int) -> Tenant:
        """The memory that a call may write over: the operand's own, or a copy."""
        value = item.operands[operand]
        base = self._plan.base(value)
        tenant = self._of[base]
        bases = [self._plan.base(other) for other in item.operands]
        is_needed = (
            tenant.constant is not None
            or base in self._results
            or self._last_read[base] > place
            or bases.count(base) > 1
            or tenant.type != value.type
        )
        return self._copied(tenant, value.type) if is_needed else tenant

    def _copied(self, tenant: Tenant, type: TensorType) -> Tenant:
        """A new tenant with another's elements, in a shape."""
        item = DispatchItem(
            kind=CompileLaunch.ELEMENTWISE,
            operands=(),
            results=(),
            function=copy_function(tenant.type, type),
            opcode="copy",
        )
        copied = Tenant(type)
        self.tenants.append(copied)
        self._append(Launch(item, [copied], [tenant]))
        return copied

    def _append(self, launch: Launch) -> None:
        """Add a launch, and say which it has to come after."""
        number = len(self.launches)
        self.launches.append(launch)
        for tenant in launch.operands:
            launch.needs.update(tenant.writers[-1:])
        for tenant in launch.results:
            launch.needs.update(tenant.users)
        for tenant in launch.results:
            tenant.writers.append(number)
        for tenant in (*launch.operands, *launch.results):
            if tenant.users[-1:] != [number]:
                tenant.users.append(number)
        launch.needs.discard(number)

    def _result(self, value: Value) -> Tenant:
        """The tenant in which a result is found, of its type."""
        tenant = self._tenant(value)
        is_free = tenant.is_scratch or tenant.type == value.type
        if not is_free:
            tenant = self._copied(tenant, value.type)
        tenant.type = value.type
        tenant.is_result = True
        return tenant


def ancestors(launches: Sequence[Launch]) -> list[int]:
    """For each launch a number whose bits say which come before it in any case."""
    before: list[int] = []
    for launch in launches:
        bits = 0
        for number in launch.needs:
            bits |= before[number] | 1 << number
        before.append(bits)
    return before
