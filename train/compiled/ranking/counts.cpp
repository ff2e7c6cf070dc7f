// Counts of a ranking: how many numbers of a row lie above and below two limits, in one pass over the row.
//
// Rows are those of a matrix of products [P, N] with `stride` numbers between them, in float32 or bfloat16;
// limits are float32. Shapes: C edges, each with the number of its row, its own column or -1, and two limits.

#include <algorithm>
#include <cstdint>
#include <cstring>

constexpr int64_t STRETCH = 64;  // few pairs lie between the limits: most stretches have none

struct Edges {
    int64_t num_edges;
    const int64_t* row;
    const int64_t* own_column;
    const float* low;
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
template <class Real>
void count(const Real* products, int64_t width, int64_t stride, const Edges& edges, int64_t* above,
           int64_t* between) {
    for (int64_t edge = 0; edge < edges.num_edges; edge++) {
        const Real* row = products + edges.row[edge] * stride;
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

// The pairs that `count` finds between the limits, edge after edge: edge and column of each.
template <class Real>
void list(const Real* products, int64_t width, int64_t stride, const Edges& edges, const int64_t* between,
          int64_t* edge_of_pair, int64_t* column_of_pair) {
    for (int64_t edge = 0; edge < edges.num_edges; edge++) {
        if (!between[edge]) continue;
        const Real* row = products + edges.row[edge] * stride;
        const float low = edges.low[edge], high = edges.high[edge];
        for (int64_t begin = 0; begin < width; begin += STRETCH) {
            const int64_t end = std::min(begin + STRETCH, width);
            int32_t num_beyond = 0;
            for (int64_t column = begin; column < end; column++) {
                const float number = value(row[column]);
                num_beyond += (number > high) | (number < low);
            }
            if (num_beyond == end - begin) continue;
            for (int64_t column = begin; column < end; column++) {
                const float number = value(row[column]);
                if (number > high || number < low || column == edges.own_column[edge]) continue;
                *edge_of_pair++ = edge;
                *column_of_pair++ = column;
            }
        }
    }
}

extern "C" {

void graphmill_count(const void* products, int is_half, int64_t width, int64_t stride, const Edges* edges,
                     int64_t* above, int64_t* between) {
    if (is_half)
        count(static_cast<const uint16_t*>(products), width, stride, *edges, above, between);
    else
        count(static_cast<const float*>(products), width, stride, *edges, above, between);
}

void graphmill_list(const void* products, int is_half, int64_t width, int64_t stride, const Edges* edges,
                    const int64_t* between, int64_t* edge_of_pair, int64_t* column_of_pair) {
    if (is_half)
        list(static_cast<const uint16_t*>(products), width, stride, *edges, between, edge_of_pair, column_of_pair);
    else
        list(static_cast<const float*>(products), width, stride, *edges, between, edge_of_pair, column_of_pair);
}
}
