// Rows of tables as the vectors that are compared, and the way back of their gradients.
//
// Vectors are what the relation's operator and the comparator make of rows; pulls are gradients. Rows have D
// numbers in tables, `stride` here.
#pragma once

#include <optional>

#include "chunk.h"
#include "losses.h"
#include "update.h"

// Each strip passes over all negatives: where these are many, it is to be worth it.
constexpr int64_t SHORTEST_STRIP = 64, LONGEST_STRIP = 256, NEGATIVES_PER_ROW = 4;
constexpr size_t STRIP_BYTES = 4 << 20;  // of scores: fewer rows where there are so many negatives

class Vectors {
  protected:
    // Rows of a table, and what they are compared as.
    struct Gathered {
        Buffer<Real> entities, prepared, lengths;
        Buffer<Int> ids;
        Buffer<int> slot;
        const Real* vectors = nullptr;  // the entities themselves where nothing is prepared
    };

    void begin(const Settings& settings, const Table* tables, const Relations* relations) {
        s_ = &settings;
        tables_ = tables;
        relations_ = relations;
        columns_ = (s_->dimension + LANES - 1) / LANES * LANES;
        stride_ = columns_ / LANES % 2 ? columns_ : columns_ + LANES;  // rows a power of two apart share cache sets
        figures_ = {};
    }

    // Begin the sums of gradients of at most so many rows of each side, and of so many relations.
    void begin_slots(size_t lhs, size_t rhs, size_t num_relations) {
        slots_[0].begin(s_->same_table ? lhs + rhs : lhs, columns_, stride_);
        if (!s_->same_table) slots_[1].begin(rhs, columns_, stride_);
        for (Slots& slots : relation_slots_) slots.begin(num_relations, columns_, stride_);
    }

    Operator op() const { return Operator(s_->op); }
    Slots& slots(int side) { return slots_[s_->same_table ? 0 : side]; }
    bool operated(int side) const { return !s_->two_sided && side == 1 && op() != NONE; }
    bool prepared(int side) const { return s_->cosine || operated(side); }

    // Positives of a strip, which are compared with `most` negatives.
    static int64_t strip_size(int64_t most) {
        const int64_t fit = int64_t(STRIP_BYTES / sizeof(Real)) / most;
        const int64_t wanted = std::clamp(most / NEGATIVES_PER_ROW, SHORTEST_STRIP, LONGEST_STRIP);
        return std::max<int64_t>(1, std::min(wanted, fit) / WIDTH) * WIDTH;
    }

    // Take the `count` gathered negatives of a side, for the strips to come.
    void begin_products(int64_t count, int side) {
        Real* pulls = negative_pulls_[side].of((count + MOST_ROWS) * stride_);
        const Shape shape = {s_->dimension, columns_, stride_};
        with_products([&](auto& products) { products.begin(side, shape, {int(count), negatives_[side].vectors, pulls}); });
    }

    template <class F>
    void run_products(int side, const Strip& strip, F&& loss) {
        with_products([&](auto& products) { products.run(side, strip, loss); });
    }

    template <class F>
    void with_products(F&& f) {
#ifdef HAS_HALF
        if (s_->half) return f(half_);
#endif
        f(full_);
    }

    // The parameters of a relation of `side`, and the sums of their gradients.
    struct Parameters {
        const Real *a, *b;
        Real *da, *db;
    };

    Parameters parameters(int side, int slot) {
        if (op() == NONE) return {};
        Slots& slots = relation_slots_[side];
        const int width = parameter_width(*s_);
        const size_t at = size_t(slots.rows[slot]) * width;
        const bool two = op() == COMPLEX_DIAGONAL;
        return {relations_[side].values[0] + at, two ? relations_[side].values[1] + at : nullptr, slots.gradient(slot),
                two ? slots.gradient(slot) + width : nullptr};
    }

    void gather(const int64_t* rows, int64_t count, int side, Gathered& to) {
        const int64_t dimension = s_->dimension;
        const Table& table = tables_[side];
        Real* row = to.entities.of(count * stride_);
        Int* ids = to.ids.of(count);
        int* slot = to.slot.of(count);
        for (int64_t k = 0; k < count; k++, row += stride_) {
            if (k + AHEAD < count) prefetch(table.embeddings + rows[k + AHEAD] * dimension, dimension);
            std::memcpy(row, table.embeddings + rows[k] * dimension, dimension * sizeof(Real));
            std::memset(row + dimension, 0, (columns_ - dimension) * sizeof(Real));
            if (table.global_value)
                for (int64_t i = 0; i < dimension; i++) row[i] += table.global_value[i];
            ids[k] = Int(rows[k]);
            slot[k] = slots(side).find(rows[k]);
        }
        to.vectors = prepared(side) ? prepare(count, side, to) : to.entities.at();
    }

