"""From what a user writes to code that a device runs.

`accy_async.compiler.form` is the kernel form, free of any device;
`accy_async.compiler.emit` makes machine code of it (and is the one room that
loads LLVM); `accy_async.compiler.nvrtc` compiles CUDA C++;
`accy_async.compiler.kernels` is the library of ready-made kernels.
"""

__all__: list[str] = []
