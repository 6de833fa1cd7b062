"""Reading a SPIR-V module's interface, and checking its structure on the way.

Checked are the header, the bounds of every instruction, the order of the sections,
the ids of all that is read, and that functions and blocks begin and end in turn. What
the instructions within a block compute is left to the driver; spirv-val checks all of
it. Nothing here recurses, and time and memory are linear in the module's size.

Source: SPIR-V specification 1.6, 2.4 (logical layout) and 3.52 (instructions).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

from accy_async.artifact.spirv.layout import Types
from accy_async.artifact.spirv.model import (
    CAPABILITIES,
    SpirvBinding,
    SpirvEntryPoint,
    SpirvModule,
)
from accy_async.artifact.spirv.words import (
    Instruction,
    instructions,
    literal_text,
    read_header,
)
from accy_async.errors import InvalidArtifact

__all__ = ["read_spirv"]

_GL_COMPUTE = 5
_LOCAL_SIZE, _LOCAL_SIZE_ID = 17, 38
_NON_WRITABLE, _NON_READABLE = 24, 25
_BUILT_IN, _WORKGROUP_SIZE = 11, 25
_BINDING, _DESCRIPTOR_SET = 33, 34
_UNIFORM_CONSTANT, _UNIFORM, _WORKGROUP = 0, 2, 4
_PUSH_CONSTANT, _STORAGE_BUFFER = 9, 12
_RESOURCES = (_UNIFORM_CONSTANT, _UNIFORM, _STORAGE_BUFFER)
_ADDRESSING = {0: "Logical", 5348: "PhysicalStorageBuffer64"}
_MEMORY_MODELS = {1: "GLSL450", 3: "Vulkan"}
_MAX_EXTENT = 2**32 - 1
_TERMINATORS = frozenset({249, 250, 251, 252, 253, 254, 255, 4416, 5294})
_SECTIONS = {17: 0, 10: 1, 11: 2, 14: 3, 15: 4, 16: 5, 331: 5}
"""Capability, Extension, ExtInstImport, MemoryModel, EntryPoint, ExecutionMode."""
_FUNCTIONS = 6
_OUTSIDE, _BETWEEN, _WITHIN = "outside functions", "between blocks", "within a block"


def read_spirv(payload: object) -> SpirvModule:
    """Read a module.

    Raises:
        InvalidArtifact: with the offset of what is wrong.
    """
    if not isinstance(payload, bytes):
        kind = type(payload).__name__
        raise InvalidArtifact(f"SPIR-V: a payload of {kind}, expected bytes")
    return _Reader(payload).module()


class _Reader:
    def __init__(self, payload: bytes) -> None:
        self._payload = payload
        header = read_header(payload)
        self._version, self._bound = header.version, header.bound
        self._types = Types(self._fail)
        self._capabilities: set[int] = set()
        self._extensions: list[str] = []
        self._models: list[tuple[int, int]] = []
        self._entries: dict[str, int] = {}
        self._all_entries: set[tuple[int, str]] = set()
        self._modes: dict[int, dict[int, tuple[int, ...]]] = {}
        self._every_mode: dict[int, set[tuple[int, tuple[int, ...]]]] = {}
        self._decorations: dict[int, dict[int, tuple[int, ...]]] = {}
        self._variables: list[tuple[int, int, int, int]] = []
        self._functions: set[int] = set()
        self._offset = 0
        self._section = 0
        self._state = _OUTSIDE
        self._readers: dict[int, Callable[[tuple[int, ...]], None]] = {
            10: self._read_extension,
            14: self._read_memory_model,
            15: self._read_entry_point,
            16: self._read_mode,
            17: self._read_capability,
            59: self._read_variable,
            71: self._read_decoration,
            72: self._read_member_decoration,
            331: self._read_mode,
        }

    def module(self) -> SpirvModule:
        for instruction in instructions(self._payload):
            self._offset = instruction.offset
            self._place(instruction)
            reader = self._readers.get(instruction.opcode)
            if reader is not None:
                reader(instruction.operands)
            else:
                self._types.read(instruction.opcode, instruction.operands, self._id)
        self._offset = len(self._payload)
        return self._whole()

    def _whole(self) -> SpirvModule:
        if self._state != _OUTSIDE:
            self._fail("a function without an end")
        if len(self._models) != 1:
            self._fail(f"{len(self._models)} memory models, expected one")
        for name, entry in self._entries.items():
            if entry not in self._functions:
                self._fail(f"entry point {name!r} is no function")
        pushed = [v for v in self._variables if v[2] == _PUSH_CONSTANT]
        return SpirvModule(
            version=self._version,
            capabilities=frozenset(
                CAPABILITIES.get(number, str(number)) for number in self._capabilities
            ),
            extensions=tuple(self._extensions),
            entry_points=tuple(
                SpirvEntryPoint(name, self._local_size(name, entry))
                for name, entry in self._entries.items()
            ),
            bindings=self._bindings(),
            push_constant_bytes=max(
                (self._types.pointed_size(v[1], v[3]) for v in pushed), default=0
            ),
            execution_modes=frozenset(
                (mode, *literals)
                for entry in self._entries.values()
                for mode, literals in self._every_mode.get(entry, ())
            ),
            shared_bytes=sum(
                self._types.shared_size(pointer)
                for _, pointer, storage, _ in self._variables
                if storage == _WORKGROUP
            ),
        )

    def _fail(self, message: str, offset: int | None = None) -> NoReturn:
        where = self._offset if offset is None else offset
        raise InvalidArtifact(f"SPIR-V: {message}", offset=where)

    def _id(self, value: int) -> int:
        if not 0 < value < self._bound:
            self._fail(f"id {value}, expected 1 to {self._bound - 1}")
        return value

    def _take(self, operands: tuple[int, ...], least: int) -> tuple[int, ...]:
        if len(operands) < least:
            self._fail(f"{len(operands)} operands, expected at least {least}")
        return operands

    def _place(self, instruction: Instruction) -> None:
        """Whether an instruction may stand where it does."""
        opcode, operands, _ = instruction
        if self._state == _OUTSIDE:
            section = _SECTIONS.get(opcode, _FUNCTIONS)
            if section < self._section:
                self._fail(f"instruction {opcode} after its section")
            self._section = section
        if opcode == 54:  # OpFunction
            self._expect(_OUTSIDE, opcode)
            self._functions.add(self._id(self._take(operands, 4)[1]))
            self._state = _BETWEEN
        elif opcode == 56:  # OpFunctionEnd
            self._expect(_BETWEEN, opcode)
            self._state = _OUTSIDE
        elif opcode == 248:  # OpLabel
            self._expect(_BETWEEN, opcode)
            self._id(self._take(operands, 1)[0])
            self._state = _WITHIN
        elif opcode in _TERMINATORS:
            self._expect(_WITHIN, opcode)
            self._state = _BETWEEN

    def _expect(self, state: str, opcode: int) -> None:
        if self._state != state:
            self._fail(f"instruction {opcode} {self._state}, expected {state}")

    def _read_capability(self, operands: tuple[int, ...]) -> None:
        self._capabilities.add(self._take(operands, 1)[0])

    def _read_extension(self, operands: tuple[int, ...]) -> None:
        text, _ = literal_text(operands, "an extension's name", self._offset)
        self._extensions.append(text)

    def _read_memory_model(self, operands: tuple[int, ...]) -> None:
        addressing, memory = self._take(operands, 2)[:2]
        if addressing not in _ADDRESSING:
            self._fail(f"addressing model {addressing}, which Vulkan does not take")
        if memory not in _MEMORY_MODELS:
            self._fail(f"memory model {memory}, which Vulkan does not take")
        self._models.append((addressing, memory))

    def _read_entry_point(self, operands: tuple[int, ...]) -> None:
        model, function = self._take(operands, 3)[:2]
        name, interface = literal_text(operands[2:], "an entry's name", self._offset)
        if (model, name) in self._all_entries:
            self._fail(f"two entry points {name!r}")
        self._all_entries.add((model, name))
        self._id(function)
        for variable in interface:
            self._id(variable)
        if model == _GL_COMPUTE:
            self._entries[name] = function

    def _read_mode(self, operands: tuple[int, ...]) -> None:
        entry, mode, *literals = self._take(operands, 2)
        self._modes.setdefault(self._id(entry), {})[mode] = tuple(literals)
        # Modes of the floats come once for each width.
        self._every_mode.setdefault(entry, set()).add((mode, tuple(literals)))

    def _read_decoration(self, operands: tuple[int, ...]) -> None:
        target, decoration, *literals = self._take(operands, 2)
        self._decorations.setdefault(self._id(target), {})[decoration] = tuple(literals)
        self._types.decorate(target, decoration, tuple(literals))

    def _read_member_decoration(self, operands: tuple[int, ...]) -> None:
        struct, member, decoration, *literals = self._take(operands, 3)
        self._types.decorate_member(
            self._id(struct), member, decoration, tuple(literals)
        )

    def _read_variable(self, operands: tuple[int, ...]) -> None:
        pointer, variable, storage = self._take(operands, 3)[:3]
        entry = (self._id(variable), self._id(pointer), storage, self._offset)
        self._variables.append(entry)

    def _local_size(self, name: str, entry: int) -> tuple[int, int, int]:
        modes = self._modes.get(entry, {})
        size: tuple[int, ...] | None = modes.get(_LOCAL_SIZE)
        if size is None and _LOCAL_SIZE_ID in modes:
            size = tuple(map(self._types.constant, modes[_LOCAL_SIZE_ID]))
        for target, decorations in self._decorations.items():
            if decorations.get(_BUILT_IN) == (_WORKGROUP_SIZE,):
                size = self._types.composite(target)
        if size is None or len(size) != 3:
            self._fail(f"entry point {name!r} without a size of its workgroups")
        x, y, z = size
        if min(x, y, z) < 1 or x * y * z > _MAX_EXTENT:
            self._fail(f"entry point {name!r} with workgroups of {x} x {y} x {z}")
        return x, y, z

    def _bindings(self) -> tuple[SpirvBinding, ...]:
        found = []
        for variable, pointer, storage, offset in self._variables:
            if storage not in _RESOURCES:
                continue
            decorations = self._decorations.get(variable, {})
            places = [
                decorations.get(which, ()) for which in (_DESCRIPTOR_SET, _BINDING)
            ]
            if any(len(place) != 1 for place in places):
                self._fail("a resource without a set and binding", offset)
            members = self._types.pointed_decorations(pointer)
            found.append(
                SpirvBinding(
                    places[0][0],
                    places[1][0],
                    self._kind(storage, pointer),
                    is_readable=_NON_READABLE not in decorations.keys() | members,
                    is_writable=_NON_WRITABLE not in decorations.keys() | members,
                )
            )
        return tuple(sorted(found, key=lambda b: (b.set, b.binding)))

    def _kind(self, storage: int, pointer: int) -> str:
        if storage == _STORAGE_BUFFER:
            return "storage_buffer"
        if storage == _UNIFORM:
            # Before SPIR-V 1.3 storage buffers were uniforms, decorated BufferBlock.
            is_buffer = self._types.is_buffer_block(pointer)
            return "storage_buffer" if is_buffer else "uniform_buffer"
        return "other"
