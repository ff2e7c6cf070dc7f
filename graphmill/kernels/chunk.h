// Queries against the negatives of a chunk: all products and losses, for one strip of positives after another.
//
//     scores [M, P] = negatives [M, D] . queries^T       -> losses, gradients G [M, P]
//     pull of the queries [P, D] = G^T . negatives       pull of the negatives [M, D] += G . queries
//
// Positives stand WIDTH by WIDTH in panels, queries are padded to whole panels. The negatives are packed once
// a chunk. What a strip works on is meant to stay in the cache.
#pragma once

#include <algorithm>

#include "products.h"
#include "rows.h"

struct Shape {
    int dimension, columns, stride;  // D, as whole vectors, and from row to row; zeros follow the last dimension
};

struct ChunkNegatives {
    int count;
    const Real* vectors;  // [M, D]
    Real* pulls;          // out: [M rounded up to ROWS, D]
};

struct Strip {
    int num_panels;
    const Real* queries;
    Real* query_pulls;  // out
    bool is_first;      // of its chunk
};

template <class P>
class Products {
    using Unit = typename P::Unit;
    static constexpr bool HALF = P::DEPTH == 2, TILED = P::TILED;

  public:
    // Take the negatives of a side, for the strips to come.
    void begin(int side, const Shape& shape, const ChunkNegatives& negatives) {
        shape_ = shape;
        units_ = (shape.columns / P::DEPTH + LANES - 1) / LANES * LANES;
        depth_ = TILED ? units_ : (shape.dimension + P::DEPTH - 1) / P::DEPTH;
        packed_[side].negatives = negatives;
        packed_[side].rows = (negatives.count + ROWS<P> - 1) / ROWS<P> * ROWS<P>;
        pack_negatives(packed_[side]);
    }

    // `loss` takes the number of a panel and its scores [M, WIDTH], which become its gradients.
    template <class F>
    void run(int side, const Strip& strip, F&& loss) {
        const Packed& packed = packed_[side];
        const size_t panel = size_t(packed.rows) * WIDTH;
        pack_queries(strip);
        Real* scores = scores_.of(strip.num_panels * panel);
        score(packed, strip, scores);
        for (int j = 0; j < strip.num_panels; j++) loss(j, scores + j * panel);
        gradients_of(packed, strip, scores);
        pull_queries(packed, strip);
        pull_negatives(packed, strip);
    }

  private:
    struct Packed {
        ChunkNegatives negatives;
        int rows = 0;
        Buffer<Unit> tiles, pairs;
    };

    // Tiles of `height` rows, each [depth_, height], or transposed.
    void pack_negatives(Packed& packed) {
        const ChunkNegatives& negatives = packed.negatives;
        Unit* to = packed.tiles.of(size_t(packed.rows) * depth_);
        Unit* row = row_.of(units_);
        for (int m = 0; m < packed.rows;) {
            const int height = tile_height<P>(packed.rows - m);
            for (int i = 0; i < height; i++, m++) {
                if (TILED) row = to + size_t(i) * depth_;
                if (m < negatives.count)
                    units_of_row(negatives.vectors + size_t(m) * shape_.stride, shape_.columns, row);
                else
                    std::fill(row, row + units_, Unit());
                for (int k = 0; k < depth_ && !TILED; k++) to[k * height + i] = row[k];
            }
            to += size_t(height) * depth_;
        }
        if constexpr (HALF) pairs_of_rows(negatives.vectors, negatives.count, packed.rows, packed.pairs);
    }

