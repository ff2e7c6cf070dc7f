// Gradient steps on a batch, as train/step/plain.py defines them, in one thread.
//
// A chunk's negatives are gathered once; its positives come in strips, so short that what is made of them stays
// in the cache from the gather to the sums of the gradients.
//
// Shapes: C chunks of P positives, K candidates of a chunk (its positives, then the drawn ones), of which
// those from `first` on are negatives; D dimension.

#include "losses.h"
#include "query_step.h"

class EdgeStep : Vectors {
  public:
    Figures run(const Settings& settings, const Table* tables, const Relations* relations, const Block* blocks,
                int num_blocks, int num_steps) {
        Vectors::begin(settings, tables, relations);
        Update update(settings, tables, relations, figures_);
        for (int step = 0; step < num_steps; step++) {
            begin(blocks, num_blocks, num_steps);
            for (int i = 0; i < num_blocks; i++) {
                const int64_t count = blocks[i].num_chunks / num_steps;
                for (int64_t c = step * count; c < (step + 1) * count; c++) chunk(blocks[i], c);
            }
            update.run(slots_, relation_slots_);
        }
        return figures_;
    }

  private:
    void begin(const Block* blocks, int num_blocks, int num_steps) {
        size_t most[2] = {}, edges = 0;
        for (int i = 0; i < num_blocks; i++) {
            const int64_t num_chunks = blocks[i].num_chunks / num_steps;
            for (int side = 0; side < 2; side++) most[side] += num_chunks * blocks[i].num_candidates[side];
            edges += num_chunks * blocks[i].num_positives;
        }
        begin_slots(most[0], most[1], blocks[0].relations ? edges : 1);
    }

    void chunk(const Block& block, int64_t c) {
        int64_t most = 1;
        for (int side = 0; side < 2; side++) {
            begin_negatives(block, c, side);
            most = std::max(most, block.num_candidates[side] - block.first_negative[side]);
        }
        const int64_t size = strip_size(most);
        for (int64_t first = 0; first < block.num_positives; first += size)
            strip(block, c, first, std::min(size, block.num_positives - first));
        for (int side = 0; side < 2; side++) end_negatives(block.num_candidates[side] - block.first_negative[side], side);
    }

    void begin_negatives(const Block& block, int64_t c, int side) {
        const int64_t first = block.first_negative[side], count = block.num_candidates[side] - first;
        Gathered& to = negatives_[side];
        gather(block.rows[side] + c * block.num_candidates[side] + first, count, side, to);
        Real* squares = squares_[side].of(count);
        Real* sums = sums_[side].of(count);
        if (s_->comparator != DOT)
            for (int64_t m = 0; m < count; m++) {
                squares[m] = dot(columns_, to.vectors + m * stride_, to.vectors + m * stride_);
                sums[m] = 0;
            }
        of_loss_[side] = {int(count), to.ids.at(), squares, sums};
        begin_products(count, side);
    }

    void end_negatives(int64_t count, int side) {
        const Gathered& of = negatives_[side];
        for (int64_t m = 0; m < count; m++) {
            Real* pull = negative_pulls_[side].at() + m * stride_;
            if (s_->comparator != DOT) add(columns_, pull, of.vectors + m * stride_, -sums_[side].at()[m]);
            pull_back(of, m, side, pull);
        }
    }

    void strip(const Block& block, int64_t c, int64_t first, int64_t count) {
        for (int side = 0; side < 2; side++) {
            gather(block.rows[side] + c * block.num_candidates[side] + first, count, side, positives_[side]);
            for (int64_t p = 0; p < count; p++) slots(side).counts[positives_[side].slot.at()[p]]++;
            begin_pulls(side, count);
            find_relations(block, c * block.num_positives + first, count, side);
        }
        const int num_panels = int((count + WIDTH - 1) / WIDTH);
        Real* query_pulls = query_pulls_.of(size_t(num_panels) * WIDTH * stride_);
        for (int side = 0; side < 2; side++) {
            const Real* queries = make_queries(count, num_panels * WIDTH, side);
            Positives* panels = panels_.of(num_panels);
            for (int j = 0; j < num_panels; j++)
                fill_panel(block.weights + c * block.num_positives + first, count, j * WIDTH, side, queries, panels[j]);
            run_products(side, {num_panels, queries, query_pulls, first == 0}, [&](int j, Real* scores) {
                panel_loss(Comparator(s_->comparator), Loss(s_->loss), Real(s_->margin), scores, panels[j], of_loss_[side]);
            });
            pull_edges(count, side, queries, query_pulls);
            for (int64_t p = 0; p < count; p++) pull_back_query(p, side, queries + p * stride_, query_pulls + p * stride_);
            for (int j = 0; j < num_panels; j++) {
                figures_.loss += panels[j].loss;
                figures_.violators[side] += panels[j].violators;
            }
        }
        for (int side = 0; side < 2; side++) end_pulls(side, count);
    }

    // Every edge's relation on the side whose operator is applied.
    void find_relations(const Block& block, int64_t first, int64_t count, int side) {
        if (!s_->two_sided && side == 0) return;
        int* slot = relation_of_[side].of(count);
        for (int64_t p = 0; p < count; p++) {
            slot[p] = relation_slots_[side].find(block.relations ? block.relations[first + p] : 0);
            relation_slots_[side].counts[slot[p]]++;
        }
    }

