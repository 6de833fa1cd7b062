"""The ``cpu_machine_code`` payload: a linked, position-independent image.

An image is three segments that lie in memory one after the other, each from a
page boundary on: text (run, not written), rodata (read; its global offset table
and pointers are filled in before it is made read-only), data (written, beginning
with stored bytes and ending with zeros). The payload, little-endian:

    header      `_HEADER`: magic, version, ELF machine, flags (0), sizes, counts
    text, rodata, data: the stored bytes of the segments
    base relocations: u32 offsets of 64-bit words to which the image's base is
                added, ascending; in memory order, so after the segments' layout
    exports     u32 offsets into the text, in the order of their names
    names       the imports', then the exports', each ended by a zero byte
    signatures  the kernels' signature section, as it is
    SHA-256     of everything before it

Import number i has its address in the i-th slot of the global offset table,
``got_offset + 8 * i``. Equal images have equal bytes.
"""

from __future__ import annotations

import hashlib
import struct

import attrs

from accy_async.artifact.native.elf_model import EM_AARCH64, EM_X86_64, MACHINES
from accy_async.artifact.native.imports import IMPORTABLE
from accy_async.artifact.native.limits import MAX_IMAGE_BYTES
from accy_async.artifact.native.signature import MAX_SIGNATURE_BYTES
from accy_async.errors import InvalidArtifact

__all__ = [
    "IMAGE_MAGIC",
    "IMAGE_VERSION",
    "PAGE_BYTES",
    "MachineImage",
    "decode_image",
    "encode_image",
]

IMAGE_MAGIC = b"\x93ACCYIM\n"
IMAGE_VERSION = 1

# The largest page the architecture's systems use, so that segments of one image
# never share a page. AAELF64 5.4: 64 KiB; x86-64 psABI 3.3.1: 4 KiB.
PAGE_BYTES = {EM_X86_64: 4096, EM_AARCH64: 65536}

MAX_BASE_RELOCATIONS = 1 << 20
MAX_EXPORTS = 1 << 16
MAX_NAMES_BYTES = 1 << 24
SLOT_BYTES = 8

_DIGEST_BYTES = 32
# magic, version, machine, flags, text, rodata, data, zeros, GOT offset, imports,
# base relocations, exports, bytes of names, bytes of signatures
_HEADER = struct.Struct("<8sHHI10I")


def align_up(value: int, alignment: int) -> int:
    """The next multiple of a power of two."""
    return (value + alignment - 1) & -alignment


@attrs.frozen
class MachineImage:
    """A linked image, its segments' bytes apart; offsets are from its base.

    ``zero_bytes`` of zeros follow ``data``. ``exports`` are pairs of a name and
    an offset into the text, sorted. ``imports`` are in slot order. Code that refers to
    nothing but itself is ``text`` alone.
    """

    machine: int
    text: bytes
    rodata: bytes = b""
    data: bytes = b""
    zero_bytes: int = 0
    got_offset: int = 0
    imports: tuple[str, ...] = ()
    base_relocations: tuple[int, ...] = ()
    exports: tuple[tuple[str, int], ...] = ()
    signatures: bytes = b""

    @property
    def architecture(self) -> str:
        """``x86_64`` or ``aarch64``."""
        return MACHINES[self.machine]

    @property
    def rodata_offset(self) -> int:
        """Where the rodata segment begins."""
        return align_up(len(self.text), PAGE_BYTES[self.machine])

    @property
    def data_offset(self) -> int:
        """Where the data segment begins."""
        return align_up(self.rodata_offset + len(self.rodata), PAGE_BYTES[self.machine])

    @property
    def memory_bytes(self) -> int:
        """What the image occupies in memory, whole pages."""
        end = self.data_offset + len(self.data) + self.zero_bytes
        return align_up(end, PAGE_BYTES[self.machine])


