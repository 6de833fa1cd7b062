"""Einsum specifications, parsed.

A specification names the axes of each operand and of the result by letters:
``mk,kn->mn``. A letter that the result lacks is summed over; one that an operand
repeats takes its diagonal. Without an arrow the result has the letters that occur
once, in alphabetical order. ``...`` is refused here: the tracer, which knows the
ranks, writes letters for it.

**Order.** Operands are multiplied in pairs from the left: the first with the
second, their product with the third. After each product the letters that neither
a later operand nor the result has are summed at once. The order is part of the
meaning: another may round differently, and costs another number of
multiplications.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from accy_async.errors import InvalidProgram

__all__ = ["EinsumSpec", "EinsumStep"]


def _refusal(text: str, why: str) -> InvalidProgram:
    return InvalidProgram(f"specification {text!r}: {why}", operation="einsum")


@attrs.frozen
class EinsumStep:
    """One product of two operands, by their letters and the result's."""

    lhs: str
    rhs: str
    result: str

    @property
    def batch(self) -> str:
        """Letters that both have and the result keeps."""
        return "".join(c for c in self.lhs if c in self.rhs and c in self.result)

    @property
    def contracted(self) -> str:
        """Letters that both have and the result lacks."""
        return "".join(c for c in self.lhs if c in self.rhs and c not in self.result)


@attrs.frozen(repr=False)
class EinsumSpec:
    """The letters of each operand's axes and of the result's.

    Raises:
        InvalidProgram: a letter of the result is repeated or no operand's.
    """

    operands: tuple[str, ...]
    result: str

    def __attrs_post_init__(self) -> None:
        text = str(self)
        for letters in (*self.operands, self.result):
            for letter in letters:
                if not (letter.isascii() and letter.isalpha()):
                    raise _refusal(
                        text, f"{letter!r} is no letter from a to z or A to Z"
                    )
        if not self.operands:
            raise _refusal(text, "no operand")
        for letter, times in Counter(self.result).items():
            if times > 1:
                raise _refusal(text, f"the result repeats {letter!r}")
            if not any(letter in letters for letters in self.operands):
                raise _refusal(text, f"no operand has the result's {letter!r}")

    @classmethod
    def parse(cls, text: str) -> EinsumSpec:
        """The specification that a text writes; spaces mean nothing."""
        if not isinstance(text, str):
            raise _refusal(str(text), "expected text such as 'mk,kn->mn'")
        given = text.replace(" ", "")
        left, arrow, result = given.partition("->")
        operands = tuple(left.split(","))
        if not arrow:
            counts = Counter(left.replace(",", ""))
            result = "".join(sorted(c for c, times in counts.items() if times == 1))
        return cls(operands, result)

    def __str__(self) -> str:
        return f"{','.join(self.operands)}->{self.result}"

    __repr__ = __str__

    def steps(self) -> tuple[EinsumStep, ...]:
        """The products in their order, each between operands without repeats.

        Letters that one operand repeats, or has alone, are gone before the first
        product it takes part in, see `simplified`.
        """
        names = [self.simplified(index) for index in range(len(self.operands))]
        steps = []
        current = names[0]
        for index, rhs in enumerate(names[1:], 1):
            needed = set(self.result).union(*names[index + 1 :])
            union = "".join(dict.fromkeys(current + rhs))
            shared = [c for c in union if c in current and c in rhs]
            kept = [c for c in shared if c in needed]
            kept += [c for c in union if c not in shared and c in needed]
            step = EinsumStep(current, rhs, "".join(kept))
            steps.append(step)
            current = step.result
        return tuple(steps)

    def simplified(self, index: int) -> str:
        """An operand's letters once its diagonals are taken and its own sums done."""
        others = self.operands[:index] + self.operands[index + 1 :]
        needed = set(self.result).union(*others)
        return "".join(c for c in dict.fromkeys(self.operands[index]) if c in needed)

    def extents(self, shapes: Sequence[tuple[int, ...]]) -> dict[str, int]:
        """The extent of each letter, for operands of these shapes.

        Raises:
            InvalidProgram: the operands' number or ranks are others, or a letter
                stands for two extents.
        """
        text = str(self)
        if len(shapes) != len(self.operands):
            raise _refusal(
                text, f"names {len(self.operands)} operands, got {len(shapes)}"
            )
        extents: dict[str, int] = {}
        seen: dict[str, str] = {}
        for index, (letters, shape) in enumerate(
            zip(self.operands, shapes, strict=True)
        ):
            written = f"[{','.join(map(str, shape))}]"
            if len(letters) != len(shape):
                raise _refusal(
                    text,
                    f"{letters!r} names {len(letters)} axes, operand {index} "
                    f"{written} has {len(shape)}",
                )
            for axis, (letter, extent) in enumerate(zip(letters, shape, strict=True)):
                place = f"operand {index} {written} axis {axis} ({extent})"
                if extents.setdefault(letter, extent) != extent:
                    raise _refusal(text, f"{letter!r} is {seen[letter]} and {place}")
                seen.setdefault(letter, place)
        return extents
