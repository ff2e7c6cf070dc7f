// Matrix products whose operands lie in the caches: C[m, n] (+)= sum over k of A[m, k] B[k, n].
//
// A *unit* is what one lane multiplies at once: a Real, or (Half) a pair of bfloat16 whose products are
// summed in float32. A is read unit by unit and spread over the lanes, B in vectors of units. The
// strides of A and B, in units, say how they lie; k may be cut in `num_outer` pieces that lie apart.
#pragma once

#include "vec.h"
#if defined(__AVX512BF16__) && !defined(DOUBLE)
#define HAS_HALF
#include <immintrin.h>
#endif

struct Full {
    using Unit = Real;
    static constexpr int DEPTH = 1;  // numbers in a unit
    using Units = Vec;
    static inline Vec multiply_add(Unit a, Units b, Vec c) { return c + a * b; }
};

#ifdef HAS_HALF
struct Half {
    using Unit = uint32_t;
    static constexpr int DEPTH = 2;
    using Units = WordVec;
    static inline Vec multiply_add(Unit a, Units b, Vec c) {
        return (Vec)_mm512_dpbf16_ps((__m512)c, (__m512bh)_mm512_set1_epi32(a), (__m512bh)b);
    }
};
#endif

// Of bfloat16 pairs: `first` in the low half of each word. Rounds to nearest, ties to even; no NaN comes here.
inline WordVec bfloat16_pairs(Vec first, Vec second) {
    const auto rounded = [](Vec v) {
        const WordVec bits = (WordVec)v;
        return bits + 0x7fffu + ((bits >> 16) & 1u);
    };
    return (rounded(first) >> 16) | (rounded(second) & 0xffff0000u);
}

struct Depth {  // how k runs over A and B
    int num_outer, num_inner;
    ptrdiff_t a_outer, a_inner, b_outer, b_inner;
};

// HEIGHT x NUM_VECS vectors of C, kept in registers.
template <class P, int HEIGHT, int NUM_VECS>
inline __attribute__((always_inline)) void tile(const Depth& depth, const typename P::Unit* a, ptrdiff_t a_row, const typename P::Unit* b, Real* c,
                 ptrdiff_t c_row, bool add) {
    Vec sums[HEIGHT][NUM_VECS] = {};
    for (int outer = 0; outer < depth.num_outer; outer++) {
        const typename P::Unit* a_k = a + outer * depth.a_outer;
        const typename P::Unit* b_k = b + outer * depth.b_outer;
        for (int k = 0; k < depth.num_inner; k++) {
            typename P::Units units[NUM_VECS];
            for (int v = 0; v < NUM_VECS; v++) units[v] = load<typename P::Units>(b_k + v * LANES);
#pragma GCC unroll 12
            for (int i = 0; i < HEIGHT; i++) {
#pragma GCC unroll 2
                for (int v = 0; v < NUM_VECS; v++)
                    sums[i][v] = P::multiply_add(a_k[i * a_row], units[v], sums[i][v]);
            }
            a_k += depth.a_inner;
            b_k += depth.b_inner;
        }
    }
    for (int i = 0; i < HEIGHT; i++)
        for (int v = 0; v < NUM_VECS; v++) {
            Real* to = c + i * c_row + v * LANES;
            store(to, add ? load(to) + sums[i][v] : sums[i][v]);
        }
}

#ifdef __AVX512F__
constexpr int TALL = 12;  // 24 sums in 32 registers
#else
constexpr int TALL = 4;  // 8 sums in 16 registers
#endif
constexpr int SHORT = 4;  // rows are padded to a multiple of it

// Height of the next tile when `left` rows are left: a multiple of SHORT, at most TALL.
inline int tile_height(int left) { return left >= TALL ? TALL : left > 4 && TALL > 4 ? 8 : SHORT; }

template <class P, int NUM_VECS>
inline __attribute__((always_inline)) void tile_of(int height, const Depth& depth, const typename P::Unit* a, ptrdiff_t a_row,
                    const typename P::Unit* b, Real* c, ptrdiff_t c_row, bool add) {
    switch (height) {
        case TALL: return tile<P, TALL, NUM_VECS>(depth, a, a_row, b, c, c_row, add);
        case SHORT * 2: return tile<P, SHORT * 2, NUM_VECS>(depth, a, a_row, b, c, c_row, add);
#if defined(__AVX512F__)
        case SHORT: return tile<P, SHORT, NUM_VECS>(depth, a, a_row, b, c, c_row, add);
#endif
    }
}
