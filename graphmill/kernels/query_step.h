// A gradient step on a batch of queries, as train/step/queries.py defines it: gradients in one thread, updates in parts.
//
// A query is compared with the drawn candidates, less its own answers, and with these. Queries come in strips:
// their scores stay in the cache from the products to the gradients.
//
// Shapes: Q queries, A answers, C candidates; a panel has WIDTH queries.
#pragma once

#include "vectors.h"

class QueryStep : Vectors {
  public:
    // Computes gradients, and moves nothing.
    Figures run(const Settings& settings, const Table* tables, const Relations* relations, const Queries& queries) {
        begin(settings, tables, relations);
        q_ = &queries;
        side_ = int(q_->side);
        const size_t asked = q_->num_candidates + q_->num_answers, asking = q_->num_queries;
        begin_slots(side_ ? asking : asked, side_ ? asked : asking, q_->relations ? asking : 1);
        gather(q_->candidates, q_->num_candidates, side_, negatives_[side_]);
        begin_products(q_->num_candidates, side_);
        std::fill_n(q_->mass, q_->num_candidates, Real(0));
        Real* log_weights = log_weights_.of(q_->num_candidates);
        for (int64_t m = 0; m < q_->num_candidates; m++) log_weights[m] = q_->log_weights[m] + log_own(q_->candidates[m]);
        answer_ = other_ = 0;
        const int64_t size = strip_size(q_->num_candidates);
        for (int64_t first = 0; first < q_->num_queries; first += size)
            strip(first, std::min(size, q_->num_queries - first));
        for (int64_t m = 0; m < q_->num_candidates; m++) {
            q_->mass[m] *= std::exp(-q_->log_weights[m]);
            pull_back(negatives_[side_], m, side_, negative_pulls_[side_].at() + m * stride_);
        }
        return figures_;
    }

    // Moves a part of the rows and parameters of the last batch. Parts may move side by side.
    Figures update(const Settings& settings, const Table* tables, const Relations* relations, int64_t num_parts, int64_t part) {
        Figures figures = {};
        Update(settings, tables, relations, figures, num_parts, part).run(slots_, relation_slots_);
        return figures;
    }

    // Moves rows, which may repeat, by the sums of their gradients [K, D].
    void move(const Settings& settings, const Table* tables, int64_t count, const int64_t* rows, const Real* gradients) {
        begin(settings, tables, nullptr);
        begin_slots(count, 0, 0);
        for (int64_t k = 0; k < count; k++) {
            Real* to = slots_[0].gradient(slots_[0].find(rows[k]));
            const Real* gradient = gradients + k * settings.dimension;
            for (int i = 0; i < settings.dimension; i++) to[i] += gradient[i];
        }
        Update(settings, tables, nullptr, figures_).move_rows(tables[0], slots_[0]);
    }

  private:
    struct Answers {  // of a query, or of a strip: from `begin` to before `end`
        int64_t begin, end;
    };

    void strip(int64_t first, int64_t count) {
        const int asking = 1 - side_;
        const Answers own = next(q_->query_of_answer, q_->num_answers, answer_, first + count);
        const int64_t num_answers = own.end - own.begin;
        gather(q_->entities + first, count, asking, positives_[asking]);
        gather(q_->answers + own.begin, num_answers, side_, positives_[side_]);
        begin_pulls(asking, count);
        begin_pulls(side_, num_answers);
        for (int64_t a = 0; a < num_answers; a++) slots(side_).counts[positives_[side_].slot.at()[a]]++;
        find_relations(first, count);
        const int num_panels = int((count + WIDTH - 1) / WIDTH);
        const Real* queries = make_queries(count, num_panels * WIDTH, side_);
        Real* query_pulls = query_pulls_.of(size_t(num_panels) * WIDTH * stride_);
        first_answer_ = own.begin;
        score_answers(first, own, queries);
        int64_t answer = own.begin;
        run_products(side_, {num_panels, queries, query_pulls, first == 0}, [&](int j, Real* scores) {
            const int64_t begin = first + int64_t(j) * WIDTH;
            panel(begin, int(std::min<int64_t>(WIDTH, first + count - begin)), answer, scores);
        });
        for (int64_t a = 0; a < num_answers; a++) {
            const int64_t p = q_->query_of_answer[own.begin + a] - first;
            add(columns_, query_pulls + p * stride_, positives_[side_].vectors + a * stride_, slopes_.at()[a]);
            add(columns_, pull_of(a, side_), queries + p * stride_, slopes_.at()[a]);
        }
        for (int64_t p = 0; p < count; p++) pull_back_query(p, side_, queries + p * stride_, query_pulls + p * stride_);
        end_pulls(asking, count);
        end_pulls(side_, num_answers);
    }

    // What follows `at` of the entries of queries before `query`; `at` moves behind them.
    static Answers next(const int64_t* query_of, int64_t count, int64_t& at, int64_t query) {
        const int64_t begin = at;
        while (at < count && query_of[at] < query) at++;
        return {begin, at};
    }

    // The regularizer counts an entity, and the operator of its edges, once for each edge.
    void find_relations(int64_t first, int64_t count) {
        const int asking = 1 - side_, side = s_->two_sided ? asking : 1;
        int* slot = relation_of_[side].of(count);
        for (int64_t p = 0; p < count; p++) {
            const int num_edges = int(q_->counts[first + p]);
            slots(asking).counts[positives_[asking].slot.at()[p]] += num_edges;
            slot[p] = relation_slots_[side].find(q_->relations ? q_->relations[first + p] : 0);
            relation_slots_[side].counts[slot[p]] += num_edges;
        }
    }

