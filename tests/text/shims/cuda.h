// As much of CUDA C++ as the printed kernels use, for a CPU's compiler.
#pragma once
#include "threads.h"

#define __global__
#define __device__
#define __shared__ static
#define __align__(bytes) __attribute__((aligned(bytes)))
#define __launch_bounds__(threads)
#define threadIdx here
#define blockIdx block_here
#define gridDim grid_here
#define __syncthreads() meeting->arrive_and_wait()

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fsqrt_rn(float a) { return std::sqrt(a); }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dsub_rn(double a, double b) { return a - b; }
static inline double __dmul_rn(double a, double b) { return a * b; }
static inline double __ddiv_rn(double a, double b) { return a / b; }
static inline double __dsqrt_rn(double a) { return std::sqrt(a); }
static inline unsigned __float_as_uint(float a) { return reinterpret<unsigned>(a); }
static inline float __uint_as_float(unsigned a) { return reinterpret<float>(a); }
static inline long long __double_as_longlong(double a) {
    return reinterpret<long long>(a);
}
static inline double __longlong_as_double(long long a) {
    return reinterpret<double>(a);
}

#define ATOMIC(name, step)                                           \
    template <typename T>                                            \
    static inline void name(T *at, T x) {                            \
        combine(at, x, [](T a, T b) { return step; });               \
    }
ATOMIC(atomicAdd, T(unsigned(a) + unsigned(b)))
ATOMIC(atomicMin, b < a ? b : a)
ATOMIC(atomicMax, a < b ? b : a)
ATOMIC(atomicAnd, a & b)
ATOMIC(atomicOr, a | b)
ATOMIC(atomicXor, a ^ b)
#undef ATOMIC

// PTX's min and max know that -0 < +0.
template <typename T>
static inline T lesser(T a, T b) {
    return a == b ? (std::signbit(a) ? a : b) : std::fmin(a, b);
}
template <typename T>
static inline T greater(T a, T b) {
    return a == b ? (std::signbit(a) ? b : a) : std::fmax(a, b);
}
#define fminf lesser<float>
#define fmaxf greater<float>
#define fmin lesser<double>
#define fmax greater<double>

static void __assertfail(
    const void *, const void *, unsigned code, const void *, decltype(sizeof(0))) {
    throw failed{static_cast<int>(code)};
}
