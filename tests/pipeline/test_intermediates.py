"""Scratch buffers between the stages: sizes, ownership, and who may share them."""

from __future__ import annotations

import anyio
import attrs
import pytest

from accy_async.artifact import Fixed, ScalarArgument
from accy_async.backends import (
    BackendKind,
    BufferAccess,
    BufferBinding,
    BufferHandle,
    RecordingBackend,
)
from accy_async.errors import (
    DeviceError,
    InvalidArtifact,
    InvalidType,
    LaunchArgumentMismatch,
    OutOfMemory,
)
from accy_async.pipeline import (
    PipelineIntermediates,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from tests.harness.scan_chain import (
    ARGS,
    LAUNCH,
    OPERANDS,
    PIPELINE,
    PTX,
    REGISTRY,
    RESULTS,
    SUMS,
    binding,
)

pytestmark = pytest.mark.anyio


async def allocate(
    backend: RecordingBackend, count: int = 5000
) -> PipelineIntermediates:
    return await allocate_pipeline_intermediates(
        backend, PIPELINE, (ScalarArgument.u32(count),)
    )


async def test_scratch_is_a_sequence_of_bindings() -> None:
    """One readable and writable binding for each intermediate, of the derived size."""
    backend = RecordingBackend()
    async with await allocate(backend) as scratch:
        assert len(scratch) == 2
        assert [one.byte_size for one in scratch] == [316, 316]
        assert all(one.access is BufferAccess.READ_WRITE for one in scratch)
        assert [one.handle.id for one in scratch] == [1, 2]
        assert scratch[0:2] == (scratch[0], scratch[1])
        assert repr(scratch) == "<PipelineIntermediates: 2 buffers>"
    assert scratch.is_closed
    assert repr(scratch) == "<PipelineIntermediates: closed>"
    assert backend.destroyed_ids == [2, 1]


async def test_scratch_is_aligned() -> None:
    """Every scratch buffer is asked for with an alignment of 256 bytes."""
    alignments = []

    class Watching(RecordingBackend):
        def allocate_buffer(
            self, byte_size: int, *, alignment: int = 1
        ) -> BufferHandle:
            alignments.append(alignment)
            return super().allocate_buffer(byte_size, alignment=alignment)

    async with await allocate(Watching()):
        assert alignments == [256, 256]


async def test_no_elements_are_refused_before_any_allocation() -> None:
    """InvalidArtifact, though the first intermediate could have been allocated."""
    backend = RecordingBackend()
    mixed = attrs.evolve(
        PIPELINE, intermediates=(SUMS, attrs.evolve(SUMS, extent=Fixed(0)))
    )
    with pytest.raises(InvalidArtifact, match="no elements"):
        await allocate_pipeline_intermediates(backend, mixed, ARGS)
    with pytest.raises(InvalidArtifact, match="no elements"):
        await allocate(backend, 0)
    assert backend.calls == []


async def test_scalars_are_checked_before_any_allocation() -> None:
    """Missing, surplus and mistyped scalars are LaunchArgumentMismatch."""
    backend = RecordingBackend()
    for scalars in ((), (*ARGS, *ARGS), (ScalarArgument.i64(5000),)):
        with pytest.raises(LaunchArgumentMismatch):
            await allocate_pipeline_intermediates(backend, PIPELINE, scalars)
    assert backend.calls == []


async def test_out_of_memory_names_the_size_and_frees_the_rest() -> None:
    """The error is the backend's own, with the size asked for."""
    backend = RecordingBackend(memory_limit_bytes=400)
    with pytest.raises(OutOfMemory) as caught:
        await allocate(backend)
    assert caught.value.requested_bytes == 316
    assert not any(backend.live_objects().values())


async def test_closing_twice_destroys_once() -> None:
    """`aclose` and `close` are idempotent, in a cancelled scope as well."""
    backend = RecordingBackend()
    scratch = await allocate(backend)
    with anyio.CancelScope() as scope:
        scope.cancel()
        await scratch.aclose()
    await scratch.aclose()
    scratch.close()
    assert backend.destroyed_ids == [2, 1]


@pytest.mark.parametrize("refused", [1, 2])
async def test_a_buffer_that_cannot_be_destroyed_keeps_no_other(refused: int) -> None:
    """The device's error comes out; both buffers are gone."""
    backend = RecordingBackend()
    scratch = await allocate(backend)
    backend.fail("destroy", refused)
    with pytest.raises(DeviceError):
        await scratch.aclose()
    assert backend.destroyed_ids == [2, 1]


async def test_scratch_closed_during_a_launch_is_freed_when_that_is_done() -> None:
    """Queued work keeps its scratch: the reaper frees it behind the last stage."""
    backend = RecordingBackend()
    async with await load_pipeline_artifacts(backend, PIPELINE, REGISTRY, PTX) as pool:
        scratch = await allocate(backend)
        backend.hold()
        await launch_pipeline(
            backend, attrs.evolve(LAUNCH, artifacts=pool, intermediates=scratch)
        )
        await scratch.aclose()
        assert backend.destroyed_ids == []
        assert backend.reaper.held() == ("buffer 5 (316 bytes)", "buffer 4 (316 bytes)")
        backend.step(count=2)
        assert backend.destroyed_ids == [4]
        backend.release()
        assert backend.destroyed_ids == [4, 5]
    assert not any(backend.live_objects().values())


async def test_larger_scratch_is_taken() -> None:
    """Scratch for the largest length serves every shorter one."""
    backend = RecordingBackend()
    async with await allocate(backend, 100_000) as scratch:
        await launch_pipeline(backend, attrs.evolve(LAUNCH, intermediates=scratch))
    assert backend.launch_count == 3


async def test_scratch_may_be_a_list_of_any_bindings() -> None:
    """Disjoint buffers that are large enough are scratch, whoever made them."""
    backend = RecordingBackend()
    provided = [binding(2001), binding(2002)]
    await launch_pipeline(backend, attrs.evolve(LAUNCH, intermediates=provided))
    assert backend.launches[1].buffer_ids == (2002, 2001)
    assert backend.buffer_allocate_count == 0


def metal(buffer_id: int) -> BufferBinding:
    return BufferBinding(
        handle=BufferHandle(id=buffer_id, backend=BackendKind.METAL, byte_size=20000)
    )


@pytest.mark.parametrize(
    ("provided", "message"),
    [
        pytest.param((), "has 2 intermediates, 0 were given", id="none"),
        pytest.param(
            (binding(2001), binding(2002), binding(2003)),
            "has 2 intermediates, 3 were given",
            id="three",
        ),
        pytest.param(
            (attrs.evolve(binding(2001), byte_size=315), binding(2002)),
            "intermediate 0 has 315 bytes, expected at least 316",
            id="one_byte_short",
        ),
        pytest.param(
            (binding(2001), attrs.evolve(binding(2001), byte_size=316)),
            "intermediate 1 and intermediate 0 are the same buffer 2001",
            id="one_twice_in_other_sizes",
        ),
        pytest.param(
            (binding(2001), OPERANDS[0]),
            "intermediate 1 and operand 0 are the same buffer 1001",
            id="operand",
        ),
        pytest.param(
            (RESULTS[0], binding(2002)),
            "intermediate 0 and result 0 are the same buffer 1002",
            id="result",
        ),
        pytest.param(
            (binding(2001), metal(2002)),
            "intermediates[1]: buffer 2002 is of backend metal, this one is cuda:0",
            id="of_another_backend",
        ),
    ],
)
async def test_scratch_that_does_not_fit_is_refused(
    provided: tuple[BufferBinding, ...], message: str
) -> None:
    """The error says which buffer is wrong and how; nothing is loaded or launched."""
    backend = RecordingBackend()
    with pytest.raises(LaunchArgumentMismatch) as caught:
        await launch_pipeline(backend, attrs.evolve(LAUNCH, intermediates=provided))
    assert message in str(caught.value)
    assert backend.calls == []


async def test_exactly_the_size_needed_is_enough() -> None:
    """The size is a lower bound, not to be exceeded."""
    backend = RecordingBackend()
    provided = [
        attrs.evolve(binding(buffer_id), byte_size=316) for buffer_id in (2001, 2002)
    ]
    await launch_pipeline(backend, attrs.evolve(LAUNCH, intermediates=provided))
    assert backend.launch_count == 3


def test_scratch_of_another_type_is_refused_when_the_launch_is_written_down() -> None:
    """A launch takes bindings, not handles, names or numbers."""
    for wrong in (5, [binding(2001), 7], "scratch"):
        with pytest.raises(InvalidType, match=r"PipelineLaunch\.intermediates"):
            attrs.evolve(LAUNCH, intermediates=wrong)  # type: ignore[arg-type]


async def test_an_operand_may_be_a_result() -> None:
    """Only scratch must be disjoint: a pipeline may work in place."""
    backend = RecordingBackend()
    await launch_pipeline(backend, attrs.evolve(LAUNCH, results=OPERANDS))
    assert backend.launches[0].buffer_ids[:2] == (1001, 1001)
