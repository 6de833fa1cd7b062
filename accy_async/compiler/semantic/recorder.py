"""Recording operations one by one: what all methods of the builder stand on."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from accy_async.compiler.semantic.elementwise import Constant
from accy_async.compiler.semantic.limits import ContextLimits
from accy_async.compiler.semantic.op import Op
from accy_async.compiler.semantic.program import Operation
from accy_async.compiler.semantic.types import TensorType, Value
from accy_async.dtypes import DType, ScalarArgument
from accy_async.errors import InvalidProgram, InvalidType

__all__ = ["Context", "Number", "Operand", "Recorder"]

Number = bool | int | float
Operand = Value | Number


class Context:
    """What the functions of one builder use up together."""

    def __init__(self, limits: ContextLimits) -> None:
        self.limits = limits
        self.operations = 0
        self.constant_bytes = 0
        self.depth = 0

    def admit(self, op: Op, operands: int, results: tuple[TensorType, ...]) -> None:
        """Count an operation in.

        Raises:
            OutOfMemory: it would exceed a limit; nothing is counted.
        """
        limits = self.limits
        limits.check_count("operations", self.operations + 1, "operations")
        limits.check_count("operands", operands, f"operands of {op.opcode}")
        for type in results:
            limits.check_type(type, op)
        constants = self.constant_bytes
        if isinstance(op, Constant):
            constants += len(op.data)
            limits.check_count("constant_bytes", constants, "bytes of constants")
        self.constant_bytes = constants
        self.operations += 1

    @contextmanager
    def deeper(self) -> Iterator[None]:
        """A loop within what is being built."""
        self.limits.check_count("loop_depth", self.depth + 1, "loops within loops")
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


class Recorder:
    """A function's values and operations so far."""

    location: Callable[[], str | None]
    """Asked for the source line of each operation."""

    def __init__(
        self, context: Context, name: str, parameters: Sequence[TensorType]
    ) -> None:
        context.limits.check_count(
            "parameters", len(parameters), f"parameters of {name}"
        )
        for type in parameters:
            if not isinstance(type, TensorType):
                raise InvalidType(f"parameters of {name}", type, "TensorType values")
            context.limits.check_type(type)
        self.context = context
        self.name = name
        self.parameters = tuple(Value(i, type) for i, type in enumerate(parameters))
        self.operations: list[Operation] = []
        self._values = list(self.parameters)
        self._ended = False

    def parameter(self, index: int) -> Value:
        """The parameter of that number, from 0.

        Raises:
            InvalidProgram: there is none.
        """
        if not 0 <= index < len(self.parameters):
            raise InvalidProgram(
                f"function {self.name} has {len(self.parameters)} parameters, "
                f"no number {index}"
            )
        return self.parameters[index]

    def own(self, value: object) -> Value:
        """The value, refused unless this function made it.

        Values are told apart by identity: an equal one of another function means
        something else there.
        """
        if not isinstance(value, Value):
            raise InvalidType(f"operand in {self.name}", value, "a Value, or a number")
        if value.index >= len(self._values) or self._values[value.index] is not value:
            raise InvalidProgram(
                f"{value!r} is no value of function {self.name}; a loop's body names "
                "what it reads in captures"
            )
        return value

    def record(self, op: Op, operands: Sequence[Value]) -> tuple[Value, ...]:
        """Record an operation; its results.

        Raises:
            InvalidProgram: the op is not defined on the operands, an operand is of
                another function, or the function is finished.
            OutOfMemory: a limit would be exceeded.
        """
        if self._ended:
            raise InvalidProgram(f"function {self.name} is finished")
        checked = tuple(self.own(value) for value in operands)
        types = op.result_types(tuple(value.type for value in checked))
        self.context.admit(op, len(checked), types)
        first = len(self._values)
        results = tuple(Value(first + i, type) for i, type in enumerate(types))
        self.operations.append(Operation(op, checked, results, self.location()))
        self._values.extend(results)
        return results

    def record_one(self, op: Op, *operands: Value) -> Value:
        """Record an operation of one result; that result."""
        (result,) = self.record(op, operands)
        return result

    def alike(self, opcode: str, *operands: Operand) -> tuple[Value, ...]:
        """Operands with Python numbers made constants of the first value's type."""
        for given in operands:
            if isinstance(given, Value):
                type = given.type
                break
        else:
            raise InvalidProgram("no operand is a value", operation=opcode)
        return tuple(
            given if isinstance(given, Value) else self.constant(given, type)
            for given in operands
        )

    def constant(self, value: object, type: TensorType | None = None) -> Value:
        """A constant: a number for all elements, or an array.

        Args:
            value: a Python or numpy number, or an array (or nested lists) that
                broadcasts to the type's shape.
            type: the constant's; None for the array's own.

        Raises:
            InvalidType, OutOfRange: the dtype does not hold the value.
            InvalidProgram: the shapes do not broadcast.
        """
        if type is not None and isinstance(value, (bool, int, float)):
            data = ScalarArgument.of(type.dtype, value).to_bytes()
            return self.record_one(Constant(type, data))
        array = np.asarray(value)
        if type is None:
            type = TensorType(DType.from_numpy(array.dtype), array.shape)
        self.context.limits.check_type(type)
        try:
            constant = Constant.of(array, type)
        except ValueError as error:
            if isinstance(error, InvalidType):
                raise
            if array.shape == type.shape:
                raise
            raise InvalidProgram(
                f"an array of shape {list(array.shape)} does not broadcast to {type}",
                operation="constant",
            ) from None
        return self.record_one(constant)

    def end(self) -> None:
        """Take no further operation.

        Raises:
            InvalidProgram: it was ended before.
        """
        if self._ended:
            raise InvalidProgram(f"function {self.name} is finished")
        self._ended = True
