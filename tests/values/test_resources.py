"""Launch resources, and what kernels require of devices."""

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import (
    DeviceFeatures,
    FixedLaunch,
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
    PushConstants,
    SubgroupFeatures,
)
from accy_async.errors import LaunchArgumentMismatch


def candidate(
    threads: int, *, registers: int | None = None, elements: int = 1
) -> LaunchResourceCandidate:
    return LaunchResourceCandidate(
        geometry=FixedLaunch(grid=(4, 1, 1), threadgroup=(threads, 1, 1)),
        registers_per_thread=registers,
        elements_per_thread=elements,
    )


FREE = LaunchResourcePlan(
    candidates=(candidate(64), candidate(128), candidate(256)),
    resource_class=LaunchResourceClass.SCAN,
    fixed_threadgroup=False,
)


def test_first_candidate_is_used_untuned() -> None:
    """A plan's geometry is its first candidate's."""
    assert FREE.geometry == candidate(64).geometry
    assert FREE.candidate_count == 3
    assert [FREE.candidate(i).geometry.threads_per_block for i in range(3)] == [
        *(64, 128, 256)
    ]


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_candidate_out_of_range_is_refused(index: int) -> None:
    """An index is never taken from the end, and the range is named."""
    with pytest.raises(LaunchArgumentMismatch) as caught:
        FREE.candidate(index)
    assert str(caught.value) == f"launch candidate {index}, expected 0 to 2"


def test_fixed_threadgroup_allows_other_grids() -> None:
    """Candidates of code made for one threadgroup differ in all else."""
    wide = LaunchResourceCandidate(
        geometry=FixedLaunch(
            grid=(8, 1, 1), threadgroup=(64, 1, 1), dynamic_shared_memory_bytes=512
        ),
        elements_per_thread=4,
    )
    plan = LaunchResourcePlan(candidates=[candidate(64), wide])
    assert plan.fixed_threadgroup
    assert plan.candidates == (candidate(64), wide)
    assert plan.resource_class is LaunchResourceClass.AUTHORED


def test_fingerprint_tells_plans_apart() -> None:
    """Order, class and every candidate's fields count; the fingerprint is never 0."""
    plans = [
        FREE,
        attrs.evolve(FREE, candidates=FREE.candidates[::-1]),
        attrs.evolve(FREE, candidates=FREE.candidates[:2]),
        attrs.evolve(FREE, resource_class="reduction"),
        attrs.evolve(FREE, candidates=(candidate(64, registers=8),)),
        attrs.evolve(FREE, candidates=(candidate(64, elements=2),)),
    ]
    assert len({plan.fingerprint for plan in plans}) == len(plans)
    assert all(0 < plan.fingerprint < 2**64 for plan in plans)


def test_missing_features_are_named() -> None:
    """What a kernel asks for and a device has not got is told by name, in order."""
    wanted = DeviceFeatures(tensor_cores=True, clusters=True, int64_atomics=True)
    assert wanted.missing(DeviceFeatures(clusters=True)) == (
        "tensor_cores",
        "int64_atomics",
    )
    assert wanted.missing(wanted) == ()
    assert DeviceFeatures().missing(DeviceFeatures()) == ()


def test_missing_subgroup_features_are_named() -> None:
    """A subgroup's size counts only where the kernel asks for one."""
    wanted = SubgroupFeatures(supported=True, vote=True, size=32)
    have = SubgroupFeatures(supported=True, shuffle=True, size=64)
    assert wanted.missing(have) == ("vote", "size 32")
    assert attrs.evolve(wanted, size=None).missing(have) == ("vote",)
    assert wanted.missing(SubgroupFeatures()) == ("supported", "vote", "size 32")
    assert SubgroupFeatures().missing(have) == ()


def test_push_constants_may_be_as_large_as_the_limit() -> None:
    """Both fields count bytes in whole words up to 64 KiB."""
    assert PushConstants(byte_size=1 << 16, offset_bytes=1 << 16).byte_size == 65536
    assert PushConstants() == PushConstants(byte_size=0, offset_bytes=0)
