// Vectors as wide as the machine's registers, and what is done to them lane by lane.
//
// Numbers are float; the tests also compile everything for double (DOUBLE), to compare digits.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#ifdef DOUBLE
using Real = double;
#else
using Real = float;
#endif
using Int = std::conditional_t<sizeof(Real) == 4, int32_t, int64_t>;  // as wide as Real: for lane masks

#ifdef __AVX512F__
constexpr int VEC_BYTES = 64;
#else
constexpr int VEC_BYTES = 32;
#endif
constexpr int LANES = VEC_BYTES / sizeof(Real);
constexpr int WIDTH = 2 * LANES;  // positives side by side in a panel

using Vec = Real __attribute__((vector_size(VEC_BYTES)));
using IntVec = Int __attribute__((vector_size(VEC_BYTES)));
using WordVec = uint32_t __attribute__((vector_size(VEC_BYTES)));

template <class V>
struct Loose {  // the same vector anywhere in memory
    V value;
} __attribute__((packed, may_alias));

template <class V = Vec>
inline V load(const void* from) {
    return static_cast<const Loose<V>*>(from)->value;
}

template <class V>
inline void store(void* to, V value) {
    static_cast<Loose<V>*>(to)->value = value;
}

inline Vec fill(Real value) { return Vec{} + value; }
inline Vec highest(Vec a, Vec b) { return a > b ? a : b; }

inline Real lane_sum(Vec v) {
#pragma GCC unroll 4
    for (int step = LANES / 2; step; step /= 2) {
        IntVec turned;
        for (int lane = 0; lane < LANES; lane++) turned[lane] = (lane + step) % LANES;
        v += __builtin_shuffle(v, turned);
    }
    return v[0];
}

// e^x for x <= 0; 0 where x < -87. Relative error about 1e-7 in float (Cephes' polynomial).
inline Vec exp_negative(Vec x) {
#ifdef __FAST_MATH__
#error "-ffast-math would reorder the reduction below"
#endif
    if constexpr (sizeof(Real) == 8) {
        Vec result = {};
        for (int i = 0; i < LANES; i++) result[i] = std::exp(x[i]);
        return result;
    } else {
        const Vec magic = fill(Real(12582912.0));  // 1.5 * 2^23: adding it rounds to an integer
        const Vec whole = x * Real(1.44269504088896341);
        const Vec shifted = whole + magic;
        const Vec n = shifted - magic;
        Vec r = x - n * Real(0.693359375);
        r = r - n * Real(-2.12194440e-4);
        Vec p = fill(Real(1.9875691500e-4));
        p = p * r + Real(1.3981999507e-3);
        p = p * r + Real(8.3334519073e-3);
        p = p * r + Real(4.1665795894e-2);
        p = p * r + Real(1.6666665459e-1);
        p = p * r + Real(5.0000001201e-1);
        p = p * r * r + r + Real(1);
        const IntVec exponent = ((IntVec)shifted << 23) + (IntVec)p;  // p * 2^n
        return x < Real(-87) ? Vec{} : (Vec)exponent;
    }
}

// The LANES x LANES matrix in `rows`, transposed in place; lanes are as wide as Real.
inline void transpose(IntVec (&rows)[LANES]) {
#pragma GCC unroll 4
    for (int step = 1; step < LANES; step *= 2) {
        IntVec low, high;  // which lanes of a pair of rows make the first and the second of them
        for (int lane = 0; lane < LANES; lane++) {
            low[lane] = lane & step ? LANES + lane - step : lane;
            high[lane] = lane & step ? LANES + lane : lane + step;
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) {
            if (i & step) continue;
            const IntVec a = rows[i], b = rows[i + step];
            rows[i] = __builtin_shuffle(a, b, low);
            rows[i + step] = __builtin_shuffle(a, b, high);
        }
    }
}
