// Counts of a ranking: how many numbers of a row lie above and below two limits, in one pass over the row.
//
// Rows are those of a matrix of products [P, N] with `stride` numbers between them, in float32 or bfloat16;
// limits are float32. Shapes: C edges, each with the number of its row, its own column or -1, and two limits.
// Pairs that a product in bfloat16 leaves between the limits are multiplied once more, in float32.

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "rows.h"

constexpr int64_t STRETCH = 64;  // columns whose flags are one word; of few pairs most words are 0

struct Edges {
    int64_t num_edges;
    const int64_t* row;
    const int64_t* own_column;
    const float* low;
    const float* high;
};

struct Factors {  // rows of float32, padded with zeros to whole vectors; without queries there are none
    const float* queries;
    const float* candidates;
    int64_t dimension;
    const float* low;  // of the product in float32, by edge
    const float* high;
};

inline float value(float number) { return number; }

inline float value(uint16_t bfloat16) {
    const uint32_t bits = uint32_t(bfloat16) << 16;
    float number;
    std::memcpy(&number, &bits, sizeof number);
    return number;
}

// Numbers above `high`, and from `low` to `high`, without the edge's own: [C] each.
template <class Number>
void count(const Number* products, int64_t width, int64_t stride, const Edges& edges, int64_t* above,
           int64_t* between) {
    for (int64_t edge = 0; edge < edges.num_edges; edge++) {
        const Number* row = products + edges.row[edge] * stride;
        const float low = edges.low[edge], high = edges.high[edge];
        int32_t num_above = 0, num_below = 0;  // a row is shorter than 2^31
        for (int64_t column = 0; column < width; column++) {
            const float number = value(row[column]);
            num_above += number > high;
            num_below += number < low;
        }
        above[edge] = num_above;
        between[edge] = width - num_above - num_below;
        if (edges.own_column[edge] >= 0) {
            const float own = value(row[edges.own_column[edge]]);
            above[edge] -= own > high;
            between[edge] -= !(own > high) && !(own < low);
        }
    }
}

// Bit k tells whether number k, of at most STRETCH, is between the limits.
template <class Number>
inline uint64_t between_limits(const Number* numbers, int64_t size, float low, float high) {
    uint8_t flags[STRETCH] = {};
    for (int64_t place = 0; place < size; place++) {
        const float number = value(numbers[place]);
        flags[place] = !(number < low) & !(number > high);
    }
    uint64_t found = 0;
    for (int64_t byte = 0; byte < STRETCH / 8; byte++) {
        uint64_t eight;
        std::memcpy(&eight, flags + 8 * byte, sizeof eight);
        found |= (eight * 0x0102040810204080 >> 56) << 8 * byte;  // gathers the lowest bits of eight bytes
    }
    return found;
}

// The pairs that `count` finds between the limits, edge after edge: edge and column of each. With factors, a
// product of theirs decides where it can, is added to `above`, and the others are listed. Returns their number.
template <class Number>
int64_t list(const Number* products, int64_t width, int64_t stride, const Edges& edges, const int64_t* between,
             const Factors& factors, int64_t* above, int64_t* edge_of_pair, int64_t* column_of_pair) {
    int64_t num_pairs = 0;
    for (int64_t edge = 0; edge < edges.num_edges; edge++) {
        if (!between[edge]) continue;
        const Number* row = products + edges.row[edge] * stride;
        const float* query = factors.queries ? factors.queries + edges.row[edge] * factors.dimension : nullptr;
        for (int64_t begin = 0; begin < width; begin += STRETCH) {
            const int64_t size = std::min(STRETCH, width - begin);
            uint64_t found = between_limits(row + begin, size, edges.low[edge], edges.high[edge]);
            for (; found; found &= found - 1) {
                const int64_t column = begin + __builtin_ctzll(found);
                if (column == edges.own_column[edge]) continue;
                if (query) {
                    const float* candidate = factors.candidates + column * factors.dimension;
                    const float product = dot(int(factors.dimension), query, candidate);
                    above[edge] += product > factors.high[edge];
                    if (product > factors.high[edge] || product < factors.low[edge]) continue;
                }
                edge_of_pair[num_pairs] = edge;
                column_of_pair[num_pairs++] = column;
            }
        }
    }
    return num_pairs;
}

extern "C" {

void graphmill_count(const void* products, int is_half, int64_t width, int64_t stride, const Edges* edges,
                     int64_t* above, int64_t* between) {
    if (is_half)
        count(static_cast<const uint16_t*>(products), width, stride, *edges, above, between);
    else
        count(static_cast<const float*>(products), width, stride, *edges, above, between);
}

int64_t graphmill_list(const void* products, int is_half, int64_t width, int64_t stride, const Edges* edges,
                       const int64_t* between, const Factors* factors, int64_t* above, int64_t* edge_of_pair,
                       int64_t* column_of_pair) {
    return is_half ? list(static_cast<const uint16_t*>(products), width, stride, *edges, between, *factors, above,
                          edge_of_pair, column_of_pair)
                   : list(static_cast<const float*>(products), width, stride, *edges, between, *factors, above,
                          edge_of_pair, column_of_pair);
}
}
