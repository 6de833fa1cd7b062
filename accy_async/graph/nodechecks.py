"""Checking a plan's nodes and loops one by one, against its slots and scalars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.geometry import DerivedLaunch
from accy_async.artifact.parameters import check_buffer_sizes
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import GraphError, LaunchArgumentMismatch
from accy_async.graph.nodes import (
    BufferSlot,
    BufferUse,
    CopyBuffer,
    CopyFromDevice,
    CopyToDevice,
    Fill,
    HostCall,
    HostSlot,
    KernelCall,
    LaunchGraphLoop,
    LaunchGraphNode,
    RuntimeScalar,
)

__all__ = ["NodeChecker", "Slot", "check_loop"]

Slot = BufferSlot | HostSlot


class NodeChecker:
    """Checks nodes against their plan's slots and runtime scalars.

    Args:
        slots: by name.
        runtime_scalar_count: how many scalars a run brings.

    Attributes:
        entries: the kernels that the nodes launch, each once.
        scalar_dtypes: of the run's scalars, by index, where something says it.
    """

    def __init__(self, slots: Mapping[str, Slot], runtime_scalar_count: int) -> None:
        self.slots = slots
        self.runtime_scalar_count = runtime_scalar_count
        self.entries: dict[int, KernelCallArtifact] = {}
        self.scalar_dtypes: dict[int, DType] = {}
        self._wanted: dict[int, tuple[DType | None, ...]] = {}

    def check(self, node: LaunchGraphNode) -> None:
        """Check one node.

        Raises:
            GraphError: it contradicts its kernel, the slots, or a node before it.
        """
        operation = node.operation
        if isinstance(operation, KernelCall):
            for use in operation.buffers:
                self._need_buffer(node, use.slot)
            self.entries[id(operation.entry)] = operation.entry
            self._check_kernel(node, operation)
            return
        if node.runtime_scalars or node.tuning_candidate is not None:
            what = "runtime scalars" if node.runtime_scalars else "a tuning candidate"
            raise GraphError(
                f"node {node.name!r} has {what}, but launches no kernel: "
                f"{type(operation).__name__}"
            )
        if isinstance(operation, (CopyToDevice, CopyFromDevice, CopyBuffer)):
            self._check_copy(node, operation)
        elif isinstance(operation, Fill):
            self._check_fill(node, operation)
        elif isinstance(operation, HostCall) and (
            node.stream is not None or node.priority is not None
        ):
            what = "a stream label" if node.stream is not None else "a priority"
            raise GraphError(
                f"node {node.name!r} calls a function on the host, which runs on no "
                f"stream, but has {what}"
            )

    def _need_buffer(self, node: LaunchGraphNode, name: str) -> BufferSlot:
        slot = self.slots[name]
        if not isinstance(slot, BufferSlot):
            raise GraphError(
                f"node {node.name!r} uses host slot {name!r} as a buffer; copy it to "
                "a buffer slot first"
            )
        return slot

    def _need_host(self, node: LaunchGraphNode, name: str) -> HostSlot:
        slot = self.slots[name]
        if not isinstance(slot, HostSlot):
            raise GraphError(
                f"node {node.name!r} uses buffer slot {name!r} as host memory; "
                "expected a host slot"
            )
        return slot

    def _check_copy(
        self,
        node: LaunchGraphNode,
        operation: CopyToDevice | CopyFromDevice | CopyBuffer,
    ) -> None:
        source: Slot
        target: Slot
        if isinstance(operation, CopyToDevice):
            source = self._need_host(node, operation.source)
            target = self._need_buffer(node, operation.target)
        elif isinstance(operation, CopyFromDevice):
            source = self._need_buffer(node, operation.source)
            target = self._need_host(node, operation.target)
        else:
            source = self._need_buffer(node, operation.source)
            target = self._need_buffer(node, operation.target)
        if source is target:
            raise GraphError(
                f"node {node.name!r} copies slot {source.name!r} to itself"
            )
        if source.byte_size != target.byte_size:
            raise GraphError(
                f"node {node.name!r} copies slot {source.name!r} of "
                f"{source.byte_size} bytes to slot {target.name!r} of "
                f"{target.byte_size}; expected the same size"
            )

    def _check_fill(self, node: LaunchGraphNode, operation: Fill) -> None:
        slot = self._need_buffer(node, operation.target)
        if operation.value.dtype is not slot.dtype:
            raise GraphError(
                f"node {node.name!r} fills slot {slot.name!r} of {slot.dtype} with "
                f"{operation.value!r}; expected {slot.dtype}"
            )

    def _check_uses(
        self, where: str, uses: Sequence[BufferUse], entry: KernelCallArtifact
    ) -> None:
        for number, (use, parameter) in enumerate(
            zip(uses, entry.buffers, strict=False)
        ):
            slot = self.slots[use.slot]
            if slot.dtype is not parameter.dtype:
                raise GraphError(
                    f"{where}: buffer {number} is slot {use.slot!r} of {slot.dtype}, "
                    f"expected {parameter.dtype}"
                )
            if parameter.is_written and not use.access.writes:
                raise GraphError(
                    f"{where}: buffer {number} is slot {use.slot!r}, only read; the "
                    f"kernel writes it ({parameter.access})"
                )

    def _check_kernel(self, node: LaunchGraphNode, operation: KernelCall) -> None:
        entry = operation.entry
        where = f"node {node.name!r}, kernel {entry.target!r}"
        self._check_uses(where, operation.buffers, entry)
        scalars = node.runtime_scalars
        count = entry.runtime_scalar_argument_count
        if scalars:
            if len(scalars) != count:
                raise GraphError(
                    f"{where}: got {len(scalars)} runtime scalars, expected {count}"
                )
            self._check_scalars(where, scalars, entry)
        elif count and not entry.runtime_scalar_defaults:
            raise GraphError(
                f"{where}: got no runtime scalars, expected {count}; the kernel has "
                "no defaults for them"
            )
        if entry.buffers:
            self._check_sizes(where, node, operation)
        if node.tuning_candidate is not None:
            plan = entry.launch_resources
            candidates = len(plan.candidates) if plan is not None else 0
            if node.tuning_candidate >= candidates:
                raise GraphError(
                    f"{where}: tuning candidate {node.tuning_candidate}, but it has "
                    f"{candidates} launch candidates"
                )

    def _check_scalars(
        self,
        where: str,
        scalars: Sequence[ScalarArgument | RuntimeScalar],
        entry: KernelCallArtifact,
    ) -> None:
        wanted = self._wanted.get(id(entry))
        if wanted is None:
            wanted = self._wanted[id(entry)] = _scalar_dtypes(entry)
        for number, (scalar, dtype) in enumerate(zip(scalars, wanted, strict=True)):
            if isinstance(scalar, RuntimeScalar):
                if scalar.index >= self.runtime_scalar_count:
                    raise GraphError(
                        f"{where}: scalar {number} is {scalar!r}, but the plan has "
                        f"runtime_scalar_count={self.runtime_scalar_count}"
                    )
                if dtype is not None:
                    self.want(where, scalar.index, dtype)
            elif dtype is not None and scalar.dtype is not dtype:
                raise GraphError(
                    f"{where}: scalar {number} is {scalar!r}, expected {dtype}"
                )

    def want(self, where: str, index: int, dtype: DType) -> None:
        """A runtime scalar is to be of this dtype.

        Raises:
            GraphError: somebody wants it of another.
        """
        known = self.scalar_dtypes.setdefault(index, dtype)
        if known is not dtype:
            raise GraphError(
                f"{where}: takes runtime scalar {index} as {dtype}, another node as "
                f"{known}"
            )

    def _check_sizes(
        self, where: str, node: LaunchGraphNode, operation: KernelCall
    ) -> None:
        """Refuse slots too small for scalars that are known already."""
        entry = operation.entry
        given = node.runtime_scalars or entry.runtime_scalar_defaults
        scalars = [one for one in given if isinstance(one, ScalarArgument)]
        if len(scalars) != len(given):
            return
        sizes = [self.slots[use.slot].byte_size for use in operation.buffers]
        try:
            check_buffer_sizes(where, entry.buffers, scalars, sizes)
        except LaunchArgumentMismatch as error:
            raise GraphError(str(error)) from None


def _scalar_dtypes(entry: KernelCallArtifact) -> tuple[DType | None, ...]:
    """What dtype an entry says each of its runtime scalars has, where it does."""
    found: list[DType | None] = [None] * entry.runtime_scalar_argument_count
    for index, default in enumerate(entry.runtime_scalar_defaults):
        found[index] = default.dtype
    if isinstance(entry.launch, DerivedLaunch):
        for index in entry.launch.argument_indices:
            found[index] = DType.U32
    return tuple(found)


def check_loop(
    loop: LaunchGraphLoop, slots: Mapping[str, Slot], runtime_scalar_count: int
) -> None:
    """Check a loop's count, condition and carries.

    Raises:
        GraphError: they contradict each other, the slots, or the plan's scalars.
    """
    count = loop.count
    if isinstance(count, RuntimeScalar) and count.index >= runtime_scalar_count:
        raise GraphError(
            f"loop {loop.name!r}: its count is {count!r}, but the plan has "
            f"runtime_scalar_count={runtime_scalar_count}"
        )
    if loop.condition is not None:
        slot = _loop_buffer(loop, loop.condition, slots, "condition")
        if slot.dtype not in (DType.I32, DType.U32) or slot.byte_size != 4:
            raise GraphError(
                f"loop {loop.name!r}: its condition {slot.name!r} is {_shape(slot)}, "
                "expected one i32 or u32"
            )
    carried: set[str] = set()
    for carry in loop.carries:
        current = _loop_buffer(loop, carry.current, slots, "carry")
        following = _loop_buffer(loop, carry.next, slots, "carry")
        if current is following:
            raise GraphError(
                f"loop {loop.name!r}: slot {current.name!r} is carried to itself; "
                "expected two slots, which change places"
            )
        if (current.dtype, current.shape) != (following.dtype, following.shape):
            raise GraphError(
                f"loop {loop.name!r}: carry from {following.name!r}, "
                f"{_shape(following)}, to {current.name!r}, {_shape(current)}; "
                "expected the same dtype and shape"
            )
        for slot in (current, following):
            if slot.name in carried:
                raise GraphError(
                    f"loop {loop.name!r}: slot {slot.name!r} is carried twice"
                )
            carried.add(slot.name)


def _loop_buffer(
    loop: LaunchGraphLoop, name: str, slots: Mapping[str, Slot], what: str
) -> BufferSlot:
    slot = slots.get(name)
    if slot is None:
        raise GraphError(f"loop {loop.name!r}: its {what} {name!r} is no known slot")
    if not isinstance(slot, BufferSlot):
        raise GraphError(
            f"loop {loop.name!r}: its {what} {name!r} is a host slot; expected a "
            "buffer slot"
        )
    return slot


def _shape(slot: BufferSlot) -> str:
    extents = "x".join(str(extent) for extent in slot.shape) or "one element"
    return f"{slot.dtype} [{extents}]"
