// What both languages need to run a block's threads on a CPU: one after the other
// where they never meet, else each as a thread of the system.
#pragma once
#include <cmath>
#include <cstring>
#ifdef MEETS
#include <barrier>
#include <thread>
#include <vector>
#endif

struct failed { int code; };
struct place { unsigned x, y, z; };

static thread_local place here, block_here;
static thread_local unsigned linear_here;
static place grid_here;
#ifdef MEETS
static std::barrier<> *meeting;
#endif

template <typename Body>
static int run_grid(const unsigned *grid, place size, Body body) {
    int status = 0;
    grid_here = {grid[0], grid[1], grid[2]};
    const unsigned threads = size.x * size.y * size.z;
    auto one = [&](place block, unsigned t) {
        block_here = block;
        linear_here = t;
        here = {t % size.x, t / size.x % size.y, t / size.x / size.y};
        try {
            body();
        } catch (failed stopped) {
            status = stopped.code;
#ifdef MEETS
            meeting->arrive_and_drop();
#endif
        }
    };
    for (unsigned z = 0; z < grid[2]; ++z)
        for (unsigned y = 0; y < grid[1]; ++y)
            for (unsigned x = 0; x < grid[0]; ++x) {
                const place block = {x, y, z};
#ifdef MEETS
                std::barrier<> barrier(threads);
                meeting = &barrier;
                std::vector<std::jthread> running;
                for (unsigned t = 0; t < threads; ++t)
                    running.emplace_back(one, block, t);
#else
                for (unsigned t = 0; t < threads; ++t) one(block, t);
#endif
            }
    return status;
}

template <typename T, typename Step>
static inline void combine(T *at, T x, Step step) {
    T before = __atomic_load_n(at, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(at, &before, step(before, x), true,
                                        __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
    }
}

template <typename To, typename From>
static inline To reinterpret(From from) {
    static_assert(sizeof(To) == sizeof(From));
    To to;
    std::memcpy(&to, &from, sizeof to);
    return to;
}
