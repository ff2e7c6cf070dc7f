// The losses of a panel: WIDTH positives side by side in the lanes, each against the same negatives.
//
// Scores come as dot products and leave as the loss's gradient towards these, in place. Formulas are
// those of graphmill/model/losses.py and graphmill/model/comparators.py.
#pragma once

#include "products.h"

enum Comparator { DOT, L2, SQUARED_L2 };  // cos is dot of vectors of length 1
enum Loss { RANKING, LOGISTIC, SOFTMAX };

constexpr Real MASKED = Real(-1e9);
constexpr Real SMALLEST_SQUARE = Real(1e-30);

struct Pair {  // WIDTH lanes
    Vec v[2];
};

struct Positives {  // of a panel; lanes from `count` on hold none, and have weight 0
    int count;
    Real score[WIDTH], weight[WIDTH];
    Real square[WIDTH];                // of the query's length: for distances
    Int own[WIDTH];                    // the row that is no negative of this one
    Real gradient[WIDTH];              // out: of the loss towards the positive's score
    Real pull[WIDTH];                  // out: sum of the gradients towards the dot products: for distances
    double loss;                       // out
    int64_t violators;                 // out
};

struct Negatives {
    int count;
    const Int* row;
    const Real* square;  // of the lengths: for distances
    Real* pull;          // (+=) as that of the positives
};

template <Comparator COMPARATOR>
inline Vec score_of(Vec dot, Vec query_square, Real square) {
    if constexpr (COMPARATOR == DOT) return dot;
    const Vec distance = query_square + square - dot - dot;
    if constexpr (COMPARATOR == SQUARED_L2) return -distance;
    Vec root;
    const Vec clamped = highest(distance, fill(SMALLEST_SQUARE));
    for (int i = 0; i < LANES; i++) root[i] = std::sqrt(clamped[i]);
    return -root;
}

// The gradient towards the dot product, of a gradient towards the score.
template <Comparator COMPARATOR>
inline Vec towards_dot(Vec gradient, Vec score) {
    if constexpr (COMPARATOR == DOT) return gradient;
    if constexpr (COMPARATOR == SQUARED_L2) return gradient + gradient;
    const Vec root = -score;
    return root * root > SMALLEST_SQUARE * Real(1.0001) ? gradient / root : Vec{};
}

// Sums what leaves the last pass over a panel.
template <Comparator COMPARATOR>
struct Pulls {
    Pair total = {};

    inline void add(const Negatives& negatives, int m, const Pair& pull) {
        if constexpr (COMPARATOR != DOT) {
            negatives.pull[m] += lane_sum(pull.v[0] + pull.v[1]);
            for (int v = 0; v < 2; v++) total.v[v] += pull.v[v];
        }
    }
};

// First pass: scores, without the positives themselves; counts violators, finds each positive's best rival.
template <Comparator COMPARATOR>
inline Pair mask(Real* panel, Positives& positives, const Negatives& negatives) {
    Pair best;
    int64_t violators = 0;
    for (int v = 0; v < 2; v++) {
        const Vec positive = load(positives.score + v * LANES);
        const Vec query_square = load(positives.square + v * LANES);
        const IntVec own = load<IntVec>(positives.own + v * LANES);
        IntVec above = {};
        best.v[v] = fill(MASKED);
        for (int m = 0; m < negatives.count; m++) {
            Real* at = panel + m * WIDTH + v * LANES;
            Vec score = score_of<COMPARATOR>(load(at), query_square, COMPARATOR == DOT ? 0 : negatives.square[m]);
            score = own == negatives.row[m] ? fill(MASKED) : score;
            store(at, score);
            above -= score > positive;
            best.v[v] = highest(best.v[v], score);
        }
        for (int i = 0; i < LANES && v * LANES + i < positives.count; i++) violators += above[i];
    }
    positives.violators = violators;
    return best;
}

template <Comparator COMPARATOR>
inline void softmax(Real* panel, Positives& positives, const Negatives& negatives, const Pair& best) {
    Pair top, scale;
    double loss = 0;
    for (int v = 0; v < 2; v++) {
        const Vec positive = load(positives.score + v * LANES);
        top.v[v] = highest(best.v[v], positive);
        Vec odds = {};
        for (int m = 0; m < negatives.count; m++) {
            Real* at = panel + m * WIDTH + v * LANES;
            const Vec each = exp_negative(load(at) - top.v[v]);
            if constexpr (COMPARATOR != L2) store(at, each);  // a distance's gradient needs its score again
            odds += each;
        }
        const Vec total = odds + exp_negative(positive - top.v[v]);
        const Vec weight = load(positives.weight + v * LANES);
        scale.v[v] = weight / total;
        store(positives.gradient + v * LANES, -odds * scale.v[v]);
        for (int i = 0; i < LANES; i++)  // never log(p): it underflows where a rival is far better
            if (weight[i] != 0) loss += double(weight[i]) * (double(top.v[v][i] - positive[i]) + std::log(total[i]));
    }
    Pulls<COMPARATOR> pulls;
    for (int m = 0; m < negatives.count; m++) {
        Pair pull;
        for (int v = 0; v < 2; v++) {
            Real* at = panel + m * WIDTH + v * LANES;
            const Vec score = load(at);
            const Vec odds = COMPARATOR == L2 ? exp_negative(score - top.v[v]) : score;
            pull.v[v] = towards_dot<COMPARATOR>(odds * scale.v[v], score);
            store(at, pull.v[v]);
        }
        pulls.add(negatives, m, pull);
    }
    for (int v = 0; v < 2; v++) store(positives.pull + v * LANES, pulls.total.v[v]);
    positives.loss = loss;
}

