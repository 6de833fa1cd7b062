"""Every decoder of bytes that are ours, or that come to us as code to be run.

`tools.fuzz` looks for faults in them, and the tests check of each that bytes which are
sealed are refused wherever they were changed. Samples are small: what a change hits
is more often what matters.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.sealed import seal, unseal
from accy_async.artifact.store import ArtifactStore
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.bench.report import decode_report, encode_report
from accy_async.compiler.kernelization import MathTier
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    MatrixProductSchedule,
    ScatterAddSchedule,
    Threads2D,
)
from accy_async.compiler.preparation import Recipe, decode_recipe, encode_recipe
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact
from accy_async.fleet.jobs import JobReply
from accy_async.fleet.wire import from_wire, to_wire
from accy_async.fragment.codec import decode_plan, encode_plan
from accy_async.tuning.choice import LaunchCandidateMeasurement
from accy_async.tuning.launches.key import LaunchTuningCacheKey
from accy_async.tuning.launches.records import LaunchTuningCacheRecord
from accy_async.tuning.measuring import CandidateStatus, TimeSource
from accy_async.tuning.race import Standing
from accy_async.tuning.records import (
    FamilyTuningKey,
    FamilyTuningRecord,
    RecordCache,
    ScheduleFamily,
    ScheduleTuningKey,
    ScheduleTuningRecord,
)
from accy_async.tuning.records.codec import RecordCodec
from accy_async.tuning.records.measured import KeptRecord
from accy_async.tuning.search import KeptSearch, Trial
from accy_async.tuning.search.space import Schedule
from accy_async.tuning.store import CODECS, TuningStore
from tests.bench.files import candidate, report
from tests.fleet.kit import found
from tests.fragment.plans import CHAIN, SCALED
from tools import code_decoders
from tools.decoder import JSON, MESSAGE_PACK, SUM_BYTES, Decoder, named

__all__ = ["DECODERS", "SEALED", "samples"]

_MAGIC = b"\x89accy\r\n\x1a"


def samples() -> dict[str, KeptRecord]:
    """A tuning record of each kind."""
    device, format = 0x1234567890ABCDEF, ArtifactFormat.CUDA_PTX
    launch = LaunchTuningCacheRecord(
        key=LaunchTuningCacheKey(
            backend=BackendKind.CUDA,
            device=device,
            driver="580.1",
            format=format,
            kernel_fingerprint=1,
            output_layout_fingerprint=2,
            input_layout_fingerprint=3,
            element_count=8192,
            tile=LaunchTile(
                kind=LaunchTileKind.REDUCTION,
                m=32,
                n=256,
                input_dtype=DType.F32,
                reduction=LaunchReduction(
                    kind=LaunchReductionKind.SUM, rank=1, axis=0, extent=256
                ),
            ),
            candidate_count=3,
            launch_resource_fingerprint=4,
        ),
        selection=LaunchCandidateMeasurement(
            kernel_id=0, candidate_index=1, median_ns=200, sample_count=8
        ),
    )
    family = FamilyTuningRecord(
        key=FamilyTuningKey(
            device=device,
            format=format,
            family="accy.kernel.matrix_product",
            version=1,
            problem="f32.5x7x3",
        ),
        target="accy.kernel.matrix_product.t8x8",
        winner_median_ns=800,
    )
    schedules = {
        f"{kind}_schedule_tuning": ScheduleTuningRecord(
            key=ScheduleTuningKey(
                device=device,
                family=kind,
                format=format,
                extents=(5, 7),
                dtypes=(DType.F32,),
                version=1,
                candidates=9,
            ),
            choice=(8, 8),
            winner_median_ns=800,
        )
        for kind in ScheduleFamily
    }
    return {"launch_tuning": launch, "family_tuning": family, **schedules}


def _records(kind: str, _: Path) -> Decoder:
    """Records of one kind, on their way into what holds such records."""
    codec: RecordCodec[Any] = CODECS[kind]
    record, version = samples()[kind], str(codec.version)
    some = [unseal(codec.encode([record] * n), kind, version) for n in range(3)]
    cache: RecordCache[Any] = RecordCache([record])

    def read(data: bytes) -> tuple[Any, ...]:
        records = codec.decode(data)
        cache.replace_records(records)
        return records

    return Decoder(
        name=kind,
        payloads=some,
        seal=partial(seal, kind, version),
        read=read,
        write=codec.encode,
        is_canonical=True,
        newer=seal(kind, str(codec.version + 1), some[1]),
        words=named(ArtifactFormat, BackendKind, DType, LaunchTileKind),
        state=cache.export_records,
    )


def _recipe(_: Path) -> Decoder:
    record, family = samples()["matrix_product_schedule_tuning"], samples()
    recipe = Recipe(
        program=1,
        device=0x1234567890ABCDEF,
        format="cuda_ptx",
        math_tier="fused",
        schedules={
            "matrix_product_schedule": MatrixProductSchedule(
                thread_blocks=Threads2D(8, 4)
            ),
            "gather_schedule": GatherSchedule(threads=64),
            "scatter_add_schedule": ScatterAddSchedule(threads=64, segments=3),
        },
        records=(record,),
        family_records=(family["family_tuning"],),
        registry=(5, 6),
    )
    plain = Recipe(program=2, device=3, format="cpu_machine_code", math_tier="exact")
    schema = "preparation_recipe"
    payloads = [unseal(encode_recipe(one), schema, "1") for one in (recipe, plain)]
    return Decoder(
        name="recipe",
        payloads=payloads,
        seal=lambda payload: seal(schema, "1", _with_sums(payload)),
        read=decode_recipe,
        write=encode_recipe,
        newer=seal(schema, "2", payloads[0]),
        words=named(ArtifactFormat, MathTier, DType),
    )


def _with_sums(payload: bytes) -> bytes:
    """A recipe's payload with the checksums of the artifacts in it put right."""
    changed, at = bytearray(payload), payload.find(_MAGIC)
    while at >= 0:
        after = payload.find(_MAGIC, at + 1)
        end = len(payload) if after < 0 else after
        if end - at > SUM_BYTES:
            body = bytes(changed[at : end - SUM_BYTES])
            changed[end - SUM_BYTES : end] = hashlib.sha256(body).digest()
        at = after
    return bytes(changed)


