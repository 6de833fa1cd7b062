"""Candidates and results as bytes: what comes back is what went, or it is refused."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat, FixedLaunch, KernelArtifact
from accy_async.artifact.requirements import PushConstants
from accy_async.artifact.sealed import seal
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import (
    InvalidArtifact,
    InvalidType,
    InvalidValue,
    LaunchArgumentMismatch,
)
from accy_async.fleet import FleetBuffer, FleetCandidate, FleetDevice, FleetWork
from accy_async.fleet.jobs import JobReply, JobRequest
from accy_async.fleet.wire import from_wire, to_wire
from accy_async.tuning import CandidateStatus, MeasureOptions, RaceRules, ResultCheck
from tests.fleet.kit import device, found, work_of


def rich_work() -> FleetWork:
    """A list with one of everything in it."""
    artifact = KernelArtifact(
        kernel_name="k",
        format=ArtifactFormat.VULKAN_SPIRV,
        argument_count=5,
        scalar_argument_count=3,
        payload=bytes(range(256)),
        push_constants=PushConstants(byte_size=12),
        diagnostic_id="mine",
    )
    return FleetWork(
        candidates=tuple(
            FleetCandidate(
                name=f"c{i}",
                artifact=artifact,
                geometry=FixedLaunch(
                    grid=(4, 1, 1), threadgroup=(i + 1, 1, 1), cluster=(2, 1, 1)
                ),
                scalars=(
                    ScalarArgument.u64(2**64 - 1),
                    ScalarArgument.f32(0.1),
                    ScalarArgument.bool_(True),
                ),
            )
            for i in range(3)
        ),
        buffers=(
            FleetBuffer.of(np.arange(3, dtype=np.int16), "read_write"),
            FleetBuffer.random(DType.F16, 7, seed=3),
        ),
        options=MeasureOptions(
            rules=RaceRules(min_rounds=4, max_rounds=9),
            cache="cold",
            check=ResultCheck(dtypes=(None, DType.F16), reference={0: b"abc"}),
        ),
    )


@pytest.mark.parametrize(
    "value",
    [
        rich_work(),
        device(formats=("cuda_cubin", "cuda_ptx")),
        JobRequest(names=("a", "b")),
        JobReply(
            found=found(("a", "b", "c"), {"b": -0.1}, {"c": CandidateStatus.TIMED_OUT})
        ),
        JobReply(lost="gone", culprit="b"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_comes_back_is_what_went(value: object) -> None:
    assert from_wire(to_wire(value), type(value)) == value


def test_code_is_written_once_for_all_that_launch_it() -> None:
    one, many = (to_wire(work_of(*names)) for names in ("a", "abcdefgh"))
    assert (one.count(b"cuda_ptx"), many.count(b"cuda_ptx")) == (1, 1)


def sealed(payload: object, schema: str = "JobRequest", version: str = "1") -> bytes:
    return seal(schema, version, msgspec.msgpack.encode(payload))


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (sealed([[], None]), "a NoneType, expected JobRequest"),
        (sealed([[], ["of", "Popen", {}]]), "a Popen, which does not travel"),
        (sealed([[], ["of", "DType", {}]]), "no value of ours"),
        (sealed([[], ["enum", "JobRequest", 1]]), "no value of ours"),
        (sealed([[], ["code", 0]]), "no value of ours"),
        (sealed([[], ["of", "JobRequest", {}]]), "other fields than those"),
        (sealed([[], ["of", "JobRequest", {"names": 3}]]), "JobRequest.names"),
        (sealed({"names": []}), "JobRequest: Expected `array`"),
        (sealed([[], None], version="2"), "of version 2, JobRequest of version 1"),
        (sealed([[], None], schema="JobReply"), "this is JobReply of version 1"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_bytes_of_anything_else_are_refused(data: bytes, words: str) -> None:
    with pytest.raises(InvalidArtifact, match=words):
        from_wire(data, JobRequest)


def test_nesting_ends() -> None:
    deep: object = ["list", []]
    for _ in range(200):
        deep = ["list", [deep]]
    with pytest.raises(InvalidArtifact, match="deep"):
        from_wire(sealed([[], deep]), JobRequest)


def test_only_ours_travel() -> None:
    with pytest.raises(InvalidType):
        to_wire(object())
    with pytest.raises(InvalidType):
        from_wire("text", FleetDevice)  # type: ignore[arg-type]


def test_random_contents_are_the_same_wherever_they_are_made() -> None:
    for dtype in (DType.F32, DType.I8, DType.BOOL, DType.U64, DType.F64):
        buffer = FleetBuffer.random(dtype, 9, seed=5)
        there = from_wire(to_wire(buffer), FleetBuffer)
        assert np.array_equal(buffer.values(), there.values())
        assert len(buffer.values()) == buffer.byte_size
        assert buffer.values().any()
    given = np.arange(4, dtype=np.float32)
    assert np.array_equal(FleetBuffer.of(given).values().view(np.float32), given)
    assert not FleetBuffer.zeros(DType.I32, 3).values().any()


def test_lists_that_contradict_themselves_are_refused() -> None:
    with pytest.raises(InvalidValue, match="at least one"):
        work_of()
    with pytest.raises(InvalidValue, match="names of their own"):
        work_of("a", "a")
    with pytest.raises(LaunchArgumentMismatch, match="2 buffers, kernel 'k' takes 1"):
        FleetWork(
            candidates=work_of("a").candidates,
            buffers=(FleetBuffer.zeros(DType.F32, 1),) * 2,
        )
    one = work_of("a").candidates[0]
    with pytest.raises(LaunchArgumentMismatch, match="1 scalars, kernel 'k' takes 0"):
        FleetCandidate(
            name="a",
            artifact=one.artifact,
            geometry=one.geometry,
            scalars=(ScalarArgument.u32(1),),
        )
    with pytest.raises(InvalidValue, match="whole f32 elements"):
        FleetBuffer(access="read_only", dtype=DType.F32, byte_size=6)
    with pytest.raises(InvalidValue, match=r"FleetBuffer\.contents"):
        FleetBuffer(access="read_only", byte_size=4, contents=b"12")
    with pytest.raises(InvalidValue, match=r"FleetBuffer\.seed"):
        FleetBuffer(access="read_only", dtype=DType.BF16, byte_size=4, seed=1)


def test_confidence_is_for_the_whole_list() -> None:
    work = work_of("a", "b", "c", options=MeasureOptions())
    assert work.measured_as.rules.confidence == pytest.approx(0.995)
    check = work.measured_as.check
    assert check is not None
    assert check.dtypes == (DType.F32,)