template <Comparator COMPARATOR>
inline void ranking(Real* panel, Positives& positives, const Negatives& negatives, Real margin) {
    Pair loss = {}, gradient = {};
    Pulls<COMPARATOR> pulls;
    for (int m = 0; m < negatives.count; m++) {
        Pair pull;
        for (int v = 0; v < 2; v++) {
            Real* at = panel + m * WIDTH + v * LANES;
            const Vec score = load(at), weight = load(positives.weight + v * LANES);
            const Vec violation = highest(score - (load(positives.score + v * LANES) - margin), Vec{});
            const Vec each = violation > 0 ? weight : Vec{};
            loss.v[v] += violation * weight;
            gradient.v[v] -= each;
            pull.v[v] = towards_dot<COMPARATOR>(each, score);
            store(at, pull.v[v]);
        }
        pulls.add(negatives, m, pull);
    }
    for (int v = 0; v < 2; v++) {
        store(positives.gradient + v * LANES, gradient.v[v]);
        store(positives.pull + v * LANES, pulls.total.v[v]);
    }
    positives.loss = lane_sum(loss.v[0] + loss.v[1]);
}

template <Comparator COMPARATOR>
inline void logistic(Real* panel, Positives& positives, const Negatives& negatives) {
    constexpr int LOG_EVERY = 64;  // the product of so many numbers in [1, 2] is finite
    const Real share = Real(1) / (negatives.count > 1 ? negatives.count : 1);
    double loss = 0;
    Pulls<COMPARATOR> pulls;
    Pair product = {{fill(1), fill(1)}}, linear = {};
    double logs[WIDTH] = {};
    const auto take_logs = [&] {
        for (int i = 0; i < WIDTH; i++) logs[i] += std::log(double(product.v[i / LANES][i % LANES]));
        product = {{fill(1), fill(1)}};
    };
    for (int m = 0; m < negatives.count; m++) {
        Pair pull;
        for (int v = 0; v < 2; v++) {  // softplus(s) = max(s, 0) + log(1 + e^-|s|)
            Real* at = panel + m * WIDTH + v * LANES;
            const Vec score = load(at);
            const Vec small = exp_negative(score > 0 ? -score : score);
            product.v[v] *= small + 1;
            linear.v[v] += highest(score, Vec{});
            const Vec sigmoid = (score > 0 ? fill(1) : small) / (small + 1);
            pull.v[v] = towards_dot<COMPARATOR>(sigmoid * load(positives.weight + v * LANES) * share, score);
            store(at, pull.v[v]);
        }
        pulls.add(negatives, m, pull);
        if (m % LOG_EVERY == LOG_EVERY - 1) take_logs();
    }
    take_logs();
    for (int v = 0; v < 2; v++) store(positives.pull + v * LANES, pulls.total.v[v]);
    for (int i = 0; i < WIDTH; i++) {
        const double score = positives.score[i], weight = positives.weight[i], small = std::exp(-std::fabs(score));
        positives.gradient[i] = Real(-weight * (score > 0 ? small : 1) / (1 + small));
        loss += weight * (std::fmax(-score, 0) + std::log1p(small));
        loss += weight * share * (double(linear.v[i / LANES][i % LANES]) + logs[i]);
    }
    positives.loss = loss;
}

template <Comparator COMPARATOR>
inline void panel_loss(Loss loss, Real margin, Real* panel, Positives& positives, const Negatives& negatives) {
    const Pair best = mask<COMPARATOR>(panel, positives, negatives);
    switch (loss) {
        case RANKING: return ranking<COMPARATOR>(panel, positives, negatives, margin);
        case LOGISTIC: return logistic<COMPARATOR>(panel, positives, negatives);
        case SOFTMAX: return softmax<COMPARATOR>(panel, positives, negatives, best);
    }
}

inline void panel_loss(Comparator comparator, Loss loss, Real margin, Real* panel, Positives& positives,
                       const Negatives& negatives) {
    switch (comparator) {
        case DOT: return panel_loss<DOT>(loss, margin, panel, positives, negatives);
        case L2: return panel_loss<L2>(loss, margin, panel, positives, negatives);
        case SQUARED_L2: return panel_loss<SQUARED_L2>(loss, margin, panel, positives, negatives);
    }
}