def _plan(_: Path) -> Decoder:
    whole = [encode_plan(one.plan) for one in (CHAIN, SCALED)]
    schema, key = _label(whole[0])
    return Decoder(
        name="fragment",
        payloads=[unseal(one, schema, key) for one in whole],
        seal=partial(seal, schema, key),
        read=decode_plan,
        write=encode_plan,
        newer=seal(schema, "0" * len(key), b"N"),
        words=(*(b"V%c" % place for place in range(26)), b"N", b"T", b"L\0\0\0\0"),
    )


def _search(_: Path) -> Decoder:
    def schedule(threads: int) -> Schedule:
        return Schedule(
            (("threads", threads), ("tile", (8, 4)), ("fast", True), ("mode", "a"))
        )

    kept = KeptSearch(
        baseline=schedule(32),
        trials=(
            Trial(
                schedule=schedule(64),
                status=CandidateStatus.MEASURED,
                differences=(-0.25, 0.125),
            ),
            Trial(
                schedule=schedule(2), status=CandidateStatus.TIMED_OUT, reason="late"
            ),
        ),
        launches=3,
    )
    schema, version = _label(kept.to_bytes())
    payload = unseal(kept.to_bytes(), schema, version)
    return Decoder(
        name="search",
        payloads=[payload],
        seal=partial(seal, schema, version),
        read=KeptSearch.from_bytes,
        write=KeptSearch.to_bytes,
        newer=seal(schema, "2", payload),
        words=(*JSON, *named(CandidateStatus)),
    )


