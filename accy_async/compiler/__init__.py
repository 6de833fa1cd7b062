"""From what a user writes to code that a device runs.

`accy_async.compiler.trace` and `fragment` make tensor programs of functions of
arrays; `accy_async.compiler.tensor` has what numpy lacks for them.
`accy_async.compiler.semantic` is what such a program is;
`accy_async.compiler.form` is the kernel form, free of any device;
`accy_async.compiler.emit` makes machine code of it (and is the one room that
loads LLVM); `accy_async.compiler.kernels` is the library of ready-made kernels.
"""

from accy_async.compiler.tracing import (
    Fragment,
    TracedArray,
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
    "trace",
    "trace_program",
]