    // Panels [units_, WIDTH].
    void pack_queries(const Strip& strip) {
        Unit* to = packed_queries_.of(size_t(strip.num_panels) * units_ * WIDTH);
        Unit* rows = row_.of(size_t(LANES) * units_);
        for (int p = 0; p < strip.num_panels * WIDTH; p += LANES) {
            for (int i = 0; i < LANES; i++)
                units_of_row(strip.queries + size_t(p + i) * shape_.stride, shape_.columns, rows + i * units_);
            Unit* panel = to + size_t(p / WIDTH) * units_ * WIDTH + p % WIDTH;
            for (int k = 0; k < units_; k += LANES) {
                IntVec block[LANES];
                for (int i = 0; i < LANES; i++) block[i] = load<IntVec>(rows + i * units_ + k);
                transpose(block);
                for (int i = 0; i < LANES; i++) store(panel + (k + i) * WIDTH, block[i]);
            }
        }
        if constexpr (HALF) pairs_of_rows(strip.queries, strip.num_panels * WIDTH, strip.num_panels * WIDTH, query_pairs_);
    }

    static void units_of_row(const Real* from, int columns, Unit* to) {
        if constexpr (HALF) {
            for (int k = 0; k < columns; k += 2 * LANES) {
                const Vec low = load(from + k), high = k + LANES < columns ? load(from + k + LANES) : Vec{};
                store(to + k / 2, in_order(low, high));
            }
        } else {
            for (int k = 0; k < columns; k += LANES) store(to + k, load(from + k));
        }
    }

    // As bfloat16, one after another: a vector of units.
    static WordVec in_order(Vec low, Vec high) {
#ifdef HAS_HALF
        return (WordVec)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
        return WordVec{};
#endif
    }

    // [padded / 2, stride] units of two rows each; zeros follow the last row.
    void pairs_of_rows(const Real* from, int rows, int padded, Buffer<Unit>& buffer) {
        const int stride = shape_.stride;
        Unit* to = buffer.of(size_t(padded) / 2 * stride);
        for (int i = 0; i < padded; i += 2)
            for (int k = 0; k < shape_.columns; k += LANES) {
                const Real* at = from + size_t(i) * stride + k;
                const Vec first = i < rows ? load(at) : Vec{}, second = i + 1 < rows ? load(at + stride) : Vec{};
                store(to + size_t(i / 2) * stride + k, bfloat16_pairs(first, second));
            }
    }

    void score(const Packed& packed, const Strip& strip, Real* scores) {
        const Unit* negatives = packed.tiles.at();
        const Unit* queries = packed_queries_.at();
        for (int m = 0; m < packed.rows;) {
            const int height = tile_height<P>(packed.rows - m);
            const Depth depth = {1, depth_, 0, height, 0, WIDTH};
            for (int j = 0; j < strip.num_panels; j++)
                tile_of<P, 2>(height, depth, negatives + size_t(m) * depth_, TILED ? depth_ : 1, queries + size_t(j) * units_ * WIDTH,
                              scores + (size_t(j) * packed.rows + m) * WIDTH, WIDTH, false);
            m += height;
        }
    }

    // As both products below read them: by pairs of negatives, and by pairs of positives.
    void gradients_of(const Packed& packed, const Strip& strip, Real* scores) {
        if constexpr (!HALF) {
            by_negatives_ = by_positives_ = scores;
        } else {
            const size_t panel = size_t(packed.rows) * WIDTH / 2;
            Unit* by_negatives = by_negatives_buffer_.of(strip.num_panels * panel);
            Unit* by_positives = by_positives_buffer_.of(strip.num_panels * panel);
            for (int j = 0; j < strip.num_panels; j++)
                for (int m = 0; m < packed.rows; m += 2) {
                    Real* at = scores + (size_t(j) * packed.rows + m) * WIDTH;
                    const Vec a0 = load(at), a1 = load(at + LANES);
                    const bool second = m + 1 < packed.negatives.count;
                    const Vec b0 = second ? load(at + WIDTH) : Vec{}, b1 = second ? load(at + WIDTH + LANES) : Vec{};
                    Unit* pairs = by_negatives + j * panel + size_t(m) / 2 * WIDTH;
                    store(pairs, bfloat16_pairs(a0, b0));
                    store(pairs + LANES, bfloat16_pairs(a1, b1));
                    if (TILED && m % ROWS<P> == ROWS<P> - 2) turn(pairs - (ROWS<P> / 2 - 1) * WIDTH);
                    Unit* row = by_positives + j * panel + size_t(m) * WIDTH / 2;
                    store(row, in_order(a0, a1));
                    store(row + LANES, in_order(b0, b1));
                }
            by_negatives_ = by_negatives;
            by_positives_ = by_positives;
        }
    }