    void score_answers(int64_t first, const Answers& own, const Real* queries) {
        const int64_t count = own.end - own.begin;
        Real* score = own_.of(count);
        slopes_.of(count);
        for (int64_t a = 0; a < count; a++) {
            const int64_t p = q_->query_of_answer[own.begin + a] - first;
            score[a] = dot(columns_, queries + p * stride_, positives_[side_].vectors + a * stride_);
        }
    }

    // Softmax of `count` queries over the candidates and their own answers, which begin at `answer`.
    void panel(int64_t first, int count, int64_t& answer, Real* scores) {
        Answers own[WIDTH];
        alignas(64) Real top[WIDTH], scale[WIDTH] = {};
        for (int i = 0; i < count; i++) {
            own[i] = next(q_->query_of_answer, q_->num_answers, answer, first + i + 1);
            for (int64_t a = own[i].begin; a < own[i].end; a++)
                if (q_->weight_of_answer[a] != 0) leave_out(q_->answers[a], scores + i);
            const Answers known = next(q_->query_of_other, q_->num_others, other_, first + i + 1);
            for (int64_t o = known.begin; o < known.end; o++) leave_out(q_->others[o], scores + i);
        }
        const int64_t num = q_->num_candidates;
        const auto for_scores = [&](auto&& each) {
            for (int64_t m = 0; m < num; m++)
                for (int v = 0; v < 2; v++) each(scores + m * WIDTH + v * LANES, m, v);
        };
        Pair best = {{fill(MASKED), fill(MASKED)}}, check = {};
        for_scores([&](Real* at, int64_t m, int v) {
            const Vec score = load(at) + log_weights_.at()[m];
            store(at, score);
            best.v[v] = highest(best.v[v], score);
            check.v[v] += score * Real(0);  // not a number, where a score is none or infinite
        });
        for (int i = 0; i < WIDTH; i++) {
            top[i] = best.v[i / LANES][i % LANES] + check.v[i / LANES][i % LANES];
            for (int64_t a = i < count ? own[i].begin : 0; i < count && a < own[i].end; a++)
                if (q_->weight_of_answer[a] != 0) top[i] = std::max(top[i], compared(a));
        }
        Pair sum = {};
        for_scores([&](Real* at, int64_t, int v) {
            const Vec each = exp_negative(load(at) - load(top + v * LANES));
            store(at, each);
            sum.v[v] += each;
        });
        for (int i = 0; i < count; i++) {
            const Real total = answers_of(first + i, own[i], top[i], sum.v[i / LANES][i % LANES]);
            scale[i] = q_->weights[first + i] / total;
        }
        for (int64_t m = 0; m < num; m++) {
            Pair odds;
            for (int v = 0; v < 2; v++) {
                Real* at = scores + m * WIDTH + v * LANES;
                odds.v[v] = load(at) * load(scale + v * LANES);
                store(at, odds.v[v]);
            }
            q_->mass[m] += lane_sum(odds.v[0] + odds.v[1]);
        }
    }

    Real score_of(int64_t answer) const { return own_.at()[answer - first_answer_]; }

    Real compared(int64_t answer) const { return score_of(answer) + log_own(q_->answers[answer]); }

    Real log_own(int64_t row) const { return row >= q_->own_start && row < q_->own_stop ? Real(q_->log_own) : Real(0); }

    void leave_out(int64_t row, Real* scores) const {
        const int64_t *end = q_->candidates + q_->num_candidates, *at = std::lower_bound(q_->candidates, end, row);
        for (; at != end && *at == row; at++) scores[(at - q_->candidates) * WIDTH] = MASKED;
    }

    // Adds the answers of a query to the sum of exp(score - top), once each; finds their gradients. The new sum.
    Real answers_of(int64_t query, const Answers& own, Real top, Real sum) {
        order_.clear();
        for (int64_t a = own.begin; a < own.end; a++)
            if (q_->weight_of_answer[a] != 0) order_.push_back(a);
        const auto row = [&](int64_t a) { return q_->answers[a]; };
        std::sort(order_.begin(), order_.end(), [&](int64_t a, int64_t b) { return row(a) < row(b); });
        for (size_t k = 0; k < order_.size(); k++)
            if (k == 0 || row(order_[k]) != row(order_[k - 1])) sum += std::exp(compared(order_[k]) - top);
        const Real log_sum = top + std::log(sum), weight = q_->weights[query];
        std::fill(slopes_.at() + (own.begin - first_answer_), slopes_.at() + (own.end - first_answer_), Real(0));
        for (size_t k = 0, next; k < order_.size(); k = next) {
            for (next = k + 1; next < order_.size() && row(order_[next]) == row(order_[k]);) next++;
            const Real odds = std::exp(compared(order_[k]) - log_sum) / Real(next - k);  // repetitions share them
            for (size_t same = k; same < next; same++) {
                const int64_t a = order_[same];
                const Real own_weight = q_->weight_of_answer[a];
                slopes_.at()[a - first_answer_] = odds * weight - own_weight;
                figures_.loss += double(own_weight) * (double(log_sum) - score_of(a));
                figures_.violators[side_] += compared(a) < top;
            }
        }
        return sum;
    }

    const Queries* q_ = nullptr;
    int side_ = 0;
    int64_t answer_ = 0, other_ = 0, first_answer_ = 0;  // the next ones; the first of the strip
    Buffer<Real> own_, slopes_;  // of the strip's answers
    Buffer<Real> log_weights_;  // of candidates, with those of their rows
    std::vector<int64_t> order_;
};
