"""What the Vulkan backend decides without a driver: times, limits, choice, ranges."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from accy_async.artifact.formats import BackendKind
from accy_async.artifact.spirv import SpirvBinding, SpirvEntryPoint, SpirvModule
from accy_async.backends.devicegraph import (
    GraphBody,
    GraphJoin,
    GraphNode,
    GraphRecord,
)
from accy_async.backends.handles import EventHandle
from accy_async.backends.vulkan.choice import DeviceType, FoundDevice, choose_device
from accy_async.backends.vulkan.clock import elapsed_ticks
from accy_async.backends.vulkan.families import (
    FoundFamily,
    QueueFamily,
    choose_families,
)
from accy_async.backends.vulkan.limits import VulkanLimits, check_module
from accy_async.backends.vulkan.memory import MemoryKind, rank_types
from accy_async.backends.vulkan.ranges import Ranges
from accy_async.backends.vulkan.results import describe, result_error
from accy_async.backends.vulkan.segments import MOST_OF_PART, plan_segments
from accy_async.errors import (
    BackendUnavailable,
    CapabilityMismatch,
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    OutOfMemory,
)

PLAIN = SpirvModule(
    version=(1, 5),
    capabilities=frozenset({"Shader"}),
    extensions=(),
    entry_points=(SpirvEntryPoint("k", (64, 1, 1)),),
    bindings=(SpirvBinding(0, 0, "storage_buffer"),),
    push_constant_bytes=0,
    execution_modes=frozenset(),
)


# C79: time stamps


def test_ticks_are_counted_modulo_the_valid_bits() -> None:
    assert elapsed_ticks(2**36 - 5, 5, 36) == 10
    assert 52.08 * (elapsed_ticks(2**36 - 5, 5, 36) or 0) == pytest.approx(520.8)
    above = 0xABC << 36
    assert elapsed_ticks(above | 7, 12, 36) == 5
    assert elapsed_ticks(2**64 - 1, 4, 64) == 5


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 9), (9, 0), (1 << 36, 9)])
def test_stamps_of_zero_are_not_measured(start: int, end: int) -> None:
    assert elapsed_ticks(start, end, 36) is None


@given(st.integers(2, 64), st.data())
def test_elapsed_is_what_was_added(bits: int, data: st.DataObject) -> None:
    """Or taken away: of two events the second may be the earlier one."""
    start = data.draw(st.integers(1, 2**bits - 1))
    half = 2 ** (bits - 1)
    passed = data.draw(st.integers(1 - half, half - 1))
    end = (start + passed) % 2**bits
    assert elapsed_ticks(start, end, bits) == (passed if end else None)


# C81: limits


def refusal(changes: dict[str, Any]) -> str:
    module = attrs.evolve(PLAIN, **changes)
    with pytest.raises(CapabilityMismatch) as caught:
        check_module(module, "k", 9, VulkanLimits())
    return str(caught.value)


def test_a_plain_module_runs_on_the_least_device() -> None:
    check_module(PLAIN, "k", 1, VulkanLimits())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"entry_points": (SpirvEntryPoint("k", (256, 1, 1)),)},
            "256 maxComputeWorkGroupInvocations (it has 128)",
        ),
        (
            {"entry_points": (SpirvEntryPoint("k", (1, 1, 128)),)},
            "128 maxComputeWorkGroupSize z (it has 64)",
        ),
        ({"push_constant_bytes": 132}, "132 bytes of maxPushConstantsSize"),
        ({"shared_bytes": 16388}, "16388 bytes of maxComputeSharedMemorySize"),
        (
            {"bindings": tuple(SpirvBinding(0, i, "storage_buffer") for i in range(5))},
            "5 maxPerStageDescriptorStorageBuffers (it has 4)",
        ),
        ({"capabilities": frozenset({"Shader", "Int64"})}, "shaderInt64"),
        ({"capabilities": frozenset({"Shader", "Float64"})}, "shaderFloat64"),
        (
            {"capabilities": frozenset({"Shader", "GroupNonUniformShuffle"})},
            "subgroup shuffle",
        ),
        (
            {"capabilities": frozenset({"Shader", "StorageBuffer16BitAccess"})},
            "storageBuffer16BitAccess",
        ),
        ({"capabilities": frozenset({"Shader", "4711"})}, "SPIR-V capability 4711"),
        (
            {
                "capabilities": frozenset({"Shader", "DenormPreserve"}),
                "execution_modes": frozenset({(4459, 32)}),
            },
            "shaderDenormPreserveFloat32",
        ),
    ],
)
def test_each_limit_is_named_with_its_value(
    changes: dict[str, Any], words: str
) -> None:
    message = refusal(changes)
    assert words in message
    assert "'k'" in message


def test_a_device_that_has_it_takes_it() -> None:
    module = attrs.evolve(PLAIN, capabilities=frozenset({"Shader", "Int64"}))
    check_module(module, "k", 1, VulkanLimits(features=frozenset({"shaderInt64"})))


@pytest.mark.parametrize(
    "binding",
    [
        SpirvBinding(1, 0, "storage_buffer"),
        SpirvBinding(0, 0, "uniform_buffer"),
        SpirvBinding(0, 3, "storage_buffer"),
    ],
)
def test_resources_that_are_no_buffers_of_the_kernel_are_refused(
    binding: SpirvBinding,
) -> None:
    with pytest.raises(InvalidArtifact, match="kernel 'k' has a"):
        check_module(attrs.evolve(PLAIN, bindings=(binding,)), "k", 2, VulkanLimits())


# Choosing a device


def found(index: int, kind: DeviceType, name: str, unusable: str = "") -> FoundDevice:
    return FoundDevice(
        index=index, name=name, driver="driver", kind=kind, unusable=unusable
    )


SOFTWARE = found(0, DeviceType.CPU, "llvmpipe")
SMALL = found(1, DeviceType.INTEGRATED_GPU, "Small")
LARGE = found(2, DeviceType.DISCRETE_GPU, "Large 9000")
OLD = found(3, DeviceType.DISCRETE_GPU, "Old", "it has Vulkan 1.0")


def test_the_best_is_hardware_where_there_is_any() -> None:
    every = [SOFTWARE, SMALL, LARGE, OLD]
    assert choose_device(every, None) is LARGE
    assert choose_device([SOFTWARE, SMALL], None) is SMALL
    assert choose_device([SOFTWARE, OLD], None) is SOFTWARE


def test_auto_takes_no_software_device() -> None:
    with pytest.raises(BackendUnavailable, match="no hardware device"):
        choose_device([SOFTWARE, OLD], None, hardware_only=True)
    assert choose_device([SOFTWARE], "LLVM", hardware_only=True) is SOFTWARE


def test_devices_are_had_by_number_and_by_name() -> None:
    every = [SOFTWARE, SMALL, LARGE, OLD]
    assert choose_device(every, 0) is SOFTWARE
    assert choose_device(every, "large") is LARGE
    with pytest.raises(InvalidValue, match="2: Large 9000"):
        choose_device(every, 7)
    with pytest.raises(InvalidValue, match="Large 9000"):
        choose_device(every, "abacus")
    with pytest.raises(BackendUnavailable, match=r"Vulkan 1\.0"):
        choose_device(every, 3)
    with pytest.raises(BackendUnavailable, match="no device was found"):
        choose_device([], None)


def test_what_is_no_number_and_no_name_means_no_device() -> None:
    """Nothing is a part of every name, and 1.0 one of many drivers' versions."""
    every = [SOFTWARE, SMALL, LARGE, OLD]
    with pytest.raises(InvalidValue, match="a number or name of"):
        choose_device(every, "")
    for wrong in (True, 1.0, b"large", ("large",), object()):
        with pytest.raises(InvalidType, match=r"VulkanBackend\.device"):
            choose_device(every, wrong)  # type: ignore[arg-type]
    assert choose_device(every, np.int64(0)) is SOFTWARE  # type: ignore[arg-type]


