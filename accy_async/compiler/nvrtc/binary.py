"""What a compile gives: code for one architecture, and the kernels in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import msgspec

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat, artifact_format
from accy_async.artifact.geometry import KernelCallLaunch
from accy_async.artifact.kernel import (
    KernelArtifact,
    Payload,
    payload_validator,
    show_payload,
)
from accy_async.errors import InvalidArtifact, InvalidValue
from accy_async.values import enum, mapping_of_text, text

__all__ = ["CudaBinary"]


def _copied(value: Mapping[str, str]) -> Mapping[str, str]:
    """Converter: a copy that nobody else can change."""
    return dict(value)


class _Record(msgspec.Struct, array_like=True, frozen=True):
    """A binary's fields as they are kept on disk."""

    format: str
    architecture: str
    code: bytes
    entries: dict[str, str]
    log: str
    compiler: str


@attrs.frozen(kw_only=True)
class CudaBinary:
    """Compiled CUDA C++.

    Attributes:
        format: ``CUDA_CUBIN``, or ``CUDA_PTX`` where that was asked for.
        architecture: what it runs on, as ``"sm_90"`` or ``"sm_90a"``.
        payload: the code.
        entries: each kernel as it was asked for, ``"scale<float>"``, to its name in
            the code.
        log: what the compiler said, its warnings.
        compiler: which it was, as ``"NVRTC 13.0"``.
        is_from_cache: True where it was found on disk.
    """

    format: ArtifactFormat = attrs.field(
        converter=artifact_format, validator=enum(ArtifactFormat)
    )
    architecture: str = attrs.field(validator=text())
    payload: Payload = attrs.field(validator=payload_validator, repr=show_payload)
    entries: Mapping[str, str] = attrs.field(
        converter=_copied, validator=mapping_of_text(), hash=False
    )
    log: str = attrs.field(default="", validator=text(empty=True), repr=False)
    compiler: str = attrs.field(default="", validator=text(empty=True))
    is_from_cache: bool = attrs.field(default=False, eq=False)

    def entry_name(self, entry: str) -> str:
        """The name in the code of a kernel that was asked for.

        Raises:
            InvalidValue: it was not.
        """
        name = self.entries.get(entry)
        if name is None:
            asked = ", ".join(map(repr, self.entries))
            raise InvalidValue("CudaBinary.entry", entry, f"one of {asked}")
        return name

    def artifact(
        self, entry: str, *, argument_count: int, scalar_argument_count: int = 0
    ) -> KernelArtifact:
        """A kernel as an artifact, for `Backend.load_artifact`.

        Args:
            entry: as it was asked for.
            argument_count: buffers and scalars together, buffers first.
            scalar_argument_count: how many of them are scalars.

        Raises:
            InvalidValue: there is no such entry, or the counts contradict each other.
        """
        return KernelArtifact(
            kernel_name=self.entry_name(entry),
            format=self.format,
            argument_count=argument_count,
            scalar_argument_count=scalar_argument_count,
            payload=self.payload,
        )

    def kernel_call(
        self,
        entry: str,
        *,
        target: str,
        argument_count: int,
        launch: KernelCallLaunch,
        version: int = 1,
        **fields: Any,
    ) -> KernelCallArtifact:
        """A kernel as an entry for registries and graphs.

        Args:
            entry: as it was asked for.
            target: the name that callers find it by.
            argument_count: buffers and scalars together, buffers first.
            launch: its geometry.
            version: of the target's contract.
            **fields: further fields of `KernelCallArtifact`.

        Raises:
            InvalidValue: there is no such entry, or a field is wrong.
        """
        return KernelCallArtifact(
            target=target,
            version=version,
            format=self.format,
            entry_name=self.entry_name(entry),
            argument_count=argument_count,
            payload=self.payload,
            launch=launch,
            **fields,
        )

    def to_bytes(self) -> bytes:
        """All of it as bytes, which `from_bytes` reads."""
        code = self.payload
        return msgspec.msgpack.encode(
            _Record(
                format=self.format.value,
                architecture=self.architecture,
                code=code.encode() if isinstance(code, str) else code,
                entries=dict(self.entries),
                log=self.log,
                compiler=self.compiler,
            )
        )

    @classmethod
    def from_bytes(cls, data: bytes, *, is_from_cache: bool = False) -> CudaBinary:
        """A binary from its bytes.

        Raises:
            InvalidArtifact: they are none.
        """
        try:
            record = msgspec.msgpack.decode(data, type=_Record)
            is_text = record.format == ArtifactFormat.CUDA_PTX.value
            return cls(
                format=record.format,
                architecture=record.architecture,
                payload=record.code.decode() if is_text else record.code,
                entries=record.entries,
                log=record.log,
                compiler=record.compiler,
                is_from_cache=is_from_cache,
            )
        except (msgspec.DecodeError, InvalidValue, UnicodeDecodeError) as error:
            raise InvalidArtifact(f"no compiled CUDA C++: {error}") from error
