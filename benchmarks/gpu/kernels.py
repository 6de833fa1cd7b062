"""The kernels that the benchmarks launch, as PTX that any device of ours takes."""

from __future__ import annotations

from accy_async import FixedLaunch, KernelCallArtifact

__all__ = ["MOST_NS", "PTX", "entry"]

MOST_NS = 30_000_000_000
"""``spin`` and ``hold`` end by themselves after that long at most."""

PTX = f"""
.version 7.0
.target sm_80
.address_size 64

.visible .entry noop(.param .u64 out, .param .u64 source, .param .u32 n)
{{
    ret;
}}

.visible .entry spin(.param .u64 nanoseconds)
{{
    .reg .b64 %rd<5>; .reg .pred %p<2>;
    ld.param.u64 %rd1, [nanoseconds];
    min.u64 %rd1, %rd1, {MOST_NS};
    mov.u64 %rd2, %globaltimer;
look:
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p1, %rd4, %rd1;
    @%p1 bra look;
    ret;
}}

.visible .entry hold(.param .u64 words, .param .u64 nanoseconds)
{{
    .reg .b64 %rd<6>; .reg .b32 %r<2>; .reg .pred %p<3>;
    ld.param.u64 %rd1, [words];
    ld.param.u64 %rd5, [nanoseconds];
    min.u64 %rd5, %rd5, {MOST_NS};
    mov.u32 %r1, 1;
    st.volatile.global.u32 [%rd1+4], %r1;
    mov.u64 %rd2, %globaltimer;
look:
    ld.volatile.global.u32 %r1, [%rd1];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra through;
    mov.u64 %rd3, %globaltimer;
    sub.u64 %rd4, %rd3, %rd2;
    setp.lt.u64 %p2, %rd4, %rd5;
    @%p2 bra look;
through:
    mov.u32 %r1, 1;
    st.volatile.global.u32 [%rd1+8], %r1;
    ret;
}}

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
"""

_ARGUMENTS = {
    "noop": (2, 1),
    "spin": (0, 1),  # for so many nanoseconds, a u64
    # h[1] = 1, until h[0] is not 0 or so long, h[2] = 1: words of the host's memory at
    # a u64, and nanoseconds
    "hold": (0, 2),
    "count": (1, 0),
}


def entry(name: str) -> KernelCallArtifact:
    """One of the kernels, as an entry for pipelines and graphs: one block of 32."""
    buffers, scalars = _ARGUMENTS[name]
    threads = 32 if name == "noop" else 1
    return KernelCallArtifact(
        target=f"bench.{name}",
        version=1,
        format="cuda_ptx",
        entry_name=name,
        argument_count=buffers + scalars,
        payload=PTX,
        launch=FixedLaunch(grid=(1, 1, 1), threadgroup=(threads, 1, 1)),
        runtime_scalar_argument_count=scalars,
    )
