"""Kernel-call entries, and the registry that finds them."""

from __future__ import annotations

import attrs
import pytest

from accy_async.artifact import (
    ArtifactFormat,
    ElementCountArgument,
    KernelCallRegistry,
    ScalarArgument,
)
from accy_async.errors import (
    InvalidArtifact,
    InvalidValue,
    KernelEntryMissing,
    UnsupportedOperation,
)
from tests.values.samples import ENTRY

PTX, CUBIN = ArtifactFormat.CUDA_PTX, ArtifactFormat.CUDA_CUBIN
TARGET = ENTRY.target
NEWER = attrs.evolve(ENTRY, version=2, format=CUBIN, payload=b"\x7fELF")


def test_registry_finds_by_target_version_and_format() -> None:
    """An entry is found by all three together, and by nothing less."""
    registry = KernelCallRegistry([ENTRY, NEWER])
    assert registry.find(TARGET, 1, PTX) is ENTRY
    assert registry.get(TARGET, 2, CUBIN) is NEWER
    for missing in ((TARGET, 2, PTX), (TARGET, 1, CUBIN), ("other", 1, PTX)):
        assert registry.find(*missing) is None
    assert (len(registry), list(registry)) == (2, [ENTRY, NEWER])
    assert registry.entries == (ENTRY, NEWER)
    assert repr(registry) == (
        f"KernelCallRegistry({TARGET} v1 cuda_ptx, {TARGET} v2 cuda_cubin)"
    )


def test_registry_refuses_two_entries_of_one_key() -> None:
    """Two entries that would be found by one name are refused, the second by number."""
    twin = attrs.evolve(ENTRY, entry_name="other")
    with pytest.raises(InvalidValue) as caught:
        KernelCallRegistry([NEWER, ENTRY, twin])
    assert caught.value.field == "KernelCallRegistry.entries[2]"
    assert str(caught.value) == (
        f"KernelCallRegistry.entries[2]: got '{TARGET} version 1 (cuda_ptx)', "
        "expected target, version and format that no other entry has"
    )
    with pytest.raises(InvalidValue):
        KernelCallRegistry([ENTRY]).merged([twin])


def test_missing_entry_tells_what_there_is() -> None:
    """It is a wrong artifact and a missing operation, and lists what is near."""
    registry = KernelCallRegistry([ENTRY, NEWER])
    with pytest.raises(KernelEntryMissing) as caught:
        registry.get(TARGET, 3, PTX)
    assert isinstance(caught.value, InvalidArtifact)
    assert isinstance(caught.value, UnsupportedOperation)
    assert str(caught.value) == (
        f"no kernel '{TARGET}' version 3 in format cuda_ptx; "
        "the registry has version 1 (cuda_ptx), version 2 (cuda_cubin)"
    )
    with pytest.raises(
        KernelEntryMissing, match="the registry has nothing of that name"
    ):
        registry.get("accy.kernel.none", 1, PTX)


def test_merging_leaves_both_registries_alone() -> None:
    """A merged registry is a new one."""
    empty = KernelCallRegistry()
    merged = empty.merged([ENTRY])
    assert (len(empty), len(merged)) == (0, 1)
    assert merged.merged([NEWER]).entries == (ENTRY, NEWER)


def test_registry_keeps_what_it_was_given() -> None:
    """Changing the list afterwards changes nothing."""
    entries = [ENTRY]
    registry = KernelCallRegistry(entries)
    entries.clear()
    assert registry.find(TARGET, 1, PTX) is ENTRY
    assert len(KernelCallRegistry(entry for entry in (ENTRY, NEWER))) == 2


@pytest.mark.parametrize(
    ("element_count", "scalars", "buffers"), [("none", 2, 3), ("scalar_u32", 3, 2)]
)
def test_entry_counts_its_arguments(
    element_count: str, scalars: int, buffers: int
) -> None:
    """Scalars are element count, runtime and static ones; the rest are buffers."""
    entry = attrs.evolve(
        ENTRY, element_count_argument=ElementCountArgument(element_count)
    )
    assert entry.scalar_argument_count == scalars
    assert entry.buffer_argument_count == buffers


def test_element_count_buffer_is_one_of_the_buffers() -> None:
    """A count that travels in a buffer takes no scalar's place."""
    entry = attrs.evolve(ENTRY, element_count_argument=ElementCountArgument.BUFFER_U32)
    assert (entry.scalar_argument_count, entry.buffer_argument_count) == (2, 3)


def test_entry_tells_a_backend_all_it_needs() -> None:
    """The request carries counts, code and requirements as the entry has them."""
    request = ENTRY.artifact_request("stage 0")
    assert request.kernel_name == ENTRY.entry_name
    assert request.requested_format is PTX
    assert (request.argument_count, request.scalar_argument_count) == (5, 3)
    for name in (
        *("payload", "required_dtypes", "required_features"),
        *("required_subgroup", "push_constants"),
    ):
        assert getattr(request, name) == getattr(ENTRY, name)
    assert request.diagnostic_id == "stage 0"


def test_enums_are_taken_by_their_text() -> None:
    """A format's or element count's text stands for the member itself."""
    entry = attrs.evolve(ENTRY, format="cuda_ptx", element_count_argument="scalar_u32")
    assert entry.format is PTX
    assert entry.element_count_argument is ElementCountArgument.SCALAR_U32
    assert entry == ENTRY
    assert hash(entry) == hash(ENTRY)
    with pytest.raises(InvalidValue, match=r"one of .*'cuda_ptx'"):
        attrs.evolve(ENTRY, format="ptx")


def test_repr_leaves_the_code_out() -> None:
    """An entry shows its payload's kind and size, never its text."""
    assert "payload=<12 characters>" in repr(ENTRY)
    assert "payload=<4 bytes>" in repr(NEWER)
    assert ".version" not in repr(ENTRY.artifact_request())


def test_defaults_stand_for_all_runtime_scalars_or_none() -> None:
    """An entry has no default, or one for each of its runtime scalars."""
    both = (ScalarArgument.u32(1), ScalarArgument.f32(2.0))
    entry = attrs.evolve(
        ENTRY,
        runtime_scalar_argument_count=2,
        argument_count=6,
        runtime_scalar_defaults=both,
    )
    assert entry.runtime_scalar_defaults == both
    assert attrs.evolve(entry, runtime_scalar_defaults=()).runtime_scalar_defaults == ()
