"""Programs as text, for people to read.

::

    module mlp {
      func mlp(%x: f32[8,4], %w: f32[4,2]) -> (f32[8,2]) {
        %2: f32[8,2] = dot_general %x, %w contracting=[1]x[0] accumulate=f32
        %3: f32[8,2] = tanh %2
        return %3
      }
    }
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from accy_async.compiler.semantic.types import Value

if TYPE_CHECKING:
    from accy_async.compiler.semantic.program import Function, Module, Operation

__all__ = ["function_text", "module_text"]

_INDENT = "  "


def module_text(module: Module) -> str:
    """A module's text, functions in order."""
    body = "\n\n".join(
        _indented(function_text(function)) for function in module.functions
    )
    return f"module {module.name} {{\n{body}\n}}"


def function_text(function: Function) -> str:
    """A function's text: a line for each operation, results first."""
    names = {
        value: f"%{name}"
        for value, name in zip(
            function.parameters, function.parameter_names, strict=True
        )
    }
    parameters = ", ".join(f"{names[v]}: {v.type}" for v in function.parameters)
    results = ", ".join(str(type) for type in function.result_types)
    lines = [f"func {function.name}({parameters}) -> ({results}) {{"]
    lines += [_indented(_operation(entry, names)) for entry in function.operations]
    returned = ", ".join(_name(value, names) for value in function.results)
    return "\n".join([*lines, f"{_INDENT}return {returned}".rstrip(), "}"])


def _operation(entry: Operation, names: dict[Value, str]) -> str:
    results = ", ".join(f"{_name(v, names)}: {v.type}" for v in entry.results)
    operands = ", ".join(_name(value, names) for value in entry.operands)
    parts = (f"{results} =", entry.op.opcode, operands, entry.op.attributes())
    return " ".join(part for part in parts if part)


def _name(value: Value, names: dict[Value, str]) -> str:
    return names.get(value, f"%{value.index}")


def _indented(text: str) -> str:
    return "\n".join(_INDENT + line if line else line for line in text.split("\n"))