    void fill_panel(const Real* weights, int64_t count, int64_t first, int side, const Real* queries, Positives& to) {
        to.count = int(std::min<int64_t>(WIDTH, count - first));
        for (int i = 0; i < WIDTH; i++) {
            const bool some = i < to.count;
            const Real* query = queries + (first + i) * stride_;
            const Real* vector = positives_[side].vectors + (first + i) * stride_;
            to.weight[i] = some ? weights[first + i] : 0;
            to.own[i] = some ? positives_[side].ids.at()[first + i] : -1;
            to.square[i] = some && s_->comparator != DOT ? dot(columns_, query, query) : 0;
            to.score[i] = some ? positive_score(query, vector) : 0;
        }
    }

    Real positive_score(const Real* query, const Real* vector) const {
        if (s_->comparator == DOT) return dot(columns_, query, vector);
        Vec sums = {};
        for (int i = 0; i < columns_; i += LANES) {
            const Vec between = load(query + i) - load(vector + i);
            sums += between * between;
        }
        const Real square = lane_sum(sums);
        return s_->comparator == SQUARED_L2 ? -square : -std::sqrt(std::max(square, SMALLEST_SQUARE));
    }

    // Adds what the edges' own scores pull at, on both ends, and for distances the rest of the queries' pull.
    void pull_edges(int64_t count, int side, const Real* queries, Real* query_pulls) {
        const bool distances = s_->comparator != DOT;
        for (int64_t p = 0; p < count; p++) {
            const Positives& panel = panels_.at()[p / WIDTH];
            const int lane = p % WIDTH;
            const Real* vector = positives_[side].vectors + p * stride_;
            const Real* query = queries + p * stride_;
            Real* to = pull_of(p, side);
            const Real pull = positive_towards_dot(panel.score[lane], panel.gradient[lane]);
            add(columns_, query_pulls + p * stride_, vector, pull);
            add(columns_, to, query, pull);
            if (!distances) continue;
            add(columns_, query_pulls + p * stride_, query, -pull - panel.pull[lane]);
            add(columns_, to, vector, -pull);
        }
    }

    Real positive_towards_dot(Real score, Real gradient) const {
        if (s_->comparator == DOT) return gradient;
        if (s_->comparator == SQUARED_L2) return 2 * gradient;
        return score * score > SMALLEST_SQUARE * Real(1.0001) ? gradient / -score : 0;
    }

    Negatives of_loss_[2] = {};
    Buffer<Real> squares_[2], sums_[2];
    Buffer<Positives> panels_;
};

struct Workspace {
    EdgeStep edges;
    QueryStep queries;
};

// 0, or 1 where memory does not suffice.
template <class F>
int in_registers(const Settings& settings, F&& step) {
    try {
#if HAS_TILES
        std::optional<TileRegisters> registers;
        if (settings.half) registers.emplace();
#endif
        step();
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}

extern "C" {

void* graphmill_workspace() { return new (std::nothrow) Workspace; }

void graphmill_free(void* workspace) { delete static_cast<Workspace*>(workspace); }

int graphmill_bytes_of_real() { return sizeof(Real); }

// Whether products can take their operands in bfloat16.
int graphmill_has_half() {
#if HAS_TILES
    return TileRegisters::are_allowed();
#elif defined(HAS_HALF)
    return 1;
#else
    return 0;
#endif
}

// 0, or 1 where memory does not suffice.
int graphmill_step(void* workspace, const Settings* settings, const Table* tables, const Relations* relations,
                   const Block* blocks, int num_blocks, int num_steps, Figures* figures) {
    return in_registers(*settings, [&] {
        *figures = static_cast<Workspace*>(workspace)->edges.run(*settings, tables, relations, blocks, num_blocks, num_steps);
    });
}

// 0, or 1 where memory does not suffice. Computes gradients.
int graphmill_queries(void* workspace, const Settings* settings, const Table* tables, const Relations* relations,
                      const Queries* queries, Figures* figures) {
    return in_registers(*settings, [&] {
        *figures = static_cast<Workspace*>(workspace)->queries.run(*settings, tables, relations, *queries);
    });
}

// 0, or 1 where memory does not suffice. Moves a part of the rows of the queries before, which may be moved side by side.
int graphmill_update(void* workspace, const Settings* settings, const Table* tables, const Relations* relations,
                     int64_t num_parts, int64_t part, Figures* figures) {
    return in_registers(*settings, [&] {
        *figures = static_cast<Workspace*>(workspace)->queries.update(*settings, tables, relations, num_parts, part);
    });
}

// 0, or 1 where memory does not suffice. Rows of the first table may repeat: their gradients [K, D] add up.
int graphmill_move_rows(void* workspace, const Settings* settings, const Table* tables, int64_t count,
                        const int64_t* rows, const Real* gradients) {
    return in_registers(*settings, [&] {
        static_cast<Workspace*>(workspace)->queries.move(*settings, tables, count, rows, gradients);
    });
}
}