    // Pairs of ROWS negatives, in place: from [ROWS / 2, WIDTH] to [WIDTH, ROWS / 2].
    static void turn(Unit* block) {
        IntVec halves[2][LANES];
        for (int v = 0; v < 2; v++) {
            for (int i = 0; i < LANES; i++) halves[v][i] = load<IntVec>(block + i * WIDTH + v * LANES);
            transpose(halves[v]);
        }
        for (int v = 0; v < 2; v++)
            for (int i = 0; i < LANES; i++) store(block + (v * LANES + i) * LANES, halves[v][i]);
    }

    template <class F>
    void for_columns(F&& f) {
        for (int n = 0; n < shape_.columns; n += 2 * LANES) f(n, n + LANES < shape_.columns);
    }

    void pull_queries(const Packed& packed, const Strip& strip) {
        const int pairs = (packed.negatives.count + P::DEPTH - 1) / P::DEPTH;
        const Unit* negatives;
        if constexpr (HALF) negatives = packed.pairs.at();
        else negatives = packed.negatives.vectors;
        const ptrdiff_t stride = shape_.stride, a_row = TILED ? LANES : 1;
        const Depth depth = TILED ? Depth{packed.rows / ROWS<P>, LANES, LANES * WIDTH, 1, LANES * stride, stride}
                                  : Depth{1, pairs, 0, WIDTH, 0, stride};
        for_columns([&](int n, bool two) {
            for (int j = 0; j < strip.num_panels; j++)
                for (int p = 0; p < WIDTH;) {
                    const int height = tile_height<P>(WIDTH - p);
                    const Unit* a = by_negatives_ + size_t(j) * packed.rows * WIDTH / P::DEPTH + p * a_row;
                    Real* c = strip.query_pulls + (size_t(j) * WIDTH + p) * stride + n;
                    if (two) tile_of<P, 2>(height, depth, a, a_row, negatives + n, c, stride, false);
                    else tile_of<P, 1>(height, depth, a, a_row, negatives + n, c, stride, false);
                    p += height;
                }
        });
    }

    void pull_negatives(const Packed& packed, const Strip& strip) {
        constexpr int K = WIDTH / P::DEPTH;
        const Unit* queries;
        if constexpr (HALF) queries = query_pairs_.at();
        else queries = strip.queries;
        const ptrdiff_t stride = shape_.stride;
        const Depth depth = {strip.num_panels, K, ptrdiff_t(packed.rows) * K, 1, K * stride, stride};
        for_columns([&](int n, bool two) {
            for (int m = 0; m < packed.rows;) {
                const int height = tile_height<P>(packed.rows - m);
                const Unit* a = by_positives_ + size_t(m) * K;
                Real* c = packed.negatives.pulls + size_t(m) * stride + n;
                if (two) tile_of<P, 2>(height, depth, a, K, queries + n, c, stride, !strip.is_first);
                else tile_of<P, 1>(height, depth, a, K, queries + n, c, stride, !strip.is_first);
                m += height;
            }
        });
    }

    Shape shape_ = {};
    int depth_ = 0, units_ = 0;  // units along D, and as whole vectors
    Packed packed_[2];
    const Unit *by_negatives_ = nullptr, *by_positives_ = nullptr;
    Buffer<Real> scores_;
    Buffer<Unit> row_, packed_queries_, query_pairs_, by_negatives_buffer_, by_positives_buffer_;
};
