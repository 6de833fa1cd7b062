"""The kernels that decide whether a loop within a device graph goes on.

A conditional node of a graph runs its body while a value is not zero that only a
kernel can set, through ``cudaGraphSetConditional``. The driver itself has that
function for the modules that it loads, so that PTX which declares it needs nothing
else: no compiler and no device library (seen with driver 580).
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext

__all__ = ["BEGIN", "LEAST_DRIVER", "LOOK", "NEXT", "Conditions"]

LEAST_DRIVER = 12040
"""The driver from which on graphs have such loops, nested too: CUDA 12.4 Release
Notes."""

BEGIN, NEXT, LOOK = "accy_begin", "accy_next", "accy_look"

_PTX = b"""
.version 8.4
.target sm_70
.address_size 64

.extern .func cudaGraphSetConditional(.param .b64 handle, .param .b32 value);

// counter = count; loop = count != 0
.visible .entry accy_begin(.param .u64 counter, .param .u64 count, .param .u64 loop)
{
    .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .pred %p<2>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [counter];
    ld.param.u64 %rd2, [count];
    ld.param.u64 %rd3, [loop];
    st.global.u64 [%rd1], %rd2;
    setp.ne.u64 %p1, %rd2, 0;
    selp.u32 %r1, 1, 0, %p1;
    st.param.b64 [to], %rd3;
    st.param.b32 [what], %r1;
    call.uni cudaGraphSetConditional, (to, what);
    ret;
}

// counter -= 1; loop = turn = counter != 0, turn only if there is one
.visible .entry accy_next(.param .u64 counter, .param .u64 loop, .param .u64 turn)
{
    .reg .b64 %rd<5>; .reg .b32 %r<2>; .reg .pred %p<3>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [counter];
    ld.param.u64 %rd2, [loop];
    ld.param.u64 %rd3, [turn];
    ld.global.u64 %rd4, [%rd1];
    sub.u64 %rd4, %rd4, 1;
    st.global.u64 [%rd1], %rd4;
    setp.ne.u64 %p1, %rd4, 0;
    selp.u32 %r1, 1, 0, %p1;
    st.param.b64 [to], %rd2;
    st.param.b32 [what], %r1;
    call.uni cudaGraphSetConditional, (to, what);
    setp.eq.u64 %p2, %rd3, 0;
    @%p2 bra done;
    st.param.b64 [to], %rd3;
    st.param.b32 [what], %r1;
    call.uni cudaGraphSetConditional, (to, what);
done:
    ret;
}

// loop = turn = word != 0, turn only if there is one
.visible .entry accy_look(.param .u64 word, .param .u64 loop, .param .u64 turn)
{
    .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p<3>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [loop];
    ld.param.u64 %rd3, [turn];
    ld.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    selp.u32 %r2, 1, 0, %p1;
    st.param.b64 [to], %rd2;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
    setp.eq.u64 %p2, %rd3, 0;
    @%p2 bra done;
    st.param.b64 [to], %rd3;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
done:
    ret;
}
"""


class Conditions:
    """The module with these kernels; loaded when the first loop needs it.

    ``module`` is the driver's handle, None until then.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._functions: dict[str, Any] = {}
        self.module: Any = None

    def parameters(self, kernel: str, arguments: tuple[int, int, int]) -> Any:  # noqa: ANN401
        """A kernel node's parameters, and what has to live until they are taken."""
        if self.module is None:
            self._load()
        node = self._context.driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = self._functions[kernel]
        node.gridDimX = node.gridDimY = node.gridDimZ = 1
        node.blockDimX = node.blockDimY = node.blockDimZ = 1
        values = (ctypes.c_uint64 * 3)(*arguments)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * 3)(first, first + 8, first + 16)
        node.kernelParams = ctypes.addressof(pointers)
        return node, (values, pointers)

    def unload(self) -> None:
        """Unload the module; nothing may be at work on the device."""
        module, self.module = self.module, None
        if module is not None:
            answer = self._context.driver.cuModuleUnload(module)
            self._context.check(answer, "cuModuleUnload")

    def _load(self) -> None:
        driver, check = self._context.driver, self._context.check
        answer = driver.cuModuleLoadDataEx(_PTX + b"\0", 0, [], [])
        self.module = check(answer, "cuModuleLoadDataEx")
        for name in (BEGIN, NEXT, LOOK):
            answer = driver.cuModuleGetFunction(self.module, name.encode())
            self._functions[name] = check(answer, "cuModuleGetFunction")