def encode_image(image: MachineImage) -> bytes:
    """The image as a ``cpu_machine_code`` payload.

    Raises:
        InvalidArtifact: the image is inconsistent or too large.
    """
    check_image(image)
    names = b"".join(
        name.encode() + b"\0"
        for name in (*image.imports, *(name for name, _ in image.exports))
    )
    header = _HEADER.pack(
        IMAGE_MAGIC,
        IMAGE_VERSION,
        image.machine,
        0,
        len(image.text),
        len(image.rodata),
        len(image.data),
        image.zero_bytes,
        image.got_offset,
        len(image.imports),
        len(image.base_relocations),
        len(image.exports),
        len(names),
        len(image.signatures),
    )
    offsets = (*image.base_relocations, *(offset for _, offset in image.exports))
    body = b"".join(
        (
            header,
            image.text,
            image.rodata,
            image.data,
            struct.pack(f"<{len(offsets)}I", *offsets),
            names,
            image.signatures,
        )
    )
    return body + hashlib.sha256(body).digest()


def decode_image(payload: bytes) -> MachineImage:
    """Read a ``cpu_machine_code`` payload.

    Raises:
        InvalidArtifact: not such a payload, truncated, changed since it was
            written, or inconsistent; with the byte offset of the fault.
    """
    counts = _read_header(payload)
    machine, text, rodata, data, zeros, got_offset = counts[:6]
    import_count, relocation_count, export_count, names_size, signature_size = counts[
        6:
    ]
    position = _HEADER.size

    def take(size: int) -> bytes:
        nonlocal position
        position += size
        return payload[position - size : position]

    text_bytes, rodata_bytes, data_bytes = take(text), take(rodata), take(data)
    relocations = struct.unpack(f"<{relocation_count}I", take(4 * relocation_count))
    export_offsets = struct.unpack(f"<{export_count}I", take(4 * export_count))
    names_at = position
    names = _split_names(take(names_size), import_count + export_count, names_at)
    image = MachineImage(
        machine=machine,
        text=text_bytes,
        rodata=rodata_bytes,
        data=data_bytes,
        zero_bytes=zeros,
        got_offset=got_offset,
        imports=tuple(names[:import_count]),
        base_relocations=relocations,
        exports=tuple(zip(names[import_count:], export_offsets, strict=True)),
        signatures=take(signature_size),
    )
    check_image(image)
    return image


def _read_header(payload: bytes) -> tuple[int, ...]:
    """The header's numbers, once the payload is known to be whole and unchanged."""
    if payload[:8] != IMAGE_MAGIC[: len(payload)] or not payload:
        raise InvalidArtifact(
            f"machine code: begins with {payload[:8]!r}, expected {IMAGE_MAGIC!r}",
            offset=0,
        )
    if len(payload) < _HEADER.size + _DIGEST_BYTES:
        raise InvalidArtifact(
            f"machine code: truncated, {len(payload)} bytes, expected at least "
            f"{_HEADER.size + _DIGEST_BYTES}",
            offset=len(payload),
        )
    _, version, machine, flags, *numbers = _HEADER.unpack_from(payload)
    text, rodata, data, zeros, got_offset, imports, relocations, exports = numbers[:8]
    names_size, signature_size = numbers[8:]
    if version != IMAGE_VERSION:
        raise InvalidArtifact(
            f"machine code: format version {version}, expected {IMAGE_VERSION}",
            offset=8,
        )
    stored = text + rodata + data + 4 * (relocations + exports)
    expected = _HEADER.size + stored + names_size + signature_size + _DIGEST_BYTES
    if len(payload) != expected:
        word = "truncated" if len(payload) < expected else "overlong"
        raise InvalidArtifact(
            f"machine code: {word}, {len(payload)} bytes, expected {expected}",
            offset=min(len(payload), expected),
        )
    digest_at = len(payload) - _DIGEST_BYTES
    digest = hashlib.sha256(memoryview(payload)[:digest_at]).digest()
    if digest != payload[digest_at:]:
        raise InvalidArtifact(
            "machine code: its checksum does not fit its bytes, which were changed "
            "after they were written",
            offset=digest_at,
        )
    if machine not in MACHINES or flags:
        raise InvalidArtifact(
            f"machine code: ELF machine {machine} with flags {flags:#x}, expected one "
            f"of {MACHINES} and no flags",
            offset=10,
        )
    counts = (text, rodata, data, zeros, got_offset, imports, relocations, exports)
    return (machine, *counts, names_size, signature_size)


