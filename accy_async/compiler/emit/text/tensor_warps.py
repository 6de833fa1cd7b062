"""CUDA C++ that copies tiles into shared memory, and multiplies them warp by warp.

See `tensor_cores`.

Source: PTX ISA, 9.7.9.25.3 (cp.async), 9.7.14.5 (mma, ldmatrix; the fragments of
m16n8k16).
"""

from __future__ import annotations

__all__ = ["WARPS"]

WARPS = r"""extern __shared__ __align__(1024) uint16 tile_memory[];

template <int BYTES>
static __device__ inline void copy_async(uint to, const void *from, int size) {
    if (BYTES == 16) {
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     :: "r"(to), "l"(from), "r"(size) : "memory");
    } else {
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     :: "r"(to), "l"(from), "n"(BYTES), "r"(size) : "memory");
    }
}

template <int LINES, int LENGTH, int THREADS, int EXTENT, int DEPTH, uint64 PITCH,
          bool ALONG_DEPTH, int VECTOR>
struct TileSource {
    static constexpr int BYTES = LINES * LENGTH * 2;
    static constexpr int PIECES = LENGTH / 8;
    static constexpr int APART = THREADS / PIECES;
    static constexpr int TURNS = LINES / APART > 0 ? LINES / APART : 1;
    static constexpr int OWN = ALONG_DEPTH ? LINES : LENGTH;
    static constexpr int DEEP = ALONG_DEPTH ? LENGTH : LINES;
    static constexpr bool ALONG = ALONG_DEPTH;
    static constexpr bool FITS = EXTENT % OWN == 0 && DEPTH % DEEP == 0;

    const uint16 *base;
    const uint16 *from;
    uint line, piece, first;

    __device__ inline TileSource(const uint16 *begin, uint64 place, uint thread)
        : base(begin), line(thread / PIECES), piece(thread % PIECES),
          first(uint(place)) {
        const uint64 at = ALONG_DEPTH ? (place + line) * PITCH + piece * 8u
                                      : line * PITCH + place + piece * 8u;
        from = begin + at;
    }

    // Where a piece of a line is in a stage, in bytes.
    static __device__ inline uint offset(uint line, uint piece) {
        if (LENGTH < 64) return line * 64u + ((piece ^ (line >> 1 & 3u)) << 4);
        const uint strip = piece / 8u * uint(LINES * 128);
        return strip + line * 128u + ((piece % 8u ^ (line & 7u)) << 4);
    }

    // Copy the tile that begins at a depth; called once for each, in order.
    __device__ inline void copy(uint to, int begin) {
#pragma unroll
        for (int turn = 0; turn < TURNS; ++turn) {
            const uint own = line + uint(turn * APART);
            if (LINES < APART && own >= uint(LINES)) break;
            const uint16 *at = from + uint64(turn * APART) * PITCH;
            const int major = ALONG_DEPTH ? int(first + own) : begin + int(own);
            const int minor = int(piece * 8u) + (ALONG_DEPTH ? begin : int(first));
            const int majors = ALONG_DEPTH ? EXTENT : DEPTH;
            const int minors = ALONG_DEPTH ? DEPTH : EXTENT;
            const int left = FITS ? 8 : major < majors ? minors - minor : 0;
            copy_piece(to + offset(own, piece), at, left);
        }
        from += ALONG_DEPTH ? uint64(DEEP) : uint64(DEEP) * PITCH;
    }

    // Copy eight elements, of which so many are there.
    __device__ inline void copy_piece(uint to, const uint16 *at, int left) {
        if (VECTOR == 1) {
            uint words[4];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint low = 2 * i < left ? uint(at[2 * i]) : 0u;
                const uint high = 2 * i + 1 < left ? uint(at[2 * i + 1]) : 0u;
                words[i] = low | high << 16;
            }
            asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};"
                         :: "r"(to), "r"(words[0]), "r"(words[1]), "r"(words[2]),
                            "r"(words[3]) : "memory");
        } else {
            constexpr int WIDE = VECTOR > 1 ? VECTOR : 2;
#pragma unroll
            for (int i = 0; i < 8; i += WIDE) {
                int size = FITS ? WIDE : left - i;
                size = size < 0 ? 0 : size > WIDE ? WIDE : size;
                const uint16 *from_there = size > 0 ? at + i : base;
                copy_async<WIDE * 2>(to + uint(i * 2), from_there, size * 2);
            }
        }
    }
};

template <bool TRANSPOSED>
static __device__ inline void load_matrices(uint (&to)[4], uint from) {
    if (TRANSPOSED) {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 "
                     "{%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from) : "memory");
    } else {
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 "
                     "{%0, %1, %2, %3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                     : "r"(from) : "memory");
    }
}

template <bool IS_BFLOAT>
static __device__ inline void multiply_matrices(float *sums, const uint (&left)[4],
                                                uint right_low, uint right_high) {
    if (IS_BFLOAT) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]),
                       "r"(right_low), "r"(right_high));
    } else {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
                     "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                     : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
                     : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]),
                       "r"(right_low), "r"(right_high));
    }
}

// What a warp multiplies at a time: its rows and columns, 16 deep.
template <int ROWS, int COLUMNS, class Left, class Right>
struct TilePart {
    uint left[ROWS / 16][4];
    uint right[COLUMNS / 16][4];

    __device__ inline void load(uint tile, uint row, uint column, uint lane,
                                uint depth) {
        const uint far = lane / 16u, middle = lane / 8u % 2u, near = lane % 8u;
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
            const uint at = row + uint(i * 16);
            const uint line = near + 8u * (Left::ALONG ? middle : far);
            const uint place =
                Left::ALONG ? Left::offset(at + line, depth / 8u + far)
                            : Left::offset(depth + line, at / 8u + middle);
            load_matrices<!Left::ALONG>(left[i], tile + place);
        }
#pragma unroll
        for (int j = 0; j < COLUMNS / 16; ++j) {
            const uint at = column + uint(j * 16);
            const uint line = near + 8u * (Right::ALONG ? far : middle);
            const uint place =
                Right::ALONG ? Right::offset(at + line, depth / 8u + middle)
                             : Right::offset(depth + line, at / 8u + far);
            load_matrices<!Right::ALONG>(right[j], tile + Left::BYTES + place);
        }
    }

    template <bool IS_BFLOAT>
    __device__ inline void multiply(float *sums) const {
#pragma unroll
        for (int i = 0; i < ROWS / 16; ++i) {
#pragma unroll
            for (int j = 0; j < COLUMNS / 8; ++j) {
                const uint *pair = right[j / 2] + j % 2 * 2;
                float *own = sums + (i * (COLUMNS / 8) + j) * 4;
                multiply_matrices<IS_BFLOAT>(own, left[i], pair[0], pair[1]);
            }
        }
    }
};

template <int PENDING>
static __device__ inline void await_copies() {
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
}

template <bool IS_BFLOAT, int M, int N, int DEEP, int WARPS_M, int WARPS_N, int STAGES,
          int DEPTH, class Left, class Right>
static __device__ inline void warps_product(
    float (&sums)[M * N / (32 * WARPS_M * WARPS_N)], const uint16 *left, uint64 row,
    const uint16 *right, uint64 column, uint thread) {
    constexpr int ROWS = M / WARPS_M, COLUMNS = N / WARPS_N;
    constexpr int STEPS = (DEPTH + DEEP - 1) / DEEP, PARTS = DEEP / 16;
    constexpr uint STAGE = Left::BYTES + Right::BYTES;
    const uint memory = uint(__cvta_generic_to_shared(tile_memory));
    const uint lane = thread % 32u, warp = thread / 32u;
    const uint own_row = warp / uint(WARPS_N) * uint(ROWS);
    const uint own_column = warp % uint(WARPS_N) * uint(COLUMNS);
    Left rows(left, row, thread);
    Right columns(right, column, thread);
    TilePart<ROWS, COLUMNS, Left, Right> parts[2];

    __syncthreads();
#pragma unroll
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < STEPS) {
            const uint to = memory + uint(stage) * STAGE;
            rows.copy(to, stage * DEEP);
            columns.copy(to + Left::BYTES, stage * DEEP);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    uint reading = memory, writing = memory + uint(STAGES - 1) * STAGE;
    await_copies<STAGES - 2>();
    __syncthreads();
    parts[0].load(reading, own_row, own_column, lane, 0);
#pragma unroll 1
    for (int step = 0; step < STEPS; ++step) {
#pragma unroll
        for (int part = 0; part < PARTS; ++part) {
            if (part == PARTS - 1) {
                reading += STAGE;
                if (reading == memory + uint(STAGES) * STAGE) reading = memory;
                await_copies<STAGES - 2>();
                __syncthreads();
            }
            parts[(part + 1) % 2].load(reading, own_row, own_column, lane,
                                       uint((part + 1) % PARTS * 16));
            if (part == 0) {
                const int following = step + STAGES - 1;
                if (following < STEPS) {
                    rows.copy(writing, following * DEEP);
                    columns.copy(writing + Left::BYTES, following * DEEP);
                }
                asm volatile("cp.async.commit_group;" ::: "memory");
                writing += STAGE;
                if (writing == memory + uint(STAGES) * STAGE) writing = memory;
            }
            parts[part % 2].template multiply<IS_BFLOAT>(sums);
        }
    }
}
"""