# Families of queues

GRAPHICS, COMPUTE, TRANSFER, SPARSE, VIDEO = 1, 2, 4, 8, 32


def families(*flags: int) -> list[FoundFamily]:
    return [
        FoundFamily(flags=flag, count=16 - index, timestamp_bits=64)
        for index, flag in enumerate(flags)
    ]


def test_a_device_with_one_family_does_everything_there() -> None:
    kernels, copies = choose_families(families(GRAPHICS | COMPUTE | TRANSFER))
    assert kernels == QueueFamily(0, 4, timestamp_bits=64, urgent=1)
    assert copies is None
    for most, count in ((1, 1), (10, 10), (99, 16)):
        kernels, _ = choose_families(families(GRAPHICS | COMPUTE | TRANSFER), most)
        assert kernels.count == count


def test_kernels_and_copies_go_where_least_else_is_done() -> None:
    """As on a GPU that draws, and has engines for copies and for video."""
    found = families(
        GRAPHICS | COMPUTE | TRANSFER | SPARSE,
        TRANSFER | VIDEO,
        TRANSFER | SPARSE,
        COMPUTE | TRANSFER | SPARSE,
    )
    kernels, copies = choose_families(found)
    assert (kernels.index, kernels.can_compute) == (3, True)
    assert copies == QueueFamily(index=2, count=1, can_compute=False)
    kernels, copies = choose_families(found[:2])
    assert (kernels.index, copies and copies.index) == (0, 1)


