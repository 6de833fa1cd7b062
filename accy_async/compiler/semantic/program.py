"""Programs: operations on values, functions of them, and modules of functions.

All are immutable, and none exists that is not valid: a `Function` is verified
when it is made, by the builder or by hand. Equality and fingerprints look at what
is computed: names and source locations do not count.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator

import attrs

from accy_async.artifact.fingerprint import fingerprint
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.text import function_text, module_text
from accy_async.compiler.semantic.types import TensorType, Value
from accy_async.compiler.semantic.verify import verify_function
from accy_async.errors import InvalidProgram, InvalidValue
from accy_async.values import instances, optional, text, to_tuple, tuple_of

__all__ = ["IDENTIFIER", "NAME_EXPECTED", "Function", "Module", "Operation"]

IDENTIFIER = r"[A-Za-z_][A-Za-z0-9_.\-]*"
NAME_EXPECTED = "a name of letters, digits, '_', '.' and '-'"
_NAME = text(pattern=IDENTIFIER, what=NAME_EXPECTED)
_VALUES = tuple_of(Value, expected="Value members")


@attrs.frozen
class Operation:
    """An op applied to values, and the values it makes.

    ``location`` is the source line it was traced from, such as ``model.py:12``.
    """

    op: Op = attrs.field(validator=instances(Op))
    operands: tuple[Value, ...] = attrs.field(converter=to_tuple, validator=_VALUES)
    results: tuple[Value, ...] = attrs.field(converter=to_tuple, validator=_VALUES)
    location: str | None = attrs.field(
        default=None, eq=False, validator=optional(instances(str))
    )

    @property
    def result(self) -> Value:
        """The only result."""
        (value,) = self.results
        return value


@attrs.frozen(repr=False)
class Function:
    """Parameters, operations in an order in which they can run, and results.

    Value ``i`` is parameter ``i``, or with ``p`` parameters the ``i - p``-th
    result of the operations in their order. A result may be a parameter, and a
    value may be several results.

    Raises:
        InvalidProgram: the values are not numbered so, one is used before it is
            made, or an operation's results are not of the types its op gives.
    """

    name: str = attrs.field(validator=_NAME, eq=False)
    parameters: tuple[Value, ...] = attrs.field(converter=to_tuple, validator=_VALUES)
    operations: tuple[Operation, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(Operation, expected="Operation members")
    )
    results: tuple[Value, ...] = attrs.field(converter=to_tuple, validator=_VALUES)
    parameter_names: tuple[str, ...] = attrs.field(
        converter=to_tuple, eq=False, default=()
    )
    _fingerprint: int | None = attrs.field(default=None, init=False, eq=False)

    def __attrs_post_init__(self) -> None:
        names = self.parameter_names or tuple(f"p{i}" for i in range(self.arity))
        check = tuple_of(str, length=self.arity, expected=f"{self.arity} names")
        check(self, attrs.fields(Function).parameter_names, names)
        if len(set(names)) != len(names):
            raise InvalidValue(
                "Function.parameter_names", names, "names that do not repeat"
            )
        object.__setattr__(self, "parameter_names", names)
        verify_function(self)

    @property
    def arity(self) -> int:
        """How many parameters it has."""
        return len(self.parameters)

    @property
    def parameter_types(self) -> tuple[TensorType, ...]:
        """The types of its parameters."""
        return tuple(value.type for value in self.parameters)

    @property
    def result_types(self) -> tuple[TensorType, ...]:
        """The types of its results."""
        return tuple(value.type for value in self.results)

    @property
    def value_count(self) -> int:
        """How many values it has, parameters included."""
        return self.arity + sum(len(entry.results) for entry in self.operations)

    def producers(self) -> dict[Value, Operation]:
        """The operation that makes each value; parameters have none."""
        return {value: entry for entry in self.operations for value in entry.results}

    def users(self) -> dict[Value, tuple[Operation, ...]]:
        """The operations that read each value, in order; all values are keys."""
        found: dict[Value, list[Operation]] = {value: [] for value in self.values()}
        for entry in self.operations:
            for value in dict.fromkeys(entry.operands):
                found[value].append(entry)
        return {value: tuple(entries) for value, entries in found.items()}

    def values(self) -> Iterator[Value]:
        """All values in the order of their indices."""
        yield from self.parameters
        for entry in self.operations:
            yield from entry.results

    def fingerprint(self) -> int:
        """64 bits that name what it computes, the same in every process.

        Functions that differ in names and locations only have one fingerprint.
        """
        if self._fingerprint is None:
            object.__setattr__(self, "_fingerprint", fingerprint(self._content()))
        assert self._fingerprint is not None
        return self._fingerprint

    def _content(self) -> object:
        """Each op once, and who is applied to whom; the types follow from these."""
        ops: dict[Op, int] = {}
        wiring = array("Q")
        for entry in self.operations:
            wiring.append(ops.setdefault(entry.op, len(ops)))
            wiring.append(len(entry.operands))
            wiring.extend(value.index for value in entry.operands)
        wiring.extend(value.index for value in self.results)
        if sys.byteorder == "big":
            wiring.byteswap()
        parameters = tuple(str(type) for type in self.parameter_types)
        identities = tuple(op.identity() for op in ops)
        return parameters, identities, len(self.operations), wiring.tobytes()

    def __str__(self) -> str:
        return function_text(self)

    def __repr__(self) -> str:
        return (
            f"<Function {self.name}: {len(self.operations)} operations, "
            f"fingerprint {self.fingerprint():016x}>"
        )


@attrs.frozen(repr=False)
class Module:
    """Functions by name; the first is the one that runs unless another is named.

    Raises:
        InvalidProgram: no function, or two of one name.
    """

    name: str = attrs.field(validator=_NAME, eq=False)
    functions: tuple[Function, ...] = attrs.field(
        converter=to_tuple, validator=tuple_of(Function, expected="Function members")
    )

    def __attrs_post_init__(self) -> None:
        names = [function.name for function in self.functions]
        if not names:
            raise InvalidProgram(f"module {self.name} has no function")
        for name in names:
            if names.count(name) > 1:
                raise InvalidProgram(f"module {self.name} has two functions {name}")

    @property
    def entry(self) -> Function:
        """The first function."""
        return self.functions[0]

    def function(self, name: str) -> Function:
        """The function of that name.

        Raises:
            InvalidProgram: there is none.
        """
        for function in self.functions:
            if function.name == name:
                return function
        names = ", ".join(function.name for function in self.functions)
        raise InvalidProgram(f"module {self.name} has no function {name!r}: {names}")

    def fingerprint(self) -> int:
        """64 bits that name what its functions compute, in their order."""
        return fingerprint(tuple(function.fingerprint() for function in self.functions))

    def __str__(self) -> str:
        return module_text(self)

    def __repr__(self) -> str:
        return f"<Module {self.name}: {len(self.functions)} functions>"
