"""The kernels that loops within device graphs need: is there another turn?

One more exchanges the contents of two buffers, where a loop ends with them swapped.

A conditional node of a graph runs its body while a value is not zero that only a
kernel can set, through ``cudaGraphSetConditional``. The driver itself has that
function for the modules that it loads, so that PTX which declares it needs nothing
else: no compiler and no device library (seen with driver 580).
"""

from __future__ import annotations

import ctypes
import threading
from typing import TYPE_CHECKING, Any

from accy_async.artifact.geometry import ceil_div

if TYPE_CHECKING:
    from accy_async.backends.cuda.context import CudaContext

__all__ = [
    "BEGIN",
    "BOUND",
    "CLEAR",
    "GATE",
    "LEAST_DRIVER",
    "LIMIT",
    "LOOK",
    "NEXT",
    "STOP",
    "STOPPED",
    "SWAP",
    "UNLIMITED",
    "Conditions",
]

LEAST_DRIVER = 12040
"""The driver from which on graphs have such loops, nested too: CUDA 12.4 Release
Notes."""

BEGIN, NEXT, LOOK = "accy_begin", "accy_next", "accy_look"
LIMIT, BOUND, GATE = "accy_limit", "accy_bound", "accy_gate"
STOP, CLEAR, SWAP = "accy_stop", "accy_clear", "accy_swap"

UNLIMITED = 2**64 - 2
"""The limit of a loop that only another loop's failure ends beside its condition."""

STOPPED = 2**64 - 1
"""What the counter of a loop with a condition says where a loop within it failed."""

_KERNELS = (BEGIN, NEXT, LOOK, LIMIT, BOUND, GATE, STOP, CLEAR, SWAP)

_SWAP_THREADS = 256
_SWAP_BYTES = 16
"""What a thread of an exchange moves at a time, where both buffers lie so."""

_MOST_SWAP_BLOCKS = 2048

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

// counter -= 1; loop = turn = counter != 0; end = counter == 0; turn and end only if
// there are
.visible .entry accy_next(
    .param .u64 counter, .param .u64 loop, .param .u64 turn, .param .u64 end)
{
    .reg .b64 %rd<6>; .reg .b32 %r<3>; .reg .pred %p<4>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [counter];
    ld.param.u64 %rd2, [loop];
    ld.param.u64 %rd3, [turn];
    ld.param.u64 %rd5, [end];
    ld.global.u64 %rd4, [%rd1];
    sub.u64 %rd4, %rd4, 1;
    st.global.u64 [%rd1], %rd4;
    setp.ne.u64 %p1, %rd4, 0;
    selp.u32 %r1, 1, 0, %p1;
    selp.u32 %r2, 0, 1, %p1;
    st.param.b64 [to], %rd2;
    st.param.b32 [what], %r1;
    call.uni cudaGraphSetConditional, (to, what);
    setp.eq.u64 %p2, %rd3, 0;
    @%p2 bra no_turn;
    st.param.b64 [to], %rd3;
    st.param.b32 [what], %r1;
    call.uni cudaGraphSetConditional, (to, what);
no_turn:
    setp.eq.u64 %p3, %rd5, 0;
    @%p3 bra done;
    st.param.b64 [to], %rd5;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
done:
    ret;
}

// where word != 0, counter = value
.visible .entry accy_stop(
    .param .u64 word, .param .u64 counter, .param .u64 value)
{
    .reg .b64 %rd<4>; .reg .b32 %r<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [counter];
    ld.param.u64 %rd3, [value];
    ld.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 st.global.u64 [%rd2], %rd3;
    ret;
}

