// What is done to single rows: operators, lengths, the sum of a row's gradients, Adagrad.
#pragma once

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

#include "vec.h"

enum Operator { NONE, DIAGONAL, TRANSLATION, COMPLEX_DIAGONAL };

// Memory that grows and is never given back while training goes on. What it held is lost when it grows.
template <class T>
class Buffer {
  public:
    Buffer() = default;
    Buffer(const Buffer&) = delete;
    ~Buffer() { std::free(at_); }

    T* of(size_t count) {
        if (count * sizeof(T) > bytes_) {
            constexpr size_t PAGE = size_t(2) << 20;
            const size_t alignment = count * sizeof(T) >= PAGE ? PAGE : 64;
            const size_t bytes = (count * sizeof(T) + alignment - 1) / alignment * alignment;
            std::free(at_);
            bytes_ = 0;  // until there is memory: a workspace may be used again after a failure
            at_ = static_cast<T*>(std::aligned_alloc(alignment, bytes));
            if (!at_) throw std::bad_alloc();
            bytes_ = bytes;
            if (alignment == PAGE) madvise(at_, bytes_, MADV_HUGEPAGE);
        }
        return at_;
    }

    T* at() const { return at_; }

  private:
    T* at_ = nullptr;
    size_t bytes_ = 0;
};

inline void prefetch(const Real* row, int64_t count) {
    for (int64_t i = 0; i < count; i += 64 / sizeof(Real)) __builtin_prefetch(row + i);
}

// y = operator(x); `a` and `b` are the relation's parameters.
inline void operate(Operator op, int dimension, const Real* __restrict x, const Real* __restrict a,
                    const Real* __restrict b, Real* __restrict y) {
    const int half = dimension / 2;
    switch (op) {
        case NONE: std::memcpy(y, x, dimension * sizeof(Real)); break;
        case DIAGONAL:
            for (int i = 0; i < dimension; i++) y[i] = a[i] * x[i];
            break;
        case TRANSLATION:
            for (int i = 0; i < dimension; i++) y[i] = x[i] + a[i];
            break;
        case COMPLEX_DIAGONAL:
            for (int i = 0; i < half; i++) {
                const Real re = x[i], im = x[half + i];
                y[i] = re * a[i] - im * b[i];
                y[half + i] = re * b[i] + im * a[i];
            }
    }
}

// Adds to dx, da and db what the gradient dy is towards them.
inline void operate_back(Operator op, int dimension, const Real* __restrict x, const Real* __restrict a,
                         const Real* __restrict b, const Real* __restrict dy, Real* __restrict dx,
                         Real* __restrict da, Real* __restrict db) {
    const int half = dimension / 2;
    switch (op) {
        case NONE:
            for (int i = 0; i < dimension; i++) dx[i] += dy[i];
            break;
        case DIAGONAL:
            for (int i = 0; i < dimension; i++) {
                dx[i] += a[i] * dy[i];
                da[i] += x[i] * dy[i];
            }
            break;
        case TRANSLATION:
            for (int i = 0; i < dimension; i++) {
                dx[i] += dy[i];
                da[i] += dy[i];
            }
            break;
        case COMPLEX_DIAGONAL:
            for (int i = 0; i < half; i++) {
                const Real re = x[i], im = x[half + i], dre = dy[i], dim = dy[half + i];
                dx[i] += a[i] * dre + b[i] * dim;
                dx[half + i] += a[i] * dim - b[i] * dre;
                da[i] += re * dre + im * dim;
                db[i] += re * dim - im * dre;
            }
    }
}

// Rows of `columns` numbers, whole vectors; what is behind the last dimension is zero.
inline Real dot(int columns, const Real* a, const Real* b) {
    Vec sums = {};
    for (int i = 0; i < columns; i += LANES) sums += load(a + i) * load(b + i);
    return lane_sum(sums);
}

