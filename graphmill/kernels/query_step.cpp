// Passes over the scores and the rows of a step on queries, as train/step/queries.py defines it.
//
// Shapes: Q queries, N scores of a query, K touched rows with repetitions, D dimension.

#include <algorithm>
#include <exception>
#include <limits>
#include <memory>
#include <thread>

#include "rows.h"

constexpr int64_t NUMBERS_PER_THREAD = 1 << 16;  // fewer take less time than the start of a thread
constexpr int UNROLLED = 4;                      // vectors at a time: sums that do not wait for each other
constexpr Real LOWEST = std::numeric_limits<Real>::lowest();

// Into how many parts to cut `count` things of `size` numbers.
inline int num_parts(int num_threads, int64_t count, int64_t size) {
    const int64_t most = std::max<int64_t>(1, count * size / NUMBERS_PER_THREAD);
    return int(std::min<int64_t>({num_threads, most, std::max<int64_t>(1, count)}));
}

// Calls run(part, begin, end) for each part, in a thread of its own.
template <class F>
void in_threads(int parts, int64_t count, F&& run) {
    std::vector<std::thread> others;
    const auto begin = [&](int part) { return count * part / parts; };
    int part = 1;
    try {
        others.reserve(parts);
        for (; part < parts; part++) others.emplace_back(run, part, begin(part), begin(part + 1));
    } catch (const std::exception&) {  // no more threads: their parts are done here
    }
    run(0, begin(0), begin(1));
    for (; part < parts; part++) run(part, begin(part), begin(part + 1));
    for (std::thread& other : others) other.join();
}

#ifndef DOUBLE
using HalfVec = uint16_t __attribute__((vector_size(VEC_BYTES / 2)));

inline Vec widened(const uint16_t* from) {
    return (Vec)(__builtin_convertvector(load<HalfVec>(from), WordVec) << 16);
}

inline void narrow(uint16_t* to, Vec value) {  // to the nearest bfloat16; of two the even one
    WordVec bits = (WordVec)value;
    bits += 0x7fff + ((bits >> 16) & 1);
    store(to, __builtin_convertvector(bits >> 16, HalfVec));
}
#endif
inline Vec widened(const Real* from) { return load(from); }
inline void narrow(Real* to, Vec value) { store(to, value); }

// One row of scores: softmax in place. `wide` has room for the row, in whole vectors.
template <class Number>
void softmax_of_row(Number* row, int64_t width, Real* wide, Real& best, Real& total) {
    const int64_t whole = width / LANES * LANES, padded = (width + LANES - 1) / LANES * LANES;
    for (int64_t n = 0; n < whole; n += LANES) store(wide + n, widened(row + n));
    if (whole < padded) {
        Number last[LANES] = {};
        std::copy(row + whole, row + width, last);
        store(wide + whole, widened(last));
        std::fill(wide + width, wide + padded, LOWEST);
    }
    Vec most[UNROLLED], sum[UNROLLED], check = {};
    for (int i = 0; i < UNROLLED; i++) most[i] = fill(LOWEST), sum[i] = Vec{};
    const int64_t unrolled = padded / (UNROLLED * LANES) * (UNROLLED * LANES);
    const auto for_vectors = [&](auto&& each) {
        for (int64_t n = 0; n < unrolled; n += UNROLLED * LANES)
            for (int i = 0; i < UNROLLED; i++) each(wide + n + i * LANES, i);
        for (int64_t n = unrolled; n < padded; n += LANES) each(wide + n, 0);
    };
    for_vectors([&](Real* at, int i) {
        const Vec scores = load(at);
        most[i] = highest(most[i], scores);
        check += scores * Real(0);  // not a number, where a score is none or infinite
    });
    for (int i = 1; i < UNROLLED; i++) most[0] = highest(most[0], most[i]);
    best = most[0][0];
    for (int i = 1; i < LANES; i++) best = std::max<Real>(best, most[0][i]);
    const Real wrong = lane_sum(check);
    for_vectors([&](Real* at, int i) {
        const Vec each = exp_negative(load(at) - fill(best));
        store(at, each);
        sum[i] += each;
    });
    const Real all = lane_sum((sum[0] + sum[1]) + (sum[2] + sum[3])) + wrong;
    best += wrong;
    total = best + std::log(all);
    const Vec scale = fill(1 / all);
    for (int64_t n = 0; n < whole; n += LANES) narrow(row + n, load(wide + n) * scale);
    if (whole < padded) {
        Number last[LANES];
        narrow(last, load(wide + whole) * scale);
        std::copy(last, last + (width - whole), row + whole);
    }
}