// loop = turn = word != 0; end = word == 0; turn and end only if there are
.visible .entry accy_look(
    .param .u64 word, .param .u64 loop, .param .u64 turn, .param .u64 end)
{
    .reg .b64 %rd<5>; .reg .b32 %r<4>; .reg .pred %p<4>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [loop];
    ld.param.u64 %rd3, [turn];
    ld.param.u64 %rd4, [end];
    ld.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    selp.u32 %r2, 1, 0, %p1;
    selp.u32 %r3, 0, 1, %p1;
    st.param.b64 [to], %rd2;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
    setp.eq.u64 %p2, %rd3, 0;
    @%p2 bra no_turn;
    st.param.b64 [to], %rd3;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
no_turn:
    setp.eq.u64 %p3, %rd4, 0;
    @%p3 bra done;
    st.param.b64 [to], %rd4;
    st.param.b32 [what], %r3;
    call.uni cudaGraphSetConditional, (to, what);
done:
    ret;
}

// counter = limit; verdict = 0
.visible .entry accy_limit(
    .param .u64 counter, .param .u64 limit, .param .u64 verdict)
{
    .reg .b64 %rd<4>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [counter];
    ld.param.u64 %rd2, [limit];
    ld.param.u64 %rd3, [verdict];
    mov.u32 %r1, 0;
    st.global.u64 [%rd1], %rd2;
    st.global.u32 [%rd3], %r1;
    ret;
}

// As accy_look, but only while the counter is not 0, which counts down; where it is
// and the word is not 0, verdict = 1. There is no other turn either, nor a verdict,
// where all bits of the counter are set.
.visible .entry accy_bound(
    .param .u64 word, .param .u64 loop, .param .u64 turn, .param .u64 end,
    .param .u64 counter, .param .u64 verdict)
{
    .reg .b64 %rd<9>; .reg .b32 %r<5>; .reg .pred %p<7>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [loop];
    ld.param.u64 %rd3, [turn];
    ld.param.u64 %rd4, [end];
    ld.param.u64 %rd5, [counter];
    ld.param.u64 %rd6, [verdict];
    ld.global.u32 %r1, [%rd1];
    ld.global.u64 %rd7, [%rd5];
    setp.ne.u32 %p1, %r1, 0;
    add.u64 %rd8, %rd7, 1;
    setp.gt.u64 %p2, %rd8, 1;
    setp.eq.u64 %p3, %rd7, 0;
    and.pred %p4, %p1, %p2;         // another turn
    and.pred %p5, %p1, %p3;         // one too many
    sub.u64 %rd7, %rd7, 1;
    @%p4 st.global.u64 [%rd5], %rd7;
    mov.u32 %r4, 1;
    @%p5 st.global.u32 [%rd6], %r4;
    selp.u32 %r2, 1, 0, %p4;
    selp.u32 %r3, 0, 1, %p4;
    st.param.b64 [to], %rd2;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
    setp.eq.u64 %p6, %rd3, 0;
    @%p6 bra no_turn;
    st.param.b64 [to], %rd3;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
no_turn:
    setp.eq.u64 %p6, %rd4, 0;
    @%p6 bra done;
    st.param.b64 [to], %rd4;
    st.param.b32 [what], %r3;
    call.uni cudaGraphSetConditional, (to, what);
done:
    ret;
}

// first: branch = word == 0; else branch = 0 if word != 0
.visible .entry accy_gate(.param .u64 word, .param .u64 branch, .param .u64 first)
{
    .reg .b64 %rd<4>; .reg .b32 %r<3>; .reg .pred %p<4>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [word];
    ld.param.u64 %rd2, [branch];
    ld.param.u64 %rd3, [first];
    ld.global.u32 %r1, [%rd1];
    setp.eq.u32 %p1, %r1, 0;
    setp.eq.u64 %p2, %rd3, 0;
    selp.u32 %r2, 1, 0, %p1;
    and.pred %p3, %p1, %p2;
    @%p3 bra done;
    st.param.b64 [to], %rd2;
    st.param.b32 [what], %r2;
    call.uni cudaGraphSetConditional, (to, what);
done:
    ret;
}

// end = 0
.visible .entry accy_clear(.param .u64 end)
{
    .reg .b64 %rd<2>;
    .param .b64 to; .param .b32 what;
    ld.param.u64 %rd1, [end];
    st.param.b64 [to], %rd1;
    st.param.b32 [what], 0;
    call.uni cudaGraphSetConditional, (to, what);
    ret;
}

