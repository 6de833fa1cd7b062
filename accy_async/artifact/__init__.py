"""Kernels as values: formats, geometry, entries, registries, fingerprints."""

from accy_async.artifact.entry import (
    ElementCountArgument,
    KernelCallArtifact,
    KernelCallRegistry,
)
from accy_async.artifact.fingerprint import canonical_bytes, digest, fingerprint
from accy_async.artifact.formats import ArtifactFormat, BackendKind
from accy_async.artifact.geometry import (
    DerivedLaunch,
    Dim3,
    Fixed,
    FixedLaunch,
    GridExtent,
    KernelCallLaunch,
    RuntimeCeilDiv,
)
from accy_async.artifact.kernel import ArtifactRequest, KernelArtifact, Payload
from accy_async.artifact.parameters import KernelBuffer
from accy_async.artifact.planned import (
    ArtifactPlan,
    CompileLaunch,
    KernelSource,
    PlannedKernel,
)
from accy_async.artifact.requirements import (
    DeviceFeatures,
    PushConstants,
    SubgroupFeatures,
)
from accy_async.artifact.resources import (
    LaunchResourceCandidate,
    LaunchResourceClass,
    LaunchResourcePlan,
)
from accy_async.artifact.scalarblock import ScalarBlock
from accy_async.artifact.shapes import ShapeBounds, ShapeDimension, ShapeProfile
from accy_async.artifact.slots import PlannedArgument, PlannedSlot, SlotRole
from accy_async.artifact.store import (
    ArtifactStore,
    PruneReport,
    StoreEntry,
    default_store,
)
from accy_async.artifact.tiles import (
    LaunchReduction,
    LaunchReductionKind,
    LaunchTile,
    LaunchTileKind,
)
from accy_async.dtypes import DType, ScalarArgument

__all__ = [
    "ArtifactFormat",
    "ArtifactPlan",
    "ArtifactRequest",
    "ArtifactStore",
    "BackendKind",
    "CompileLaunch",
    "DType",
    "DerivedLaunch",
    "DeviceFeatures",
    "Dim3",
    "ElementCountArgument",
    "Fixed",
    "FixedLaunch",
    "GridExtent",
    "KernelArtifact",
    "KernelBuffer",
    "KernelCallArtifact",
    "KernelCallLaunch",
    "KernelCallRegistry",
    "KernelSource",
    "LaunchReduction",
    "LaunchReductionKind",
    "LaunchResourceCandidate",
    "LaunchResourceClass",
    "LaunchResourcePlan",
    "LaunchTile",
    "LaunchTileKind",
    "Payload",
    "PlannedArgument",
    "PlannedKernel",
    "PlannedSlot",
    "PruneReport",
    "PushConstants",
    "RuntimeCeilDiv",
    "ScalarArgument",
    "ScalarBlock",
    "ShapeBounds",
    "ShapeDimension",
    "ShapeProfile",
    "SlotRole",
    "StoreEntry",
    "SubgroupFeatures",
    "canonical_bytes",
    "default_store",
    "digest",
    "fingerprint",
]