inline void add(int columns, Real* to, const Real* from, Real factor) {
    for (int i = 0; i < columns; i += LANES) store(to + i, load(to + i) + load(from + i) * factor);
}

inline void scale(int columns, Real* row, Real factor) {
    for (int i = 0; i < columns; i += LANES) store(row + i, load(row + i) * factor);
}

// Distinct rows of a table in the order of their first occurrence, and the sum of each one's gradients.
class Slots {
  public:
    // Begin anew, for at most `most` rows whose gradients have `columns` numbers, and lie `stride` apart.
    void begin(size_t most, int columns, int stride) {
        columns_ = columns;
        stride_ = stride;
        size_t size = 64;
        while (size < 2 * most) size *= 2;
        mask_ = size - 1;
        places_.assign(size, -1);
        rows.clear();
        counts.clear();
        begun_.clear();
        gradients_ = buffer_.of(most * stride);
    }

    int find(int64_t row) {
        size_t place = (uint64_t(row) * 0x9e3779b97f4a7c15u >> 20) & mask_;
        while (places_[place] >= 0) {
            if (rows[places_[place]] == row) return places_[place];
            place = (place + 1) & mask_;
        }
        const int slot = places_[place] = int(rows.size());
        rows.push_back(row);
        counts.push_back(0);
        begun_.push_back(false);
        return slot;
    }

    // Cleared when it is first wanted, not before: so it is in the cache when something is added.
    Real* gradient(int slot) {
        Real* row = gradients_ + size_t(slot) * stride_;
        if (!begun_[slot]) {
            std::memset(row, 0, columns_ * sizeof(Real));
            begun_[slot] = true;
        }
        return row;
    }

    int columns() const { return columns_; }

    std::vector<int64_t> rows;
    std::vector<int> counts;  // of the edges that the row is an endpoint of: for the regulariser

  private:
    int columns_ = 0, stride_ = 0;
    size_t mask_ = 0;
    std::vector<int> places_;
    std::vector<char> begun_;
    Real* gradients_ = nullptr;
    Buffer<Real> buffer_;
};

constexpr Real EPSILON = Real(1e-10);

// weight * sum of |x|^3, adding its gradient; complex numbers have their parts in x and y.
inline double n3(int count, const Real* x, const Real* y, Real weight, Real* dx, Real* dy) {
    Real cost = 0;
    for (int i = 0; i < count; i++) {
        const Real modulus = y ? std::sqrt(x[i] * x[i] + y[i] * y[i]) : std::fabs(x[i]);
        const Real slope = weight * modulus;
        cost += slope * modulus * modulus;
        dx[i] += 3 * slope * x[i];
        if (y) dy[i] += 3 * slope * y[i];
    }
    return cost;
}

// Element-wise Adagrad. Others may move the same numbers meanwhile: the sum that is divided by is our own.
inline void adagrad(int count, Real* __restrict value, Real* __restrict sums, const Real* __restrict gradient,
                    Real lr) {
    for (int i = 0; i < count; i++) {
        const Real sum = sums[i] + gradient[i] * gradient[i];
        sums[i] = sum;
        value[i] -= lr * gradient[i] / (std::sqrt(sum) + EPSILON);
    }
}

inline void row_adagrad(int count, Real* __restrict value, Real* __restrict sum_of_row, const Real* __restrict gradient,
                        Real square, Real lr) {
    const Real sum = *sum_of_row + square / count;
    *sum_of_row = sum;
    const Real step = lr / (std::sqrt(sum) + EPSILON);
    for (int i = 0; i < count; i++) value[i] -= step * gradient[i];
}

inline void shorten(int count, Real* value, Real max_norm) {
    Real square = 0;
    for (int i = 0; i < count; i++) square += value[i] * value[i];
    if (square <= max_norm * max_norm) return;
    const Real factor = max_norm / std::sqrt(square);
    for (int i = 0; i < count; i++) value[i] *= factor;
}
