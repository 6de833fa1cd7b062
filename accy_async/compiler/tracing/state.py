"""What is being traced: one function's builder, within the loops around it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from accy_async.compiler.semantic import FunctionBuilder, TensorType, Value
from accy_async.compiler.tracing.places import location, refusal
from accy_async.dtypes import DType

__all__ = ["Trace", "current", "is_tracing"]


class Trace:
    """A function, or a loop's body, while Python code writes it.

    A body may read the arrays of the traces around it: they are its captures.
    Which ones is known only after it has been traced once, so a body is traced
    twice: first with stand-ins, whose operations are thrown away.
    """

    def __init__(
        self,
        builder: FunctionBuilder,
        parent: Trace | None = None,
        captured: dict[tuple[Trace, Value], Value] | None = None,
    ) -> None:
        self.builder = builder
        self.parent = parent
        self.captures: dict[tuple[Trace, Value], None] = {}
        self._captured = captured
        self._stand_ins: dict[tuple[Trace, Value], Value] = {}
        builder.location = location

    def own(self, trace: Trace, value: Value) -> Value:
        """A value of this trace, or of one around it, as a value of this one."""
        if trace is self:
            return value
        around = self.parent
        while around is not None and around is not trace:
            around = around.parent
        if around is None:
            raise refusal(f"a traced array, {value.type}, is used outside its trace")
        key = (trace, value)
        self.captures[key] = None
        if self._captured is not None:
            if key not in self._captured:
                raise refusal("a loop's body reads other arrays when traced again")
            return self._captured[key]
        if key not in self._stand_ins:
            self._stand_ins[key] = self._stand_in(value.type)
        return self._stand_ins[key]

    def _stand_in(self, type: TensorType) -> Value:
        return self.builder.constant(type.dtype is DType.BOOL or 1, type)

    @contextmanager
    def active(self) -> Iterator[None]:
        """What is traced meanwhile is this."""
        token = _current.set(self)
        try:
            yield
        finally:
            _current.reset(token)


_current: ContextVar[Trace | None] = ContextVar("accy_async_trace", default=None)


def current() -> Trace:
    """The innermost trace.

    Raises:
        InvalidProgram: nothing is being traced.
    """
    trace = _current.get()
    if trace is None:
        raise refusal("nothing is being traced: call this within a traced function")
    return trace


def is_tracing() -> bool:
    """Whether something is being traced."""
    return _current.get() is not None
