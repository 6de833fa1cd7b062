"""Recipes: all that a prepared program follows from, as a value and as bytes.

Two preparations of one recipe give the same job. Bytes are canonical: they depend
neither on the order nor on the duplicates of what an artifact holds, nor on options
that have no say, such as an artifact beside an explicit schedule. A recipe keeps no
code: the program and the registry's kernels are named by their fingerprints.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import attrs

from accy_async.artifact.entry import KernelCallRegistry
from accy_async.artifact.fingerprint import fingerprint
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.sealed import seal, unseal
from accy_async.compiler.kernelization import MathTier, TargetProfile, math_tier
from accy_async.compiler.kernelization.schedules import (
    GatherSchedule,
    GeneratedRowPipelineSchedule,
    GeneratedScanSchedule,
    MatrixProductSchedule,
    RowSparseCrossEntropySchedule,
    ScatterAddSchedule,
    ScatterSchedule,
    Schedule,
)
from accy_async.compiler.preparation.options import FragmentCompilerOptions
from accy_async.compiler.preparation.schedules import Schedules
from accy_async.compiler.semantic import ContextLimits, Module
from accy_async.errors import InvalidArtifact, InvalidType, InvalidValue
from accy_async.tuning.records import (
    FAMILY_CODEC,
    FamilyTuningReader,
    FamilyTuningRecord,
    RecordReader,
    RecordWriter,
    ScheduleFamily,
    ScheduleReader,
    ScheduleTuningRecord,
    schedule_codec,
)
from accy_async.values import enum, instances, integer, integers, to_tuple, tuple_of

__all__ = ["Recipe", "decode_recipe", "encode_recipe"]

_SCHEMA = "preparation_recipe"
_VERSION = "1"
_MOST_ENTRIES = 1 << 16
_U64 = integer(0, 2**64 - 1)
_EXPLICIT: dict[str, type] = {
    "matrix_product_schedule": MatrixProductSchedule,
    "gather_schedule": GatherSchedule,
    "scatter_schedule": ScatterSchedule,
    "scatter_add_schedule": ScatterAddSchedule,
    "row_sparse_cross_entropy_schedule": RowSparseCrossEntropySchedule,
    "generated_scan_schedule": GeneratedScanSchedule,
    "generated_row_pipeline_schedule": GeneratedRowPipelineSchedule,
}
_ARTIFACTS = {
    ScheduleFamily.MATRIX_PRODUCT: "matrix_product_schedule_tuning_artifact",
    ScheduleFamily.SCAN: "generated_scan_schedule_tuning_artifact",
    ScheduleFamily.ROW_PIPELINE: "generated_row_pipeline_schedule_tuning_artifact",
}
_LIMITS = tuple(field.name for field in attrs.fields(ContextLimits))


@attrs.frozen(kw_only=True)
class Recipe:
    """What a preparation follows from, besides our own code.

    Attributes:
        program: the fingerprint of the module's entry function.
        device: that of the device.
        format: of the kernels.
        math_tier: how freely floats may be computed.
        limits: how large the program may become.
        schedules: the explicit ones, by the option's name.
        records: measured schedules that count, the best of each problem.
        family_records: measured kernels of families, likewise.
        registry: the fingerprints of the registry's entries, in order of size.
    """

    program: int = attrs.field(validator=_U64)
    device: int = attrs.field(validator=_U64)
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    math_tier: MathTier = attrs.field(converter=math_tier, validator=enum(MathTier))
    limits: ContextLimits = attrs.field(
        default=ContextLimits.STANDARD, validator=instances(ContextLimits)
    )
    schedules: Mapping[str, Schedule] = attrs.field(factory=dict)
    records: tuple[ScheduleTuningRecord, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(
            ScheduleTuningRecord, expected="ScheduleTuningRecord values"
        ),
    )
    family_records: tuple[FamilyTuningRecord, ...] = attrs.field(
        default=(),
        converter=to_tuple,
        validator=tuple_of(FamilyTuningRecord, expected="FamilyTuningRecord values"),
    )
    registry: tuple[int, ...] = attrs.field(
        default=(), converter=to_tuple, validator=integers(0, 2**64 - 1)
    )

    def __attrs_post_init__(self) -> None:
        for name, schedule in self.schedules.items():
            kind = _EXPLICIT.get(name)
            if kind is None or not isinstance(schedule, kind):
                expected = "schedules by the names of their options"
                raise InvalidValue("Recipe.schedules", {name: schedule}, expected)

    @classmethod
    def of(
        cls,
        module: Module,
        profile: TargetProfile,
        options: FragmentCompilerOptions | None = None,
    ) -> Recipe:
        """The recipe of preparing a module so.

        Raises:
            InvalidArtifact: a tuning artifact is damaged; with the offset.
        """
        options = options or FragmentCompilerOptions()
        schedules = Schedules(profile, options)
        explicit = {name: getattr(options, name) for name in _EXPLICIT}
        records = (
            schedules.readers[family].records
            for family in _ARTIFACTS
            if family in schedules.readers
        )
        tuned = schedules.family_tuning
        registry = options.kernel_call_registry or KernelCallRegistry()
        return cls(
            program=module.entry.fingerprint(),
            device=profile.capabilities.fingerprint,
            format=profile.format,
            math_tier=profile.math_tier,
            limits=options.semantic_context_limits,
            schedules={name: s for name, s in explicit.items() if s is not None},
            records=tuple(record for some in records for record in some),
            family_records=() if tuned is None else tuned.records,
            registry=tuple(sorted(entry.fingerprint for entry in registry)),
        )

    @property
    def fingerprint(self) -> int:
        """64 bits that name it."""
        return fingerprint(encode_recipe(self))

    def reader(self, family: ScheduleFamily | str) -> ScheduleReader:
        """Finds the measured schedules of a family."""
        wanted = ScheduleFamily(family)
        return ScheduleReader(
            self.device, (r for r in self.records if r.key.family is wanted)
        )

    def family_reader(self) -> FamilyTuningReader:
        """Finds the measured kernels of families."""
        return FamilyTuningReader(self.device, self.family_records)

    def options(
        self, registry: KernelCallRegistry | None = None
    ) -> FragmentCompilerOptions:
        """Options that give this recipe again, with the registry that it names.

        Raises:
            InvalidValue: the registry is another.
        """
        given = registry or KernelCallRegistry()
        if tuple(sorted(entry.fingerprint for entry in given)) != self.registry:
            raise InvalidValue(
                "Recipe.options.registry",
                given,
                f"the one of {len(self.registry)} entries that the recipe names",
            )
        artifacts = {}
        for family, name in _ARTIFACTS.items():
            records = [r for r in self.records if r.key.family is family]
            artifacts[name] = schedule_codec(family).encode(records) if records else b""
        by_name: dict[str, Any] = {**self.schedules, **artifacts}
        return FragmentCompilerOptions(
            semantic_context_limits=self.limits,
            artifact_format=self.format,
            math_tier=self.math_tier,
            kernel_call_registry=registry,
            family_tuning=self.family_reader() if self.family_records else None,
            **by_name,
        )


def encode_recipe(recipe: Recipe) -> bytes:
    """A recipe as bytes, the same for equal ones."""
    writer = RecordWriter()
    writer.unsigned(recipe.program, 8)
    writer.unsigned(recipe.device, 8)
    writer.member(recipe.format)
    writer.member(recipe.math_tier)
    for name in _LIMITS:
        writer.unsigned(getattr(recipe.limits, name), 8)
    for name in _EXPLICIT:
        numbers = _numbers(recipe.schedules.get(name))
        writer.unsigned(len(numbers), 1)
        for number in numbers:
            writer.unsigned(number, 4)
    writer.unsigned(len(recipe.registry), 4)
    for entry in recipe.registry:
        writer.unsigned(entry, 8)
    parts = [
        schedule_codec(family).encode(
            r for r in recipe.records if r.key.family is family
        )
        for family in _ARTIFACTS
    ]
    parts.append(FAMILY_CODEC.encode(recipe.family_records))
    head = writer.bytes()
    sizes = struct.pack(f"<{len(parts) + 1}I", len(head), *map(len, parts))
    return seal(_SCHEMA, _VERSION, b"".join((sizes, head, *parts)))


def decode_recipe(data: bytes) -> Recipe:
    """The recipe that bytes write.

    Raises:
        InvalidArtifact: they are damaged, cut short, or of another version; with the
            offset where that shows.
    """
    if not isinstance(data, bytes):
        raise InvalidType("decode_recipe.data", data, "bytes")
    payload = unseal(data, _SCHEMA, _VERSION)
    count = len(_ARTIFACTS) + 2
    header = struct.Struct(f"<{count}I")
    if len(payload) < header.size:
        raise InvalidArtifact(f"{_SCHEMA}: cut short", offset=len(payload))
    sizes = header.unpack_from(payload)
    if header.size + sum(sizes) != len(payload):
        raise InvalidArtifact(f"{_SCHEMA}: sizes that it cannot have", offset=0)
    parts, at = [], header.size
    for size in sizes:
        parts.append(payload[at : at + size])
        at += size
    head, *artifacts = parts
    records = tuple(
        record
        for family, artifact in zip(_ARTIFACTS, artifacts, strict=False)
        for record in schedule_codec(family).decode(artifact)
    )
    reader = RecordReader(head, _SCHEMA)
    try:
        recipe = _head(reader, records, FAMILY_CODEC.decode(artifacts[-1]))
    except InvalidValue as error:
        raise reader.fault(str(error)) from error
    if reader.remaining:
        raise reader.fault(f"{reader.remaining} bytes too many")
    return recipe


def _head(
    reader: RecordReader,
    records: tuple[ScheduleTuningRecord, ...],
    family_records: tuple[FamilyTuningRecord, ...],
) -> Recipe:
    program, device = reader.unsigned(8), reader.unsigned(8)
    format, tier = reader.member(ArtifactFormat), reader.member(MathTier)
    limits = ContextLimits(**{name: reader.unsigned(8) for name in _LIMITS})
    schedules = {}
    for name, kind in _EXPLICIT.items():
        numbers = [reader.unsigned(4) for _ in range(reader.unsigned(1))]
        if numbers:
            schedules[name] = _schedule(reader, kind, numbers)
    count = reader.unsigned(4)
    if count > min(_MOST_ENTRIES, reader.remaining // 8):
        raise reader.fault(f"{count} registry entries")
    return Recipe(
        program=program,
        device=device,
        format=format,
        math_tier=tier,
        limits=limits,
        schedules=schedules,
        records=records,
        family_records=family_records,
        registry=tuple(reader.unsigned(8) for _ in range(count)),
    )


def _numbers(schedule: Schedule | None) -> list[int]:
    """A schedule's fields as numbers; none for none."""
    if schedule is None:
        return []
    if isinstance(schedule, MatrixProductSchedule):
        return list(schedule.numbers)
    return [int(value) for value in attrs.astuple(schedule)]


def _schedule(reader: RecordReader, kind: type, numbers: list[int]) -> Schedule:
    if kind is MatrixProductSchedule:
        try:
            return MatrixProductSchedule.of(numbers)
        except InvalidValue as error:
            raise reader.fault(f"numbers for no {kind.__name__}: {error}") from error
    fields = attrs.fields(kind)
    if len(fields) != len(numbers):
        raise reader.fault(f"{len(numbers)} numbers for a {kind.__name__}")
    given = {
        field.name: bool(number) if field.type in (bool, "bool") else number
        for field, number in zip(fields, numbers, strict=True)
    }
    schedule: Schedule = kind(**given)
    return schedule
