"""What a native kernel takes, as its object file says it.

The description travels inside the payload, so that a wrong argument is refused
before the kernel runs, however old the file is.
"""

from __future__ import annotations

import json
from typing import cast

import attrs

from accy_async.artifact.native.abi import ABI_VERSION, MAX_ARGUMENTS
from accy_async.dtypes import DType
from accy_async.errors import InvalidArtifact
from accy_async.values import U32_MAX, enum, integer, integers, one_of, text, tuple_of

__all__ = [
    "MAX_SIGNATURE_BYTES",
    "BufferParameter",
    "KernelSignature",
    "SignatureTable",
    "decode_signatures",
    "encode_signatures",
]

MAX_SIGNATURE_BYTES = 1 << 20
_IDENTIFIER = r"[A-Za-z_.$][A-Za-z0-9_.$]*"


@attrs.frozen
class BufferParameter:
    """A buffer that a kernel takes: its element type and how it is used."""

    dtype: DType = attrs.field(validator=enum(DType))
    access: str = attrs.field(
        validator=one_of(("read_only", "write_only", "read_write"))
    )


@attrs.frozen
class KernelSignature:
    """One kernel's name, parameters and shape.

    ``threadgroup`` is the block the code was made for; a launch with another is
    refused. ``shared_bytes`` is what it declares statically per block.
    """

    entry_name: str = attrs.field(
        validator=text(pattern=_IDENTIFIER, what="a linker symbol")
    )
    buffers: tuple[BufferParameter, ...] = attrs.field(
        validator=tuple_of(BufferParameter, expected="a tuple of BufferParameter")
    )
    scalars: tuple[DType, ...] = attrs.field(
        validator=tuple_of(DType, expected="a tuple of DType")
    )
    threadgroup: tuple[int, int, int] = attrs.field(
        validator=integers(1, U32_MAX, length=3)
    )
    shared_bytes: int = attrs.field(default=0, validator=integer(0, 1 << 30))


@attrs.frozen
class SignatureTable:
    """Every kernel of a payload, and the machine it was made for.

    ``architecture`` is ``x86_64`` or ``aarch64``; ``level`` names the
    instruction-set level within it (``x86-64-v1`` to ``x86-64-v4`` of the x86-64
    psABI, or ``armv8-a``).
    """

    architecture: str = attrs.field(validator=one_of(("x86_64", "aarch64")))
    level: str = attrs.field(validator=text())
    kernels: tuple[KernelSignature, ...] = attrs.field(
        validator=tuple_of(KernelSignature, expected="a tuple of KernelSignature")
    )

    def find(self, entry_name: str) -> KernelSignature | None:
        """The kernel of that name, or None."""
        for kernel in self.kernels:
            if kernel.entry_name == entry_name:
                return kernel
        return None


def encode_signatures(table: SignatureTable) -> bytes:
    """The table as the bytes of its section, the same for equal tables."""
    document = {
        "abi": ABI_VERSION,
        "architecture": table.architecture,
        "level": table.level,
        "kernels": [
            {
                "entry": kernel.entry_name,
                "buffers": [[b.dtype.value, b.access] for b in kernel.buffers],
                "scalars": [dtype.value for dtype in kernel.scalars],
                "threadgroup": list(kernel.threadgroup),
                "shared_bytes": kernel.shared_bytes,
            }
            for kernel in table.kernels
        ],
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


def decode_signatures(data: bytes) -> SignatureTable:
    """Read a signature section.

    Raises:
        InvalidArtifact: too large, not the expected JSON, another ABI version,
            a value no signature can hold, or two kernels of one name.
    """
    if len(data) > MAX_SIGNATURE_BYTES:
        raise InvalidArtifact(
            f"kernel signatures: {len(data)} bytes, expected at most "
            f"{MAX_SIGNATURE_BYTES}"
        )
    try:
        document = cast("dict[str, object]", json.loads(data))
        version = document["abi"]
        if version != ABI_VERSION:
            raise InvalidArtifact(
                f"kernel signatures: ABI version {version!r}, expected {ABI_VERSION}"
            )
        table = SignatureTable(
            architecture=cast("str", document["architecture"]),
            level=cast("str", document["level"]),
            kernels=tuple(
                _kernel(kernel)
                for kernel in cast("list[dict[str, object]]", document["kernels"])
            ),
        )
    except InvalidArtifact:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidArtifact(f"kernel signatures: malformed ({error})") from error
    names = [kernel.entry_name for kernel in table.kernels]
    if len(set(names)) != len(names):
        raise InvalidArtifact("kernel signatures: two kernels have one name")
    return table


def _kernel(document: dict[str, object]) -> KernelSignature:
    buffers = cast("list[tuple[str, str]]", document["buffers"])
    scalars = cast("list[str]", document["scalars"])
    threadgroup = cast("list[int]", document["threadgroup"])
    signature = KernelSignature(
        entry_name=cast("str", document["entry"]),
        buffers=tuple(
            BufferParameter(DType(dtype), access) for dtype, access in buffers
        ),
        scalars=tuple(DType(dtype) for dtype in scalars),
        threadgroup=cast("tuple[int, int, int]", tuple(threadgroup)),
        shared_bytes=cast("int", document["shared_bytes"]),
    )
    if len(signature.buffers) + len(signature.scalars) > MAX_ARGUMENTS:
        raise ValueError(f"more than {MAX_ARGUMENTS} arguments")
    return signature