def test_of_several_queues_one_is_for_urgent_streams() -> None:
    found = families(COMPUTE)
    for most, expected in ((1, [0.0]), (2, [0.0, 0.0]), (4, [0.0, 0.0, 0.0, 1.0])):
        kernels, _ = choose_families([attrs.evolve(found[0], count=8)], most)
        assert kernels.priorities == expected


# Types of memory

LOCAL, VISIBLE, COHERENT, CACHED = 1, 2, 4, 8
SEEN = VISIBLE | COHERENT


@pytest.mark.parametrize(
    ("flags", "device", "upload", "download"),
    [
        # One type for everything, as of a software device.
        ([LOCAL | SEEN | CACHED], 0, 0, 0),
        # A window of the device's memory comes first, and some that is not coherent.
        ([LOCAL | SEEN, LOCAL, VISIBLE | CACHED, SEEN, SEEN | CACHED], 1, 3, 4),
        # The host's memory comes first; a window of the device's last.
        ([0, LOCAL, SEEN, SEEN | CACHED, LOCAL | SEEN], 1, 2, 3),
        # An integrated one, and types for uses of their own.
        (
            [
                LOCAL | 0x10,
                LOCAL | 0x20,
                LOCAL | SEEN | 0x40,
                LOCAL | SEEN,
                SEEN | 0x80,
            ],
            3,
            3,
            3,
        ),
    ],
)
def test_memory_is_of_the_type_that_suits_its_use(
    flags: list[int], device: int, upload: int, download: int
) -> None:
    found = rank_types(flags)
    assert [found[kind][0] for kind in MemoryKind] == [device, upload, download]


# Device graphs in segments


def body(*after: tuple[int, ...], records: Collection[int] = ()) -> GraphBody:
    event = EventHandle(id=1, backend=BackendKind.VULKAN)
    return tuple(
        GraphNode(GraphRecord(event) if place in records else GraphJoin(), before)
        for place, before in enumerate(after)
    )


def laid_out(
    nodes: GraphBody, idle: Collection[int] = (), failing: Collection[int] = ()
) -> list[list[tuple[int, ...]]]:
    """The levels of each segment."""
    found = []
    for segment in plan_segments(nodes, idle, failing):
        levels: list[tuple[int, ...]] = []
        for part in segment.parts:
            for place, begins in zip(part.places, part.begins_level, strict=True):
                if begins:
                    levels.append(())
                levels[-1] += (place,)
        found.append(levels)
    return found


def test_chains_share_their_barriers() -> None:
    """Two chains of three, one given after the other, have three levels."""
    nodes = body((), (0,), (1,), (), (3,), (4,))
    assert laid_out(nodes) == [[(0, 3), (1, 4), (2, 5)]]


def test_urgent_nodes_begin_first_in_their_level() -> None:
    nodes = body((), (), (0,), (), (3,))
    urgent = tuple(
        attrs.evolve(node, priority=-1 if place > 2 else 0)
        for place, node in enumerate(nodes)
    )
    assert laid_out(urgent) == [[(3, 0, 1), (4, 2)]]


def test_what_comes_to_no_command_takes_no_level() -> None:
    """Nodes behind it come after what it comes after."""
    nodes = body((), (0,), (1,), ())
    assert laid_out(nodes, idle=(1,)) == [[(0, 3), (2,)]]
    assert laid_out(nodes, idle=(0, 1, 2, 3)) == [[]]
    assert laid_out(()) == [[]]


def test_kernels_that_may_fail_end_segments_for_what_depends_on_them() -> None:
    """Two side by side share one; what depends on neither does not wait."""
    nodes = body((), (0,), (0,), (1,), (2,), (0,), (3, 4))
    assert laid_out(nodes, failing=(1, 2)) == [[(0,), (1, 2, 5)], [(3, 4), (6,)]]
    assert laid_out(nodes, failing=(1, 3)) == [[(0,), (1, 2, 5), (4,)], [(3,)], [(6,)]]


