"""All that a launch measurement is good for."""

from __future__ import annotations

import attrs

from accy_async.artifact.fingerprint import SHARED, fingerprint
from accy_async.artifact.formats import (
    ArtifactFormat,
    BackendKind,
    artifact_format,
    backend_kind,
)
from accy_async.artifact.planned import PlannedKernel
from accy_async.artifact.tiles import LaunchReductionKind, LaunchTile, LaunchTileKind
from accy_async.backends.capabilities import Capabilities
from accy_async.dtypes import DType
from accy_async.values import enum, instances, integer, text

__all__ = ["LaunchTuningCacheKey"]

_U64 = integer(0, 2**64 - 1)


@attrs.frozen(kw_only=True)
class LaunchTuningCacheKey:
    """The device, the code, the layouts, the tile and the candidates.

    A record serves where all of it is the same, and nowhere else. The product's name
    is no part of it, as one chip is sold under many.

    Attributes:
        backend: the kind of device.
        device: the device's fingerprint.
        driver: its driver's version.
        format: of the kernel's code.
        kernel_fingerprint: names the code, its entry point and its scalars.
        output_layout_fingerprint: names the layouts of what it writes.
        input_layout_fingerprint: names the layouts of what it reads.
        element_count: elements that it works on.
        tile: what a block works on.
        candidate_count: launch candidates there are.
        launch_resource_fingerprint: names them.
    """

    backend: BackendKind = attrs.field(
        converter=backend_kind, validator=enum(BackendKind)
    )
    device: int = attrs.field(validator=_U64)
    driver: str = attrs.field(default="", validator=text(empty=True))
    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    kernel_fingerprint: int = attrs.field(validator=_U64)
    output_layout_fingerprint: int = attrs.field(validator=_U64)
    input_layout_fingerprint: int = attrs.field(validator=_U64)
    element_count: int = attrs.field(validator=_U64)
    tile: LaunchTile = attrs.field(validator=instances(LaunchTile), metadata=SHARED)
    candidate_count: int = attrs.field(validator=integer(1))
    launch_resource_fingerprint: int = attrs.field(validator=_U64)

    @classmethod
    def of(
        cls, capabilities: Capabilities, kernel: PlannedKernel
    ) -> LaunchTuningCacheKey:
        """The key of a kernel on a device."""
        identity = capabilities.identity
        return cls.on(
            identity.backend, capabilities.fingerprint, identity.driver, kernel
        )

    @classmethod
    def on(
        cls, backend: BackendKind, device: int, driver: str, kernel: PlannedKernel
    ) -> LaunchTuningCacheKey:
        """The key of a kernel on a device of which this is known; see the fields."""
        return cls(
            backend=backend,
            device=device,
            driver=driver,
            format=kernel.artifact.format,
            kernel_fingerprint=fingerprint(
                (
                    kernel.source,
                    kernel.compile_launch,
                    kernel.entry_name,
                    kernel.artifact.payload,
                    kernel.static_arguments,
                    kernel.op_count,
                    kernel.required_dtypes,
                    kernel.required_features,
                    kernel.required_subgroup,
                )
            ),
            output_layout_fingerprint=kernel.output_layout_fingerprint,
            input_layout_fingerprint=kernel.input_layout_fingerprint,
            element_count=kernel.element_count,
            tile=kernel.tile,
            candidate_count=kernel.launch_resources.candidate_count,
            launch_resource_fingerprint=kernel.launch_resources.fingerprint,
        )

    def on_driver(self, driver: str) -> LaunchTuningCacheKey:
        """The same on another version of the driver."""
        return attrs.evolve(self, driver=driver)

    # The tile's numbers, by the names that tuning reports use.

    @property
    def tile_kind(self) -> LaunchTileKind:
        """What the tile's numbers mean."""
        return self.tile.kind

    @property
    def tile_m(self) -> int:
        """The tile's rows, or a reduction's results."""
        return self.tile.m

    @property
    def tile_n(self) -> int:
        """The tile's columns, or the elements of each result."""
        return self.tile.n

    @property
    def tile_k(self) -> int:
        """A product's depth at a time."""
        return self.tile.k

    @property
    def tile_batch(self) -> int:
        """Batch entries."""
        return self.tile.batch

    @property
    def tile_has_input_dtype(self) -> bool:
        """Whether all operands have one element type."""
        return self.tile.input_dtype is not None

    @property
    def tile_input_dtype(self) -> DType | None:
        """The operands' element type."""
        return self.tile.input_dtype

    @property
    def tile_has_output_dtype(self) -> bool:
        """Whether all results have one element type."""
        return self.tile.output_dtype is not None

    @property
    def tile_output_dtype(self) -> DType | None:
        """The results' element type."""
        return self.tile.output_dtype

    @property
    def tile_input_tile_bytes(self) -> int:
        """Bytes read for one tile."""
        return self.tile.input_tile_bytes

    @property
    def tile_output_tile_bytes(self) -> int:
        """Bytes written for one tile."""
        return self.tile.output_tile_bytes

    @property
    def tile_scratch_memory_bytes(self) -> int:
        """Device memory that a block needs beside them."""
        return self.tile.scratch_memory_bytes

    @property
    def tile_reduction_kind(self) -> LaunchReductionKind | None:
        """How a reduction combines; None where nothing is reduced."""
        return None if self.tile.reduction is None else self.tile.reduction.kind

    @property
    def tile_reduction_rank(self) -> int:
        """The rank of what is reduced."""
        return 0 if self.tile.reduction is None else self.tile.reduction.rank

    @property
    def tile_reduction_axis(self) -> int:
        """The first axis reduced."""
        return 0 if self.tile.reduction is None else self.tile.reduction.axis

    @property
    def tile_reduction_extent(self) -> int:
        """Elements that go into each result."""
        return 0 if self.tile.reduction is None else self.tile.reduction.extent
