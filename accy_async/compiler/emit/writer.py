"""Writing one function of LLVM's textual IR."""

from __future__ import annotations

import struct

from accy_async.dtypes import DType

__all__ = ["FunctionWriter", "float_literal", "literal", "memory_type", "value_type"]

_FLOATS = {DType.F32: "float", DType.F64: "double"}


def value_type(dtype: DType) -> str:
    """The type a value has between instructions.

    f16 and bf16 travel as their bits: the kernel form only moves and converts
    them, and LLVM would call library functions for more.
    """
    return _FLOATS.get(dtype, f"i{dtype.bits}")


def memory_type(dtype: DType) -> str:
    """The type an element has in a buffer: a bool takes a byte."""
    return "i8" if dtype is DType.BOOL else value_type(dtype)


def literal(dtype: DType, slot: int, value: float) -> str:
    """A constant; ``slot`` holds its bytes as an unsigned number.

    LLVM writes a float as the double of the same value, in hexadecimal.
    """
    if dtype is DType.BOOL:
        return "true" if value else "false"
    if dtype in _FLOATS:
        return float_literal(float(value))
    if slot >> (dtype.bits - 1):
        slot -= 1 << dtype.bits
    return str(slot)


def float_literal(value: float) -> str:
    """A float or double constant of the exact value."""
    bits = int.from_bytes(struct.pack(">d", value), "big")
    return f"0x{bits:016X}"


class FunctionWriter:
    """The lines of a function, with fresh names and the current basic block.

    Stack slots are collected apart and belong to the entry block, so that a
    loop around the place of use makes no new ones.
    """

    def __init__(self, externals: set[str]) -> None:
        self.block = "entry"
        self._externals = externals
        self._slots: list[str] = []
        self._lines: list[str] = []
        self._names = 0

    def text(self) -> str:
        """The function's body."""
        return "\n".join(["entry:", *self._slots, *self._lines])

    def label(self, hint: str) -> str:
        """A fresh block name."""
        self._names += 1
        return f"{hint}.{self._names}"

    def value(self, instruction: str) -> str:
        """Append an instruction; the name of its result."""
        self._names += 1
        name = f"%v{self._names}"
        self._lines.append(f"  {name} = {instruction}")
        return name

    def act(self, instruction: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(f"  {instruction}")

    def start(self, label: str) -> None:
        """Begin a basic block; the one before must have ended."""
        self._lines.append(f"{label}:")
        self.block = label

    def enter(self, label: str) -> None:
        """Jump to a block and begin it."""
        self.act(f"br label %{label}")
        self.start(label)

    def branch(self, condition: str, then: str, otherwise: str) -> None:
        """End the block in a two-way branch."""
        self.act(f"br i1 {condition}, label %{then}, label %{otherwise}")

    def slot(self, kind: str, alignment: int) -> str:
        """A stack slot of the function."""
        self._names += 1
        name = f"%s{self._names}"
        self._slots.append(f"  {name} = alloca {kind}, align {alignment}")
        return name

    def phi(self, kind: str, first: str, source: str, after: str, latch: str) -> str:
        """A loop value: ``first`` from ``source``, then ``after`` from ``latch``."""
        return self.value(f"phi {kind} [ {first}, %{source} ], [ {after}, %{latch} ]")

    def reserve(self) -> str:
        """A name for a value that a phi needs before its instruction."""
        self._names += 1
        return f"%v{self._names}"

    def define(self, name: str, instruction: str) -> None:
        """The instruction of a reserved name."""
        self._lines.append(f"  {name} = {instruction}")

    def call(self, result: str, function: str, *arguments: tuple[str, str]) -> str:
        """Call an intrinsic, declaring it for the module."""
        kinds = ", ".join(kind for kind, _ in arguments)
        self._externals.add(f"declare {result} @{function}({kinds})")
        given = ", ".join(f"{kind} {value}" for kind, value in arguments)
        return self.value(f"call {result} @{function}({given})")
