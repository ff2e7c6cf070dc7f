// The end of a step: Adagrad moves what it touched. Parts of it may run side by side: each moves rows of its own.
#pragma once

#include "interface.h"
#include "rows.h"

constexpr int AHEAD = 8;  // rows of a table are asked for so many rows before they are wanted
constexpr uint64_t ROWS_OF_PART = 16;  // that follow each other: row-wise sums of a part share no cache line

inline int parameter_width(const Settings& settings) {
    return settings.op == COMPLEX_DIAGONAL ? settings.dimension / 2 : settings.dimension;
}

class Update {
  public:
    Update(const Settings& settings, const Table* tables, const Relations* relations, Figures& figures,
           uint64_t num_parts = 1, uint64_t part = 0)
        : s_(settings), tables_(tables), relations_(relations), figures_(figures), num_parts_(num_parts), part_(part) {}

    // With one table for both sides, `slots[0]` has the rows of both.
    void run(Slots* slots, Slots* relation_slots) {
        const int num_tables = s_.same_table ? 1 : 2;
        if (tables_[0].global_sum || tables_[1].global_sum) {  // whose gradient is the sum of all rows'
            if (part_ > 0) return;
            num_parts_ = 1;
        }
        for (int side = 0; side < num_tables; side++) move_global(side, slots[side]);
        for (int side = 0; side < num_tables; side++) move_rows(tables_[side], slots[side]);
        if (s_.op == NONE) return;
        for (int side = 0; side < 2; side++) move_relations(relations_[side], relation_slots[side]);
    }

    // A step of Adagrad on each touched row, after the regularizer.
    void move_rows(const Table& table, Slots& touched) {
        const int64_t dimension = s_.dimension, num_sums = table.element_wise ? dimension : 1;
        const Real coefficient = Real(s_.entity_regularization);
        const int64_t first = s_.unregularized;
        for (size_t u = 0; u < touched.rows.size(); u++) {
            if (u + AHEAD < touched.rows.size() && is_own(touched.rows[u + AHEAD])) {
                const int64_t next = touched.rows[u + AHEAD];
                prefetch(table.embeddings + next * dimension, dimension);
                if (table.sums) prefetch(table.sums + next * num_sums, num_sums);
            }
            if (!is_own(touched.rows[u])) continue;
            Real* gradient = touched.gradient(int(u));
            Real* value = table.embeddings + touched.rows[u] * dimension;
            if (coefficient != 0 && touched.counts[u])
                figures_.reg += s_.op == COMPLEX_DIAGONAL
                                    ? n3(dimension / 2, value, value + dimension / 2, coefficient * touched.counts[u],
                                         gradient, gradient + dimension / 2)
                                    : n3(dimension - first, value + first, nullptr, coefficient * touched.counts[u],
                                         gradient + first, nullptr);
            if (!table.sums) continue;
            Real* sums = table.sums + touched.rows[u] * num_sums;
            if (table.element_wise)
                adagrad(dimension, value, sums, gradient, Real(s_.lr));
            else
                row_adagrad(dimension, value, sums, gradient, dot(touched.columns(), gradient, gradient), Real(s_.lr));
            if (s_.max_norm > 0) shorten(dimension, value, Real(s_.max_norm));
        }
    }

  private:
    bool is_own(int64_t row) const { return num_parts_ == 1 || uint64_t(row) / ROWS_OF_PART % num_parts_ == part_; }

    // The gradient of what is added to all rows of a type is the sum of theirs.
    void move_global(int side, Slots& touched) {
        const Table& table = tables_[side];
        if (!table.global_sum) return;
        const bool shared = !s_.same_table && tables_[0].global_value == tables_[1].global_value;
        if (!shared || side == 0) global_pull_.assign(s_.dimension, 0);
        for (size_t u = 0; u < touched.rows.size(); u++)
            for (int i = 0; i < s_.dimension; i++) global_pull_[i] += touched.gradient(int(u))[i];
        if (!shared || side == 1)
            adagrad(s_.dimension, table.global_value, table.global_sum, global_pull_.data(), Real(s_.relation_lr));
    }

    void move_relations(const Relations& relations, Slots& touched) {
        const int width = parameter_width(s_), num_parts = s_.op == COMPLEX_DIAGONAL ? 2 : 1;
        for (size_t u = 0; u < touched.rows.size(); u++) {
            if (!is_own(touched.rows[u])) continue;
            Real* gradient = touched.gradient(int(u));
            const size_t at = size_t(touched.rows[u]) * width;
            Real* const* values = relations.values;
            if (s_.regularization > 0)
                figures_.reg += n3(width, values[0] + at, num_parts == 2 ? values[1] + at : nullptr,
                                   Real(s_.regularization) * touched.counts[u], gradient, gradient + width);
            for (int part = 0; part < num_parts && relations.sums[part]; part++)
                adagrad(width, values[part] + at, relations.sums[part] + at, gradient + part * width,
                        Real(s_.relation_lr));
        }
    }

    const Settings& s_;
    const Table* tables_;
    const Relations* relations_;
    Figures& figures_;
    uint64_t num_parts_, part_;
    std::vector<Real> global_pull_;
};
