"""SPIR-V modules, read far enough that a bad one never reaches a driver."""

from accy_async.artifact.spirv.check import check_spirv
from accy_async.artifact.spirv.model import SpirvBinding, SpirvEntryPoint, SpirvModule
from accy_async.artifact.spirv.read import read_spirv

__all__ = [
    "SpirvBinding",
    "SpirvEntryPoint",
    "SpirvModule",
    "check_spirv",
    "read_spirv",
]
