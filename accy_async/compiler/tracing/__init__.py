"""Tracing: tensor programs written as functions of numpy-like arrays."""

# Each of these teaches the traced array what numpy knows.
from accy_async.compiler.tracing import (
    contractions as contractions,
)
from accy_async.compiler.tracing import (
    items as items,
)
from accy_async.compiler.tracing import (
    layout as layout,
)
from accy_async.compiler.tracing import (
    reductions as reductions,
)
from accy_async.compiler.tracing import (
    ufuncs as ufuncs,
)
from accy_async.compiler.tracing.array import TracedArray
from accy_async.compiler.tracing.loops import iterate, repeat
from accy_async.compiler.tracing.program import (
    Fragment,
    TracedProgram,
    fragment,
    trace,
    trace_program,
)

__all__ = [
    "Fragment",
    "TracedArray",
    "TracedProgram",
    "fragment",
    "iterate",
    "repeat",
    "trace",
    "trace_program",
]