def test_events_end_the_segment_that_they_are_behind() -> None:
    """What they do not come after is in a later one."""
    nodes = body((), (0,), (0,), (1,), records={3})
    first, second = plan_segments(nodes, (3,), ())
    assert (list(first.places), first.records) == ([0, 1], (3,))
    assert (list(second.places), second.records) == ([2], ())
    behind = body((), (0,), (1,), (0,), records={2})
    ((failing, told),) = [
        (s.failing, s.records) for s in plan_segments(behind, (2,), (1,)) if s.records
    ]
    assert (failing, told) == ((1,), (2,))


def test_many_nodes_are_recorded_in_parts() -> None:
    nodes = body(*[(n - 1,) if n else () for n in range(2 * MOST_OF_PART + 1)])
    (segment,) = plan_segments(nodes, (), ())
    assert [len(part.places) for part in segment.parts] == [MOST_OF_PART] * 2 + [1]
    assert all(all(part.begins_level) for part in segment.parts)


@given(st.data())
def test_every_edge_is_kept_by_a_barrier_or_a_segment(data: st.DataObject) -> None:
    count = data.draw(st.integers(0, 25))
    nodes = body(
        *[
            tuple(data.draw(st.sets(st.integers(0, n - 1), max_size=3))) if n else ()
            for n in range(count)
        ],
        records=(records := data.draw(st.sets(st.integers(0, 24), max_size=3))),
    )
    idle = records | data.draw(st.sets(st.integers(0, 24), max_size=4))
    failing = data.draw(st.sets(st.integers(0, 24), max_size=4)) - idle
    when: dict[int, tuple[int, int]] = {}
    planned = plan_segments(nodes, idle, failing)
    for number, levels in enumerate(laid_out(nodes, idle, failing)):
        for level, places in enumerate(levels):
            when.update(dict.fromkeys(places, (number, level)))
    assert set(when) == set(range(count)) - idle
    for place, before in ordered(nodes, idle):
        assert when[before] < when[place]
        assert before not in failing or when[before][0] < when[place][0]
    told = [place for segment in planned for place in segment.records]
    assert sorted(told) == sorted(place for place in records if place < count)
    for number, segment in enumerate(planned):
        for record in segment.records:
            for before in behind_of(nodes, record, idle):
                assert when[before][0] <= number


def behind_of(nodes: GraphBody, place: int, idle: set[int]) -> set[int]:
    """The nodes with commands that a node comes directly after."""
    found: set[int] = set()
    for before in nodes[place].after:
        found |= behind_of(nodes, before, idle) if before in idle else {before}
    return found


def ordered(nodes: GraphBody, idle: set[int]) -> Iterator[tuple[int, int]]:
    for place in range(len(nodes)):
        if place not in idle:
            for before in behind_of(nodes, place, idle):
                yield place, before


# Results


def test_results_have_names_and_kinds() -> None:
    assert describe(-4) == "VK_ERROR_DEVICE_LOST (-4)"
    assert describe(2) == "VK_TIMEOUT (2)"
    assert describe(-424242) == "VkResult -424242"
    assert isinstance(result_error(-2, "vkAllocateMemory"), OutOfMemory)
    assert isinstance(result_error(-8, "vkCreateDevice"), CapabilityMismatch)
    lost = result_error(-4, "vkQueueSubmit")
    assert getattr(lost, "is_loss", False)
    assert "vkQueueSubmit: VK_ERROR_DEVICE_LOST (-4)" in str(lost)


# Sub-allocation


@given(
    st.lists(
        st.tuples(st.integers(1, 400), st.sampled_from([1, 16, 64, 256])), max_size=40
    ),
    st.randoms(use_true_random=False),
)
def test_ranges_never_overlap_and_join_again(
    wanted: list[tuple[int, int]], random: object
) -> None:
    ranges = Ranges(4096)
    taken: list[tuple[int, int]] = []
    for size, alignment in wanted:
        at = ranges.take(size, alignment)
        if at is None:
            assert ranges.largest < size + alignment
            continue
        assert at % alignment == 0
        assert 0 <= at <= 4096 - size
        assert all(at + size <= other or other + n <= at for other, n in taken)
        taken.append((at, size))
        if getattr(random, "random")() < 0.4:  # noqa: B009
            ranges.give_back(*taken.pop(getattr(random, "randrange")(len(taken))))  # noqa: B009
        assert ranges.free_bytes == 4096 - sum(n for _, n in taken)
    for at, size in taken:
        ranges.give_back(at, size)
    assert ranges.is_empty
    assert ranges.largest == 4096
