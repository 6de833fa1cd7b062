"""CUDA C++ that multiplies tiles four warps at a time, on sm_90.

See `tensor_cores`. The tensor cores read both operands from shared memory by
themselves, 64 rows of the one and up to 256 columns of the other, while the threads
copy what comes next. How a stage is laid out for `tensor_warps` is the layout with a
"128-byte swizzle" that they know.

Source: PTX ISA, 9.7.15 (wgmma: the matrices' descriptors, the fragments of m64nNk16);
CUTLASS, mma_sm90_desc.hpp (the strides of layouts along rows and columns).
"""

from __future__ import annotations

__all__ = ["GROUPS", "IF_GROUPS", "multiplication"]

IF_GROUPS = "#if defined(__CUDA_ARCH_FEAT_SM90_ALL)\n"


def multiplication(columns: int) -> str:
    """The function that has the tensor cores multiply 64 rows by so many columns."""
    count = columns // 2
    sums = ", ".join(f"%{i}" for i in range(count))
    outputs = ", ".join(f'"+f"(sums[{i}])' for i in range(count))
    left, right, yes, crossed, across = (f"%{count + i}" for i in range(5))

    def instruction(dtype: str) -> str:
        name = f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{dtype}.{dtype}"
        rest = f"{left}, {right}, p, 1, 1, {crossed}, {across};"
        return (
            'asm volatile("{ .reg .pred p; setp.ne.b32 p, ' + yes + ', 0; "\n'
            f'                     "{name} {{{sums}}}, {rest} }}"\n'
            f"                     : {outputs}\n"
            '                     : "l"(left), "l"(right), "r"(1),\n'
            '                       "n"(int(LEFT_ACROSS)), "n"(int(RIGHT_ACROSS)));'
        )

    text = _MULTIPLY.replace("@COUNT@", str(count))
    text = text.replace("@BFLOAT@", instruction("bf16"))
    return text.replace("@HALF@", instruction("f16"))


_MULTIPLY = r"""template <bool IS_BFLOAT, bool LEFT_ACROSS, bool RIGHT_ACROSS>
static __device__ inline void multiply_groups(float (&sums)[@COUNT@], uint64 left,
                                              uint64 right) {
    if (IS_BFLOAT) {
        @BFLOAT@
    } else {
        @HALF@
    }
}
"""

GROUPS = r"""
// What the tensor cores are told of a stage: where it begins, and how far it is from
// one strip of 64 elements, or one group of eight lines, to the next.
static __device__ inline uint64 described(uint address, uint strip) {
    const uint64 swizzled = 1ull << 62, lines = uint64(1024u >> 4) << 32;
    return swizzled | lines | uint64(strip >> 4) << 16 | uint64(address >> 4 & 0x3FFFu);
}

template <bool IS_BFLOAT, int M, int N, int DEEP, int WARPS_M, int WARPS_N, int STAGES,
          int DEPTH, class Left, class Right>
static __device__ inline void groups_product(float (&sums)[N / 2], const uint16 *left,
                                             uint64 row, const uint16 *right,
                                             uint64 column, uint thread) {
    constexpr int AHEAD = STAGES - 2, STEPS = (DEPTH + DEEP - 1) / DEEP;
    constexpr uint STAGE = Left::BYTES + Right::BYTES, STRIP = DEEP * 128;
    constexpr uint LEFT_NEXT = Left::ALONG ? 32u : 2048u;
    constexpr uint RIGHT_NEXT = Right::ALONG ? 32u : 2048u;
    const uint memory = uint(__cvta_generic_to_shared(tile_memory));
    const uint own = thread / 128u * STRIP;  // 64 rows
    Left rows(left, row, thread);
    Right columns(right, column, thread);

    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < AHEAD; ++stage) {
        if (stage < STEPS) {
            const uint to = memory + uint(stage) * STAGE;
            rows.copy(to, stage * DEEP);
            columns.copy(to + Left::BYTES, stage * DEEP);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    uint reading = memory, writing = memory + uint(AHEAD) * STAGE;
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
        await_copies<AHEAD - 1>();
        asm volatile("fence.proxy.async;" ::: "memory");
        __syncthreads();
        asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
        for (uint part = 0; part < 4u; ++part) {
            multiply_groups<IS_BFLOAT, !Left::ALONG, !Right::ALONG>(
                sums, described(reading + own + part * LEFT_NEXT, STRIP),
                described(reading + Left::BYTES + part * RIGHT_NEXT, STRIP));
        }
        asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
        const int following = step + AHEAD;
        if (following < STEPS) {
            rows.copy(writing, following * DEEP);
            columns.copy(writing + Left::BYTES, following * DEEP);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        reading += STAGE;
        if (reading == memory + uint(STAGES) * STAGE) reading = memory;
        writing += STAGE;
        if (writing == memory + uint(STAGES) * STAGE) writing = memory;
        // The step before is done; its stage is written after the next meeting.
        asm volatile("wgmma.wait_group.sync.aligned 1;" ::: "memory");
    }
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
}

#else

template <bool IS_BFLOAT, int M, int N, int DEEP, int WARPS_M, int WARPS_N, int STAGES,
          int DEPTH, class Left, class Right>
static __device__ inline void groups_product(float (&sums)[N / 2], const uint16 *left,
                                             uint64 row, const uint16 *right,
                                             uint64 column, uint thread) {
    warps_product<IS_BFLOAT, M, N, DEEP, WARPS_M, WARPS_N, STAGES, DEPTH, Left, Right>(
        sums, left, row, right, column, thread);
}

#endif
"""