    const Real* prepare(int64_t count, int side, Gathered& to) {
        Real* vectors = to.prepared.of(count * stride_);
        const Parameters of = operated(side) ? parameters(1, relation_slots_[1].find(0)) : Parameters{};
        for (int64_t k = 0; k < count; k++)
            make_vector(operated(side) ? op() : NONE, to.entities.at() + k * stride_, of, vectors + k * stride_);
        if (s_->cosine) normalise(count, vectors, to.lengths);
        return vectors;
    }

    void make_vector(Operator op, const Real* from, const Parameters& of, Real* to) {
        operate(op, s_->dimension, from, of.a, of.b, to);
        std::memset(to + s_->dimension, 0, (columns_ - s_->dimension) * sizeof(Real));
    }

    void normalise(int64_t count, Real* rows, Buffer<Real>& lengths) {
        Real* length = lengths.of(count);
        for (int64_t k = 0; k < count; k++) {
            Real* row = rows + k * stride_;
            const Real square = dot(columns_, row, row);
            length[k] = std::sqrt(std::max(square, SMALLEST_SQUARE));
            scale(columns_, row, 1 / length[k]);
        }
    }

    // What negatives of `side` are compared with: the other side's positives, padded with zeros.
    const Real* make_queries(int64_t count, int64_t padded, int side) {
        const int other = 1 - side;
        Real* to = queries_.of(padded * stride_);
        if (s_->two_sided) {
            for (int64_t p = 0; p < count; p++)
                make_vector(op(), positives_[other].entities.at() + p * stride_,
                            parameters(other, relation_of_[other].at()[p]), to + p * stride_);
            if (s_->cosine) normalise(count, to, query_lengths_);
        } else {
            std::memcpy(to, positives_[other].vectors, count * stride_ * sizeof(Real));
        }
        std::memset(to + count * stride_, 0, (padded - count) * stride_ * sizeof(Real));
        return to;
    }

    // Where the pull of a positive's vector is added up: it is the entity's own where nothing is prepared.
    Real* pull_of(int64_t p, int side) {
        if (prepared(side)) return pulls_[side].at() + p * stride_;
        return slots(side).gradient(positives_[side].slot.at()[p]);
    }

    void pull_back_query(int64_t p, int side, const Real* query, Real* pull) {
        const int other = 1 - side;
        if (!s_->two_sided) return add(columns_, pull_of(p, other), pull, 1);
        if (s_->cosine) pull_back_length(query, query_lengths_.at()[p], pull);
        const Parameters of = parameters(other, relation_of_[other].at()[p]);
        operate_back(op(), s_->dimension, positives_[other].entities.at() + p * stride_, of.a, of.b, pull,
                     slots(other).gradient(positives_[other].slot.at()[p]), of.da, of.db);
    }

    // From a vector to the entity that it was made of, and to the relation.
    void pull_back(const Gathered& from, int64_t k, int side, Real* pull) {
        if (s_->cosine) pull_back_length(from.vectors + k * stride_, from.lengths.at()[k], pull);
        Real* to = slots(side).gradient(from.slot.at()[k]);
        if (!operated(side)) return add(columns_, to, pull, 1);
        const Parameters of = parameters(1, 0);
        operate_back(op(), s_->dimension, from.entities.at() + k * stride_, of.a, of.b, pull, to, of.da, of.db);
    }

    void begin_pulls(int side, int64_t count) {
        if (prepared(side)) std::memset(pulls_[side].of(count * stride_), 0, count * stride_ * sizeof(Real));
    }

    void end_pulls(int side, int64_t count) {
        for (int64_t k = 0; k < count && prepared(side); k++) pull_back(positives_[side], k, side, pull_of(k, side));
    }

    // Turns a pull of a vector of length 1 into one of the vector it was made of.
    void pull_back_length(const Real* row, Real length, Real* pull) {
        if (length * length > SMALLEST_SQUARE * Real(1.0001)) add(columns_, pull, row, -dot(columns_, row, pull));
        scale(columns_, pull, 1 / length);
    }

    const Settings* s_ = nullptr;
    const Table* tables_ = nullptr;
    const Relations* relations_ = nullptr;
    int columns_ = 0, stride_ = 0;
    Figures figures_ = {};
    Slots slots_[2], relation_slots_[2];
    Gathered positives_[2], negatives_[2];
    Buffer<Real> pulls_[2], negative_pulls_[2];
    Buffer<Real> queries_, query_pulls_, query_lengths_;
    Buffer<int> relation_of_[2];
    Products<Full> full_;
#ifdef HAS_HALF
    Products<Half> half_;
#endif
};
