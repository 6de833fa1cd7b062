"""Calls of ready-made kernels from a program."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from accy_async.compiler.semantic.kinds import OperandEffect, operand_effect
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.types import TensorType
from accy_async.errors import InvalidType
from accy_async.values import field_name, integer, text, to_tuple, tuple_of

__all__ = ["KernelCall"]


def _effects(value: Any) -> Any:  # noqa: ANN401 - what fits is for a validator to say
    members: Any = to_tuple(value)
    return (
        tuple(operand_effect(effect) for effect in members)
        if isinstance(members, tuple)
        else members
    )


def _aliases(
    instance: object, attribute: attrs.Attribute[object], value: object
) -> None:
    expected = "a tuple of operand indices and None"
    if not isinstance(value, tuple):
        raise InvalidType(field_name(instance, attribute), value, expected)
    for alias in value:
        if alias is not None and (
            isinstance(alias, bool) or not isinstance(alias, int)
        ):
            raise InvalidType(field_name(instance, attribute), value, expected)


@attrs.frozen
class KernelCall(Op):
    """A call of the registry's kernel for ``target`` and ``version``.

    The kernel's buffers are the results, then the operands. ``operand_effects``
    says what it does to each operand's memory, ``result_aliases`` which operand's
    memory a result takes over (None: memory of its own). A value never changes:
    where an operand whose memory is taken over is needed afterwards, what runs is
    a copy. An operand that the kernel writes is therefore some result's alias;
    what it would hold afterwards were nobody's value otherwise.

    A call is never dropped nor merged with another, and calls stay in order.
    """

    arity: ClassVar[int | None] = None
    is_pure: ClassVar[bool] = False
    target: str = attrs.field(validator=text())
    version: int = attrs.field(validator=integer())
    operand_effects: tuple[OperandEffect, ...] = attrs.field(
        converter=_effects,
        validator=tuple_of(OperandEffect, expected="read, write or read_write each"),
    )
    types: tuple[TensorType, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(TensorType, expected="TensorType values")
    )
    result_aliases: tuple[int | None, ...] = attrs.field(
        converter=to_tuple, validator=_aliases
    )

    @property
    def opcode(self) -> str:
        return "kernel_call"

    def attributes(self) -> str:
        effects = ",".join(self.operand_effects)
        parts = [f'"{self.target}" version={self.version} effects=[{effects}]']
        if any(alias is not None for alias in self.result_aliases):
            aliases = ",".join(
                "none" if alias is None else str(alias) for alias in self.result_aliases
            )
            parts.append(f"aliases=[{aliases}]")
        return " ".join(parts)

    def infer(self, operands: tuple[TensorType, ...]) -> tuple[TensorType, ...]:
        if len(self.operand_effects) != len(operands):
            raise self.refusal(
                f"{self.target!r} has {len(self.operand_effects)} operand effects for "
                f"{len(operands)} operands"
            )
        if not self.types:
            raise self.refusal(f"{self.target!r} has no result")
        if len(self.result_aliases) != len(self.types):
            raise self.refusal(
                f"{self.target!r} has {len(self.result_aliases)} result aliases for "
                f"{len(self.types)} results"
            )
        self._check_aliases(operands)
        return self.types

    def _check_aliases(self, operands: tuple[TensorType, ...]) -> None:
        taken: dict[int, int] = {}
        for result, alias in enumerate(self.result_aliases):
            if alias is None:
                continue
            if not 0 <= alias < len(operands):
                raise self.refusal(
                    f"result {result} aliases operand {alias} of {len(operands)}"
                )
            if alias in taken:
                raise self.refusal(
                    f"results {taken[alias]} and {result} both alias operand {alias}"
                )
            if operands[alias] != self.types[result]:
                raise self.refusal(
                    f"result {result} {self.types[result]} aliases operand {alias} "
                    f"{operands[alias]}"
                )
            taken[alias] = result
        for index, effect in enumerate(self.operand_effects):
            if effect.writes and index not in taken:
                raise self.refusal(
                    f"operand {index} {operands[index]} is written ({effect.value}) "
                    "and no result aliases it"
                )