// Each thread moves 16 bytes at a time of what both have at such addresses, then
// single ones of the rest.
.visible .entry accy_swap(.param .u64 one, .param .u64 other, .param .u64 size)
{
    .reg .b64 %rd<12>; .reg .b32 %r<15>; .reg .b16 %h<3>; .reg .pred %p<4>;
    ld.param.u64 %rd1, [one];
    ld.param.u64 %rd2, [other];
    ld.param.u64 %rd3, [size];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mov.u32 %r4, %nctaid.x;
    mul.wide.u32 %rd4, %r1, %r2;
    cvt.u64.u32 %rd5, %r3;
    add.u64 %rd4, %rd4, %rd5;       // this thread
    mul.wide.u32 %rd5, %r4, %r2;    // all threads
    or.b64 %rd6, %rd1, %rd2;
    and.b64 %rd6, %rd6, 15;
    and.b64 %rd7, %rd3, -16;
    setp.ne.u64 %p1, %rd6, 0;
    selp.b64 %rd7, 0, %rd7, %p1;    // where the single bytes begin
    shl.b64 %rd8, %rd4, 4;
    shl.b64 %rd9, %rd5, 4;
wide:
    setp.ge.u64 %p2, %rd8, %rd7;
    @%p2 bra single;
    add.u64 %rd10, %rd1, %rd8;
    add.u64 %rd11, %rd2, %rd8;
    ld.global.v4.u32 {%r5, %r6, %r7, %r8}, [%rd10];
    ld.global.v4.u32 {%r9, %r10, %r11, %r12}, [%rd11];
    st.global.v4.u32 [%rd10], {%r9, %r10, %r11, %r12};
    st.global.v4.u32 [%rd11], {%r5, %r6, %r7, %r8};
    add.u64 %rd8, %rd8, %rd9;
    bra wide;
single:
    add.u64 %rd8, %rd7, %rd4;
next:
    setp.ge.u64 %p3, %rd8, %rd3;
    @%p3 bra done;
    add.u64 %rd10, %rd1, %rd8;
    add.u64 %rd11, %rd2, %rd8;
    ld.global.u8 %h1, [%rd10];
    ld.global.u8 %h2, [%rd11];
    st.global.u8 [%rd10], %h2;
    st.global.u8 [%rd11], %h1;
    add.u64 %rd8, %rd8, %rd5;
    bra next;
done:
    ret;
}
"""


class Conditions:
    """The module with these kernels; loaded when the first loop needs it.

    On any thread. ``module`` is the driver's handle, None until then.
    """

    def __init__(self, context: CudaContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._functions: dict[str, Any] = {}
        self.module: Any = None

    def parameters(self, kernel: str, *arguments: int) -> Any:  # noqa: ANN401
        """A kernel node's parameters, and what has to live until they are taken."""
        with self._lock:
            if self.module is None:
                self._load()
        node = self._context.driver.CUDA_KERNEL_NODE_PARAMS()
        node.func = self._functions[kernel]
        node.gridDimX = node.gridDimY = node.gridDimZ = 1
        node.blockDimX = node.blockDimY = node.blockDimZ = 1
        if kernel == SWAP:
            blocks = ceil_div(arguments[2], _SWAP_THREADS * _SWAP_BYTES)
            node.gridDimX = min(blocks, _MOST_SWAP_BLOCKS)
            node.blockDimX = _SWAP_THREADS
        count = len(arguments)
        values = (ctypes.c_uint64 * count)(*arguments)
        first = ctypes.addressof(values)
        pointers = (ctypes.c_void_p * count)(*[first + 8 * i for i in range(count)])
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
        module = check(answer, "cuModuleLoadDataEx")
        try:
            for name in _KERNELS:
                answer = driver.cuModuleGetFunction(module, name.encode())
                self._functions[name] = check(answer, "cuModuleGetFunction")
        except BaseException:
            driver.cuModuleUnload(module)
            raise
        self.module = module
