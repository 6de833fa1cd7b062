"""Native CPU kernels: their calling convention, formats, linker and loader.

The names are loaded when first used: what only describes kernels needs neither
the linker nor the loader.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from accy_async.artifact.native.abi import (
        ABI_VERSION,
        MAX_ARGUMENTS,
        SIGNATURE_SECTION,
        SIGNATURE_SYMBOL,
        KernelFunction,
        LaunchBlock,
    )
    from accy_async.artifact.native.elf import ObjectFile, parse_object
    from accy_async.artifact.native.host import (
        core_count,
        cpu_model,
        host_architecture,
        host_level,
        level_supports,
    )
    from accy_async.artifact.native.image import (
        MachineImage,
        decode_image,
        encode_image,
    )
    from accy_async.artifact.native.imports import IMPORTABLE
    from accy_async.artifact.native.link import link_object
    from accy_async.artifact.native.loader import (
        ForeignMachineCode,
        NativeKernel,
        load_machine_code,
        load_object,
    )
    from accy_async.artifact.native.signature import (
        BufferParameter,
        KernelSignature,
        SignatureTable,
        decode_signatures,
        encode_signatures,
    )

__all__ = [
    "ABI_VERSION",
    "IMPORTABLE",
    "MAX_ARGUMENTS",
    "SIGNATURE_SECTION",
    "SIGNATURE_SYMBOL",
    "BufferParameter",
    "ForeignMachineCode",
    "KernelFunction",
    "KernelSignature",
    "LaunchBlock",
    "MachineImage",
    "NativeKernel",
    "ObjectFile",
    "SignatureTable",
    "core_count",
    "cpu_model",
    "decode_image",
    "decode_signatures",
    "encode_image",
    "encode_signatures",
    "host_architecture",
    "host_level",
    "level_supports",
    "link_object",
    "load_machine_code",
    "load_object",
    "parse_object",
]

_HOMES = {
    "abi": (
        "ABI_VERSION",
        "MAX_ARGUMENTS",
        "SIGNATURE_SECTION",
        "SIGNATURE_SYMBOL",
        "KernelFunction",
        "LaunchBlock",
    ),
    "elf": ("ObjectFile", "parse_object"),
    "host": (
        "core_count",
        "cpu_model",
        "host_architecture",
        "host_level",
        "level_supports",
    ),
    "image": ("MachineImage", "decode_image", "encode_image"),
    "imports": ("IMPORTABLE",),
    "link": ("link_object",),
    "loader": (
        "ForeignMachineCode",
        "NativeKernel",
        "load_machine_code",
        "load_object",
    ),
    "signature": (
        "BufferParameter",
        "KernelSignature",
        "SignatureTable",
        "decode_signatures",
        "encode_signatures",
    ),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = importlib.import_module(f"{__name__}.{_HOME_OF[name]}")
    value: object = getattr(module, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
