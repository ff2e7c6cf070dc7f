// What the caller hands over: the structures of train/compiled/compiled_step.py. `lhs` is 0, `rhs` is 1.
#pragma once

#include "vec.h"

extern "C" {

struct Table {
    Real *embeddings, *sums;          // without sums the rows do not move
    int64_t element_wise;             // sums are [N, D], else [N]
    Real *global_value, *global_sum;  // [D], or null; without a sum it does not move
};

struct Relations {  // the operator of one side; static relations have one row, and only those of the rhs unless
                    // they are two-sided; without sums they do not move
    Real *values[2], *sums[2];
};

struct Block {
    int64_t num_chunks, num_positives;  // chunks of all steps, in their order
    const int64_t* rows[2];             // [C, K]
    int64_t num_candidates[2];          // K
    int64_t first_negative[2];
    const int64_t* relations;           // [C, P], or null with static ones
    const Real* weights;                // [C, P]
};

struct Queries {  // and their answers, in the order of their queries
    int64_t side, num_queries, num_answers, num_others, num_candidates;
    int64_t own_start, own_stop;                // rows of answers that count exp(log_own) times
    double log_own;
    const int64_t *entities, *relations;        // [Q]; relations or null with static ones
    const Real *counts, *weights;               // [Q], of the answers
    const int64_t *query_of_answer, *answers;   // [A]
    const Real* weight_of_answer;               // [A]
    const int64_t *query_of_other, *others;     // [O] known answers that are not trained
    const int64_t* candidates;                  // [C], ascending
    const Real* log_weights;                    // [C]
    Real* mass;                                 // [C], out
};

struct Settings {
    int32_t dimension, op, comparator, cosine, loss, two_sided, half, same_table;
    int64_t unregularized;                                     // the first elements of entities
    double margin, lr, relation_lr, max_norm;                  // max_norm 0: none
    double regularization, entity_regularization;
};

struct Figures {
    double loss, reg;
    int64_t violators[2];
};
}
