"""What is no handle, no array, no mapping: refused by name, as any other bad input."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
import pytest

from accy_async.artifact import ArtifactFormat
from accy_async.backends import RecordingBackend
from accy_async.backends.cpu import CpuBackend
from accy_async.dtypes import DType
from accy_async.errors import (
    AccyError,
    ExchangeRefused,
    InvalidType,
    InvalidValue,
    KernelEntryMissing,
)
from accy_async.pipeline import (
    PipelineLaunch,
    allocate_pipeline_intermediates,
    launch_pipeline,
    load_pipeline_artifacts,
)
from accy_async.session import Session, open_session
from accy_async.tuning import encode_launch_tuning_artifact
from tests.attacks.test_bindings import copy_plan
from tests.harness.scan_chain import PIPELINE, REGISTRY

pytestmark = pytest.mark.anyio

PTX = ArtifactFormat.CUDA_PTX
ROW = np.zeros(4, np.float32)


class Mute:
    """An array of a library that does not speak DLPack well."""

    def __init__(self, place: object = (1, 0)) -> None:
        self.place = place

    def __dlpack_device__(self) -> object:
        return self.place

    def __dlpack__(self, **keywords: object) -> object:
        raise KeyError("no such thing")


def bound(session: Session) -> dict[str, object]:
    return {"x": session.allocate(4, DType.F32), "out": ROW.copy()}


async def rebound(session: Session, **changes: Any) -> None:
    async with await session.prepare(copy_plan(), bound(session)) as prepared:
        await prepared.rebind(**changes)


async def streamed(session: Session) -> None:
    event: Any = session.backend.create_event()
    await session.upload(ROW, stream=event)


CALLS: dict[str, Callable[[Any], Awaitable[object]]] = {
    "stream": lambda session: session.upload(ROW, stream="x"),
    "event as stream": streamed,
    "wait_array": lambda session: session.wait_array(5),
    "no launch": lambda session: session.launch_pipeline(5),
    "no pipeline": lambda session: session.load_pipeline(None, None),
    "no registry": lambda session: session.load_pipeline(PIPELINE, {}),
    "priority": lambda session: session.stream(priority="high").__aenter__(),
    "no device": lambda session: session.allocate(4, DType.F32).copy_to("cpu"),
    "bindings": lambda session: session.run(copy_plan(), ROW),
    "no bindings": lambda session: session.run(copy_plan(), 0),
    "options": lambda session: session.run(copy_plan(), bound(session), []),
    "rebound bindings": lambda session: rebound(session, bindings=[1]),
    "rebound scalars": lambda session: rebound(session, runtime_scalars=5),
}


@pytest.mark.parametrize("name", CALLS)
async def test_of_another_type(name: str) -> None:
    """An `InvalidType`, and nothing is left of it."""
    device = RecordingBackend()
    async with open_session(device) as session:
        with pytest.raises(InvalidType):
            await CALLS[name](session)
        assert session.live_objects()["buffers"] == 0


TAKEN: dict[str, Callable[[Any], object]] = {
    "dtype": lambda session: session.adopt(ROW, dtype="f32"),
    "address": lambda session: session.adopt_memory("1", 4, DType.F32, owner=None),
    "shape": lambda session: session.adopt_memory(64, None, DType.F32, owner=None),
    "beyond": lambda session: session.adopt_memory(64, 2**70, DType.F32, owner=None),
    "place": lambda session: session.adopt(Mute("x")),
    "mute": lambda session: session.adopt(Mute()),
}


@pytest.mark.parametrize("name", TAKEN)
async def test_what_cannot_be_taken(name: str) -> None:
    """Whatever another library raises when it is asked."""
    backend = CpuBackend()
    async with open_session(backend) as session:
        with pytest.raises(AccyError) as found:
            TAKEN[name](session)
        assert isinstance(found.value, (InvalidValue, ExchangeRefused))
        assert session.live_objects()["buffers"] == 0
    backend.close()


@pytest.mark.parametrize("backend", [None, 3, b"cpu", RecordingBackend])
async def test_a_device_that_is_no_name(backend: Any) -> None:
    """A type is as good as a number: neither says which device is meant."""
    with pytest.raises(InvalidType, match=r"open_session\.backend"):
        async with open_session(backend):
            pass


@pytest.mark.parametrize("field", ["max_streams", "max_in_flight"])
async def test_counts_are_whole(field: str) -> None:
    """Half a stream is no stream."""
    given: Any = {field: 1.5}
    with pytest.raises(InvalidType, match=f"{field}.*an integer of at least 1"):
        async with open_session("recording", **given):
            pass


CHAINS: dict[str, tuple[Callable[[Any], Awaitable[object]], tuple[object, ...]]] = {
    "load_pipeline_artifacts.backend": (
        lambda wrong: load_pipeline_artifacts(wrong, PIPELINE, REGISTRY, PTX),
        (None, "cpu", RecordingBackend),
    ),
    "load_pipeline_artifacts.format": (
        lambda wrong: load_pipeline_artifacts(
            RecordingBackend(), PIPELINE, REGISTRY, wrong
        ),
        (None, 1, [PTX], b"cuda_ptx"),
    ),
    "allocate_pipeline_intermediates.backend": (
        lambda wrong: allocate_pipeline_intermediates(wrong, PIPELINE),
        (None, "cpu", RecordingBackend),
    ),
    "allocate_pipeline_intermediates.pipeline": (
        lambda wrong: allocate_pipeline_intermediates(RecordingBackend(), wrong),
        (None, "scan", [PIPELINE]),
    ),
    "allocate_pipeline_intermediates.runtime_scalar_arguments": (
        lambda wrong: allocate_pipeline_intermediates(
            RecordingBackend(), PIPELINE, wrong
        ),
        (None, 5, "5", DType.F32),
    ),
    "launch_pipeline.backend": (
        lambda wrong: launch_pipeline(
            wrong, PipelineLaunch(pipeline=PIPELINE, registry=REGISTRY, format=PTX)
        ),
        (None, "cpu", RecordingBackend),
    ),
}


@pytest.mark.parametrize("argument", CHAINS)
async def test_what_no_pipeline_is_launched_with(argument: str) -> None:
    call, given = CHAINS[argument]
    for wrong in given:
        with pytest.raises(InvalidType, match=argument.replace(".", r"\.")):
            await call(wrong)


def test_what_names_no_kernel_finds_none() -> None:
    key: Any = [PTX]
    assert REGISTRY.find("scan", 1, key) is None
    with pytest.raises(KernelEntryMissing):
        REGISTRY.get("scan", 1, key)


def test_what_are_no_records_is_not_encoded() -> None:
    wrong: Any
    for wrong in (None, 5, "records", [1], [None]):
        with pytest.raises(InvalidType, match="encode_launch_tuning_artifact"):
            encode_launch_tuning_artifact(wrong)
