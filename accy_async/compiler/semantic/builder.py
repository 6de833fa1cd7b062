"""Writing tensor programs.

::

    builder = Builder("mlp")
    f = builder.begin_function(
        "mlp", [builder.tensor("f32", (8, 4)), builder.tensor("f32", (4, 2))]
    )
    x, w = f.parameters
    f.return_([f.tanh(f.dot_general(x, w, [1], [0]))])
    f.finish()
    module = builder.finish()

Every call checks dtypes and shapes and raises `InvalidProgram` there, with
nothing added. Operands have one shape and one dtype: nothing is broadcast or
converted unasked. Only a Python number beside a value becomes a constant of that
value's type, if its dtype holds it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence

from accy_async.compiler.semantic.canonicalization import canonical
from accy_async.compiler.semantic.indexed import IndexingMethods
from accy_async.compiler.semantic.limits import ContextLimits
from accy_async.compiler.semantic.loops import Loop
from accy_async.compiler.semantic.pointwise import ElementwiseMethods
from accy_async.compiler.semantic.program import (
    IDENTIFIER,
    NAME_EXPECTED,
    Function,
    Module,
)
from accy_async.compiler.semantic.recorder import Context
from accy_async.compiler.semantic.reducing import ReducingMethods
from accy_async.compiler.semantic.reshaping import ShapingMethods
from accy_async.compiler.semantic.types import TensorType, Value
from accy_async.dtypes import DType
from accy_async.errors import InvalidProgram, InvalidValue
from accy_async.values import listed

__all__ = ["Builder", "FunctionBuilder"]


class Builder:
    """Builds one module of functions, within limits.

    Args:
        name: the module's: letters, digits, "_", "." and "-".
        limits: how large the program may become.
    """

    def __init__(
        self, name: str = "module", limits: ContextLimits = ContextLimits.STANDARD
    ) -> None:
        if re.fullmatch(IDENTIFIER, str(name)) is None:
            raise InvalidValue("Builder.name", name, NAME_EXPECTED)
        self.name = name
        self.limits = limits
        self._context = Context(limits)
        self._functions: list[Function] = []
        self._open: FunctionBuilder | None = None
        self._finished = False

    def tensor(self, dtype: DType | str, shape: Iterable[int] = ()) -> TensorType:
        """A tensor type within the limits.

        Raises:
            InvalidType, InvalidValue: these are no dtype or no extents.
            OutOfMemory: too many axes or bytes.
        """
        type = TensorType(dtype, shape)
        self.limits.check_type(type)
        return type

    def begin_function(
        self,
        name: str,
        parameters: Sequence[TensorType],
        results: Sequence[TensorType] | None = None,
        *,
        parameter_names: Sequence[str] = (),
    ) -> FunctionBuilder:
        """Begin a function; the one begun before must be finished.

        Args:
            name: the function's, in text and reports.
            parameters: their types.
            results: the types it shall give, checked by `return_`; None for any.
            parameter_names: for text and calls by name.

        Raises:
            InvalidProgram: another function is open, or the builder is finished.
            OutOfMemory: too many functions or parameters.
        """
        if self._finished:
            raise InvalidProgram(f"module {self.name} is finished")
        if self._open is not None:
            raise InvalidProgram(f"function {self._open.name} is not finished")
        self.limits.check_count("functions", len(self._functions) + 1, "functions")
        self._open = FunctionBuilder(
            self._context, name, parameters, results, parameter_names, self._close
        )
        return self._open

    def finish(self) -> Module:
        """The module of the functions finished so far; the builder ends.

        Raises:
            InvalidProgram: a function is open, there is none, or it was finished.
        """
        if self._finished:
            raise InvalidProgram(f"module {self.name} is finished")
        if self._open is not None:
            raise InvalidProgram(f"function {self._open.name} is not finished")
        module = Module(self.name, tuple(self._functions))
        self._finished = True
        return module

    def _close(self, function: Function) -> None:
        self._functions.append(function)
        self._open = None


class FunctionBuilder(
    ElementwiseMethods, ShapingMethods, ReducingMethods, IndexingMethods
):
    """Builds one function; made by `Builder.begin_function` and `loop`."""

    def __init__(
        self,
        context: Context,
        name: str,
        parameters: Sequence[TensorType],
        results: Sequence[TensorType] | None,
        parameter_names: Sequence[str],
        close: Callable[[Function], None],
    ) -> None:
        super().__init__(context, name, parameters)
        self._parameter_names = tuple(parameter_names)
        # Its names are refused here, not when all the rest has been written.
        Function(name, self.parameters, (), (), self._parameter_names)
        self._expected = None if results is None else tuple(results)
        self._returned: tuple[Value, ...] | None = None
        self._close = close
        self.location: Callable[[], str | None] = lambda: None

    def return_(self, values: Sequence[Value]) -> None:
        """Say what the function gives; once, as its last statement.

        Raises:
            InvalidProgram: said before, or the types are not those announced.
            InvalidType: they are no list of values.
        """
        if self._returned is not None:
            raise InvalidProgram(f"function {self.name} has returned already")
        given = listed("return_.values", values, "a list of values")
        returned = tuple(self.own(value) for value in given)
        types = tuple(value.type for value in returned)
        if self._expected is not None and types != self._expected:
            raise InvalidProgram(
                f"function {self.name} returns ({', '.join(map(str, types))}), "
                f"announced were ({', '.join(map(str, self._expected))})"
            )
        self._returned = returned

    def finish(self) -> Function:
        """The function in canonical form, added to the module.

        Raises:
            InvalidProgram: it has not returned, or was finished before.
        """
        if self._returned is None:
            raise InvalidProgram(f"function {self.name} does not return: call return_")
        self.end()
        function = canonical(
            Function(
                self.name,
                self.parameters,
                tuple(self.operations),
                self._returned,
                self._parameter_names,
            )
        )
        self._close(function)
        return function

    def loop(
        self,
        count: int,
        carries: Sequence[Value],
        body: Callable[..., Sequence[Value]],
        *,
        captures: Sequence[Value] = (),
        conditional: bool = False,
    ) -> tuple[Value, ...]:
        """Run ``body`` ``count`` times on the carries; what they are at last.

        Args:
            count: how often.
            carries: their first values.
            body: called once, with a builder, then a value for each carry and
                each capture; gives the next carries, and for a conditional loop
                a ``bool[]`` that says whether to go on.
            captures: values of this function that the body reads.
            conditional: whether the loop may end early.

        Raises:
            InvalidProgram: the body gives others than the carries' types.
            InvalidType: it gives no list of values.
            OutOfMemory: loops too deep within one another.
        """
        operands = (*carries, *captures)
        types = [self.own(value).type for value in operands]
        built: list[Function] = []
        with self.context.deeper():
            inner = FunctionBuilder(
                self.context, f"{self.name}.body", types, None, (), built.append
            )
            inner.location = self.location
            inner.return_(body(inner, *inner.parameters))
            inner.finish()
        loop = Loop(count, len(carries), built[0], conditional)
        return self.record(loop, operands)