// False where memory does not suffice.
template <class Number>
bool softmax(Number* scores, int64_t count, int64_t width, Real* best, Real* total, int num_threads) {
    const int parts = num_parts(num_threads, count, width);
    const int64_t padded = (width + LANES - 1) / LANES * LANES;
    const std::unique_ptr<Real[]> wide(new (std::nothrow) Real[parts * padded]);
    if (!wide) return false;
    in_threads(parts, count, [&](int part, int64_t begin, int64_t end) {
        for (int64_t q = begin; q < end; q++)
            softmax_of_row(scores + q * width, width, wide.get() + part * padded, best[q], total[q]);
    });
    return true;
}

inline Real sum_of_squares(int64_t count, const Real* row) {
    const int64_t whole = count / LANES * LANES;
    Real sum = dot(int(whole), row, row);
    for (int64_t d = whole; d < count; d++) sum += row[d] * row[d];
    return sum;
}

extern "C" {

struct Touched {
    int64_t count;
    const int64_t *rows, *order;  // ascending, and the place of each one's gradient
    const Real* gradients;        // [K, D]
};

struct Rows {
    Real *values, *sums;
    int64_t dimension, element_wise;  // sums are [N, D], else [N]
    double lr, max_norm;              // max_norm 0: none
};

int graphmill_bytes_of_real() { return sizeof(Real); }

// 0, or 1 where memory does not suffice. Scores [Q, N] become their softmax; best [Q] and log of the sum [Q].
int graphmill_softmax(void* scores, int is_half, int64_t count, int64_t width, Real* best, Real* total,
                      int num_threads) {
#ifndef DOUBLE
    if (is_half) return !softmax(static_cast<uint16_t*>(scores), count, width, best, total, num_threads);
#endif
    return !softmax(static_cast<Real*>(scores), count, width, best, total, num_threads);
}

// 0, or 1 where memory does not suffice. A step of Adagrad on each row, by the sum of its gradients in their order.
int graphmill_move_rows(const Rows* table, const Touched* touched, int num_threads) {
    const int64_t dimension = table->dimension, num_sums = table->element_wise ? dimension : 1;
    const int64_t* rows = touched->rows;
    const int parts = num_parts(num_threads, touched->count, dimension);
    const std::unique_ptr<Real[]> gradients(new (std::nothrow) Real[parts * dimension]);
    if (!gradients) return 1;
    in_threads(parts, touched->count, [&](int part, int64_t k, int64_t end) {
        while (k > 0 && k < end && rows[k] == rows[k - 1]) k++;  // they are of the part before
        while (k < end) {
            const int64_t row = rows[k];
            const Real* gradient = touched->gradients + touched->order[k++] * dimension;
            if (k < touched->count && rows[k] == row) {
                Real* sum = gradients.get() + part * dimension;
                std::copy(gradient, gradient + dimension, sum);
                for (; k < touched->count && rows[k] == row; k++) {
                    const Real* more = touched->gradients + touched->order[k] * dimension;
                    for (int64_t d = 0; d < dimension; d++) sum[d] += more[d];
                }
                gradient = sum;
            }
            Real *value = table->values + row * dimension, *sums = table->sums + row * num_sums;
            if (table->element_wise)
                adagrad(int(dimension), value, sums, gradient, Real(table->lr));
            else
                row_adagrad(int(dimension), value, sums, gradient, sum_of_squares(dimension, gradient), Real(table->lr));
            if (table->max_norm > 0) shorten(int(dimension), value, Real(table->max_norm));
        }
    });
    return 0;
}
}
