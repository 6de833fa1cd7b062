"""Kernels for tests on NVIDIA GPUs that the kernel form cannot say, as PTX.

`gate` and `spin` end by themselves after `PATIENCE_NS` at most, so that no test
leaves the device busy for ever.
"""

from __future__ import annotations

import functools

import numpy as np

from accy_async.artifact.entry import KernelCallArtifact
from accy_async.artifact.formats import ArtifactFormat
from accy_async.artifact.geometry import FixedLaunch
from accy_async.artifact.kernel import KernelArtifact
from accy_async.backends.cuda.driver import check, load_driver
from accy_async.compiler.emit import compile_ptx
from accy_async.dtypes import DType
from tests.harness.echo import echo_kernel

__all__ = ["NAMES", "PATIENCE_NS", "artifact", "echo_artifact", "entry", "host_words"]

PATIENCE_NS = 30_000_000_000

_ARGUMENTS = {
    # name: buffers, scalars
    "count": (1, 0),  # w[b] += 1
    "mix": (1, 1),  # w[0] = w[0] * 31 + tag, a u32
    "combine": (2, 0),  # w[0] = w[0] * 31 + r[0]
    "copy": (2, 0),  # w[b] = r[b]
    "empty": (0, 0),
    "spin": (0, 1),  # for so many nanoseconds, a u64
    "gate": (0, 1),  # h[1] = 1, then until h[0] is not 0, in host memory at a u64
    "stray": (0, 1),  # writes to the address, a u64: lost is the context
    "askew": (1, 0),  # reads beside where it may: so it is
    "trap": (0, 0),  # and so it is
}
NAMES = tuple(_ARGUMENTS)

_PTX = f"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry count(.param .u64 words)
{{
    .reg .b64 %rd<3>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, %ctaid.x;
    mad.wide.u32 %rd2, %r1, 4, %rd1;
    ld.global.u32 %r2, [%rd2];
    add.u32 %r2, %r2, 1;
    st.global.u32 [%rd2], %r2;
    ret;
}}

.visible .entry mix(.param .u64 words, .param .u32 tag)
{{
    .reg .b64 %rd<2>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [words];
    ld.param.u32 %r1, [tag];
    ld.global.u32 %r2, [%rd1];
    mad.lo.u32 %r2, %r2, 31, %r1;
    st.global.u32 [%rd1], %r2;
    ret;
}}

.visible .entry combine(.param .u64 words, .param .u64 others)
{{
    .reg .b64 %rd<3>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [words];
    ld.param.u64 %rd2, [others];
    ld.global.u32 %r1, [%rd2];
    ld.global.u32 %r2, [%rd1];
    mad.lo.u32 %r2, %r2, 31, %r1;
    st.global.u32 [%rd1], %r2;
    ret;
}}

.visible .entry copy(.param .u64 words, .param .u64 others)
{{
    .reg .b64 %rd<4>; .reg .b32 %r<3>;
    ld.param.u64 %rd1, [words];
    ld.param.u64 %rd2, [others];
    mov.u32 %r1, %ctaid.x;
    mad.wide.u32 %rd3, %r1, 4, %rd2;
    ld.global.u32 %r2, [%rd3];
    mad.wide.u32 %rd3, %r1, 4, %rd1;
    st.global.u32 [%rd3], %r2;
    ret;
}}

.visible .entry empty()
{{
    ret;
}}

.visible .entry spin(.param .u64 nanoseconds)
{{
    .reg .b64 %rd<5>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    min.u64 %rd1, %rd1, {PATIENCE_NS};
    mov.u64 %rd2, %globaltimer;
look:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra look;
    ret;
}}

.visible .entry gate(.param .u64 words)
{{
    .reg .b64 %rd<5>; .reg .b32 %r<2>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [words];
    mov.u32 %r1, 1;
    st.volatile.global.u32 [%rd1+4], %r1;
    mov.u64 %rd2, %globaltimer;
look:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra through;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, {PATIENCE_NS};
    @%p1 bra look;
through:
    ret;
}}

.visible .entry stray(.param .u64 address)
{{
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [address];
    mov.u32 %r1, 1;
    st.global.u32 [%rd1], %r1;
    ret;
}}

.visible .entry askew(.param .u64 words)
{{
    .reg .b64 %rd<3>;
    ld.param.u64 %rd1, [words];
    ld.global.u64 %rd2, [%rd1+4];
    st.global.u64 [%rd1], %rd2;
    ret;
}}

.visible .entry trap()
{{
    trap;
}}
"""


@functools.cache
def artifact(name: str) -> KernelArtifact:
    """One of `NAMES` as an artifact."""
    buffers, scalars = _ARGUMENTS[name]
    return KernelArtifact(
        kernel_name=name,
        format=ArtifactFormat.CUDA_PTX,
        argument_count=buffers + scalars,
        scalar_argument_count=scalars,
        payload=_PTX,
    )


def entry(name: str) -> KernelCallArtifact:
    """One of `NAMES` as an entry for graphs, launched as one thread."""
    buffers, scalars = _ARGUMENTS[name]
    return KernelCallArtifact(
        target=f"test.{name}",
        version=1,
        format=ArtifactFormat.CUDA_PTX,
        entry_name=name,
        argument_count=buffers + scalars,
        payload=_PTX,
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(1, 1, 1)),
        runtime_scalar_argument_count=scalars,
    )


@functools.cache
def echo_artifact(dtype: DType) -> KernelArtifact:
    """The kernel of `echo_kernel`."""
    kernel = echo_kernel(dtype)
    return KernelArtifact(
        kernel_name=kernel.name,
        format=ArtifactFormat.CUDA_PTX,
        argument_count=2,
        scalar_argument_count=1,
        payload=compile_ptx([kernel]),
    )


@functools.cache
def host_words() -> tuple[np.ndarray, int]:
    """1024 words of host memory, and where the device sees them.

    They live as long as the process, like the primary context, which is kept
    from here on: making it anew for each test would take most of their time.
    """
    driver = load_driver()
    device = check(driver, driver.cuDeviceGet(0), "cuDeviceGet")
    context = check(
        driver, driver.cuDevicePrimaryCtxRetain(device), "cuDevicePrimaryCtxRetain"
    )
    check(driver, driver.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    raw = np.zeros(4096 + 4096, np.uint8)
    start = -raw.ctypes.data % 4096
    words = raw[start : start + 4096].view(np.uint32)
    # Portable (1) and mapped (2).
    answer = driver.cuMemHostRegister(words.ctypes.data, 4096, 1 | 2)
    check(driver, answer, "cuMemHostRegister")
    answer = driver.cuMemHostGetDevicePointer(words.ctypes.data, 0)
    return words, int(check(driver, answer, "cuMemHostGetDevicePointer"))
