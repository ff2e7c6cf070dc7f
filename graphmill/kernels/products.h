// Matrix products whose operands lie in the caches: C[m, n] (+)= sum over k of A[m, k] B[k, n].
//
// A *unit* is what one lane multiplies at once: a Real, or (Half) a pair of bfloat16 whose products are
// summed in float32. A is read unit by unit and spread over the lanes, B in vectors of units. The
// strides of A and B, in units, say how they lie; k may be cut in `num_outer` pieces that lie apart.
// Where the processor has tiles (AMX), Half takes them: then the units of a row of A lie side by side.
#pragma once

#include "vec.h"
#if defined(__AVX512BF16__) && !defined(DOUBLE)
#define HAS_HALF
#include <immintrin.h>
#endif
#if defined(HAS_HALF) && defined(__AMX_BF16__)
#define HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_TILES 0
#endif

struct Full {
    using Unit = Real;
    static constexpr int DEPTH = 1;  // numbers in a unit
    static constexpr bool TILED = false;
    using Units = Vec;
    static inline Vec multiply_add(Unit a, Units b, Vec c) { return c + a * b; }
};

#ifdef HAS_HALF
struct Half {
    using Unit = uint32_t;
    static constexpr int DEPTH = 2;
    static constexpr bool TILED = HAS_TILES;
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

#if HAS_TILES
constexpr int SIDE = 16;  // of a tile: rows, units in a row of A or B, sums in a row of C

// The tiles of this thread for a block; then they are again as another library wants them.
class TileRegisters {
  public:
    TileRegisters() {
        _tile_storeconfig(&before_);
        _tile_loadconfig(&OURS);
    }
    ~TileRegisters() { _tile_loadconfig(&before_); }

    // Whether Linux lets this process use tiles, from now on.
    static bool are_allowed() {
        constexpr int REQUEST = 0x1023, TILE_DATA = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
        return syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    }

  private:
    struct alignas(64) Configuration {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];  // of a row
        uint8_t rows[16];
    } before_;
    // Static: GCC takes ldtilecfg to read eight bytes, and leaves out stores to the rest of a local one.
    static constexpr Configuration OURS = {
        1, 0, {}, {64, 64, 64, 64, 64, 64, 64, 64}, {SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE, SIDE}};
};

// Two by NUM_VECS tiles of C; k in whole tiles.
template <int NUM_VECS>
inline void tiles(const Depth& depth, const uint32_t* a, ptrdiff_t a_row, const uint32_t* b, Real* c, ptrdiff_t c_row,
                  bool add) {
    const size_t a_bytes = a_row * sizeof(*a), b_bytes = depth.b_inner * sizeof(*b), c_bytes = c_row * sizeof(*c);
    Real* second = c + SIDE * c_row;
    if (add) {
        _tile_loadd(0, c, c_bytes);
        _tile_loadd(1, second, c_bytes);
        if constexpr (NUM_VECS == 2) {
            _tile_loadd(2, c + SIDE, c_bytes);
            _tile_loadd(3, second + SIDE, c_bytes);
        }
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (int outer = 0; outer < depth.num_outer; outer++)
        for (int k = 0; k < depth.num_inner; k += SIDE) {
            const uint32_t* a_k = a + outer * depth.a_outer + k;
            const uint32_t* b_k = b + outer * depth.b_outer + k * depth.b_inner;
            _tile_loadd(4, a_k, a_bytes);
            _tile_loadd(5, a_k + SIDE * a_row, a_bytes);
            _tile_loadd(6, b_k, b_bytes);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 5, 6);
            if constexpr (NUM_VECS == 2) {
                _tile_loadd(7, b_k + SIDE, b_bytes);
                _tile_dpbf16ps(2, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    _tile_stored(0, c, c_bytes);
    _tile_stored(1, second, c_bytes);
    if constexpr (NUM_VECS == 2) {
        _tile_stored(2, c + SIDE, c_bytes);
        _tile_stored(3, second + SIDE, c_bytes);
    }
}
#endif

constexpr int MOST_ROWS = 32;
template <class P>
constexpr int ROWS = P::TILED ? MOST_ROWS : SHORT;  // numbers of rows of A are padded to a multiple of it

// Height of the next tile when `left` rows are left.
template <class P>
inline int tile_height(int left) {
    return P::TILED ? ROWS<P> : left >= TALL ? TALL : left > 4 && TALL > 4 ? 8 : SHORT;
}

template <class P, int NUM_VECS>
inline __attribute__((always_inline)) void tile_of(int height, const Depth& depth, const typename P::Unit* a, ptrdiff_t a_row,
                    const typename P::Unit* b, Real* c, ptrdiff_t c_row, bool add) {
#if HAS_TILES
    if constexpr (P::TILED) return tiles<NUM_VECS>(depth, a, a_row, b, c, c_row, add);
#endif
    switch (height) {
        case TALL: return tile<P, TALL, NUM_VECS>(depth, a, a_row, b, c, c_row, add);
        case SHORT * 2: return tile<P, SHORT * 2, NUM_VECS>(depth, a, a_row, b, c, c_row, add);
#if defined(__AVX512F__)
        case SHORT: return tile<P, SHORT, NUM_VECS>(depth, a, a_row, b, c, c_row, add);
#endif
    }
}