def _split_names(block: bytes, count: int, offset: int) -> list[str]:
    names = block.split(b"\0")
    if names.pop() != b"" or len(names) != count:
        raise InvalidArtifact(
            f"machine code: {len(names)} names, expected {count}", offset=offset
        )
    try:
        return [name.decode() for name in names]
    except UnicodeDecodeError:
        raise InvalidArtifact(
            "machine code: a name is no UTF-8", offset=offset
        ) from None


def check_image(image: MachineImage) -> None:
    """Check what must hold before an image is written or mapped.

    Raises:
        InvalidArtifact: a size, offset, name or count is out of its bounds.
    """
    # Parts before the whole: a sum of huge parts is no reason to allocate it.
    sizes = (len(image.text), len(image.rodata), len(image.data), image.zero_bytes)
    if max(sizes) > MAX_IMAGE_BYTES or image.memory_bytes > MAX_IMAGE_BYTES:
        raise InvalidArtifact(
            f"machine code: segments of {sizes} bytes, expected at most "
            f"{MAX_IMAGE_BYTES} together"
        )
    if len(image.signatures) > MAX_SIGNATURE_BYTES:
        raise InvalidArtifact(
            f"machine code: {len(image.signatures)} bytes of signatures, expected at "
            f"most {MAX_SIGNATURE_BYTES}"
        )
    _check_imports(image)
    _check_base_relocations(image)
    _check_exports(image)


def _check_imports(image: MachineImage) -> None:
    if len(set(image.imports)) != len(image.imports):
        raise InvalidArtifact("machine code: an import is named twice")
    for name in image.imports:
        if name not in IMPORTABLE:
            raise InvalidArtifact(
                f"machine code: imports {name!r}, which native kernels may not call"
            )
    begin, end = image.got_offset, image.got_offset + SLOT_BYTES * len(image.imports)
    rodata_end = image.rodata_offset + len(image.rodata)
    if begin % SLOT_BYTES or not image.rodata_offset <= begin <= end <= rodata_end:
        raise InvalidArtifact(
            f"machine code: import slots from {begin} to {end}, expected within the "
            f"rodata from {image.rodata_offset} to {rodata_end}"
        )


def _check_base_relocations(image: MachineImage) -> None:
    if len(image.base_relocations) > MAX_BASE_RELOCATIONS:
        raise InvalidArtifact(
            f"machine code: {len(image.base_relocations)} base relocations, expected "
            f"at most {MAX_BASE_RELOCATIONS}"
        )
    segments = (
        (0, len(image.text)),
        (image.rodata_offset, image.rodata_offset + len(image.rodata)),
        (image.data_offset, image.data_offset + len(image.data)),
    )
    slots_end = image.got_offset + SLOT_BYTES * len(image.imports)
    previous_end = 0
    for offset in image.base_relocations:
        end = offset + SLOT_BYTES
        inside = any(low <= offset and end <= high for low, high in segments)
        in_slots = offset < slots_end and image.got_offset < end
        if offset < previous_end or not inside or in_slots:
            raise InvalidArtifact(
                f"machine code: base relocation at {offset} overlaps another or an "
                "import slot, or is outside the segments"
            )
        previous_end = end


def _check_exports(image: MachineImage) -> None:
    if len(image.exports) > MAX_EXPORTS:
        raise InvalidArtifact(
            f"machine code: {len(image.exports)} exports, expected at most "
            f"{MAX_EXPORTS}"
        )
    names = [name for name, _ in image.exports]
    if names != sorted(set(names)):
        raise InvalidArtifact("machine code: exports are not sorted, or named twice")
    if sum(map(len, names)) > MAX_NAMES_BYTES or any("\0" in name for name in names):
        raise InvalidArtifact(
            "machine code: an export's name is too long or has a zero"
        )
    step = 4 if image.machine == EM_AARCH64 else 1
    for name, offset in image.exports:
        if not 0 <= offset < len(image.text) or offset % step:
            raise InvalidArtifact(
                f"machine code: {name!r} begins at {offset}, outside the "
                f"{len(image.text)} bytes of text or not at an instruction"
            )