def _file(folder: Path) -> Decoder:
    """A record's file in a store, and all records that are read from there."""
    kind = "launch_tuning"
    codec = CODECS[kind]
    store = TuningStore(ArtifactStore(folder))
    store.keep(kind, [samples()[kind]])
    (path,) = (file for file in folder.rglob("*") if file.is_file())
    schema, key = f"{kind}-{codec.version}", path.stem
    artifact = store.files.get(schema, key)
    assert artifact is not None
    payload = unseal(artifact, kind, str(codec.version))

    def read(data: bytes) -> bytes:
        path.write_bytes(data)
        if not store.load(kind):
            if path.read_bytes() != data:
                raise AssertionError("a file that is not used was changed")
            raise InvalidArtifact("not used")
        return data

    return Decoder(
        name="store_file",
        payloads=[payload],
        seal=lambda p: seal(schema, key, seal(kind, str(codec.version), p)),
        read=read,
        newer=seal(schema, key, seal(kind, str(codec.version + 1), payload)),
    )


def _import(folder: Path) -> Decoder:
    """An artifact that is taken into a store, of whatever kind it is."""
    codec = CODECS["family_tuning"]
    family = samples()["family_tuning"]
    store = TuningStore(ArtifactStore(folder))

    def read(data: bytes) -> tuple[str, int]:
        found = store.import_artifact(data)
        store.clear()
        return found

    payload = unseal(codec.encode([family]), codec.schema, str(codec.version))
    return Decoder(
        name="store_import",
        payloads=[payload],
        seal=partial(seal, codec.schema, str(codec.version)),
        read=read,
        newer=seal(codec.schema, str(codec.version + 1), payload),
        words=named(ArtifactFormat),
        state=lambda: _files(folder),
    )


def _wire(_: Path) -> Decoder:
    replies = (
        JobReply(
            found=found(("a", "b", "c"), {"b": -0.1}, {"c": CandidateStatus.TIMED_OUT})
        ),
        JobReply(lost="gone", culprit="b"),
    )
    payloads = [unseal(to_wire(one), "JobReply", "1") for one in replies]
    return Decoder(
        name="wire",
        payloads=payloads,
        seal=partial(seal, "JobReply", "1"),
        read=lambda data: from_wire(data, JobReply),
        write=to_wire,
        newer=seal("JobReply", "2", payloads[0]),
        words=(*MESSAGE_PACK, *named(CandidateStatus, Standing, TimeSource)),
    )


def _report(_: Path) -> Decoder:
    reports = (report(candidate("a", 100.0)), report())
    payloads = [msgspec.json.encode(encode_report(one)) for one in reports]
    return Decoder(
        name="report",
        payloads=payloads,
        read=decode_report,
        write=lambda found: msgspec.json.encode(encode_report(found)),
        newer=payloads[1].replace(b'"version":1', b'"version":2'),
        words=JSON,
    )


def _label(record: bytes) -> tuple[str, str]:
    """The schema and the key of a sealed record, from where its layout has them."""
    name_bytes, key_bytes = struct.unpack_from("<HI", record, 10)
    text = record[24 : 24 + name_bytes + key_bytes].decode()
    return text[:name_bytes], text[name_bytes:]


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(file): file.read_bytes() for file in folder.rglob("*") if file.is_file()
    }


SEALED: dict[str, Callable[[Path], Decoder]] = {
    **{kind: partial(_records, kind) for kind in CODECS},
    "recipe": _recipe,
    "fragment": _plan,
    "search": _search,
    "store_file": _file,
    "store_import": _import,
    "wire": _wire,
    "image": code_decoders.image,
}
"""Of what has a checksum: no change of it goes unseen. See `DECODERS`."""

DECODERS: dict[str, Callable[[Path], Decoder]] = {
    **SEALED,
    "signatures": code_decoders.signatures,
    "object": code_decoders.object_file,
    "spirv": code_decoders.spirv,
    "cuda_binary": code_decoders.cuda_binary,
    "report": _report,
}
"""Makes each decoder, given an empty folder that it may use.

What is not sealed is part of what is (signatures of an image, a compiled binary of a
store's file), is in a format of others (objects, SPIR-V), or is for people to read.
"""
