// Gradient steps on a batch, as train/step/plain.py defines them, in one thread.
//
// A chunk's negatives are gathered once; its positives come in strips, so short that what is made of them stays
// in the cache from the gather to the sums of the gradients. Vectors are what the relation's operator and the
// comparator make of rows; pulls are gradients.
//
// Shapes: C chunks of P positives, K candidates of a chunk (its positives, then the drawn ones), of which
// those from `first` on are negatives; D dimension; rows have D numbers in tables, `stride` here.

#include <optional>

#include "chunk.h"
#include "update.h"

// Each strip passes over all negatives: where these are many, it is to be worth it.
constexpr int64_t SHORTEST_STRIP = 64, LONGEST_STRIP = 256, NEGATIVES_PER_ROW = 4;
constexpr size_t STRIP_BYTES = 4 << 20;  // of scores: fewer rows where there are so many negatives

class Workspace {
  public:
    Figures run(const Settings& settings, const Table* tables, const Relations* relations, const Block* blocks,
                int num_blocks, int num_steps) {
        s_ = &settings;
#if HAS_TILES
        std::optional<TileRegisters> registers;
        if (settings.half) registers.emplace();
#endif
        tables_ = tables;
        relations_ = relations;
        columns_ = (s_->dimension + LANES - 1) / LANES * LANES;
        stride_ = columns_ / LANES % 2 ? columns_ : columns_ + LANES;  // rows a power of two apart share cache sets
        figures_ = {};
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
    // Rows of a table, and what they are compared as.
    struct Gathered {
        Buffer<Real> entities, prepared, lengths;
        Buffer<Int> ids;
        Buffer<int> slot;
        const Real* vectors = nullptr;  // the entities themselves where nothing is prepared
    };

    Operator op() const { return Operator(s_->op); }
    Slots& slots(int side) { return slots_[s_->same_table ? 0 : side]; }
    bool operated(int side) const { return !s_->two_sided && side == 1 && op() != NONE; }
    bool prepared(int side) const { return s_->cosine || operated(side); }

    void begin(const Block* blocks, int num_blocks, int num_steps) {
        size_t most[2] = {}, edges = 0;
        for (int i = 0; i < num_blocks; i++) {
            const int64_t num_chunks = blocks[i].num_chunks / num_steps;
            for (int side = 0; side < 2; side++) most[side] += num_chunks * blocks[i].num_candidates[side];
            edges += num_chunks * blocks[i].num_positives;
        }
        if (s_->same_table) most[0] += most[1];
        for (int side = 0; side < 2; side++) {
            if (side == 0 || !s_->same_table) slots(side).begin(most[side], columns_, stride_);
            relation_slots_[side].begin(blocks[0].relations ? edges : 1, columns_, stride_);
        }
    }

    void chunk(const Block& block, int64_t c) {
        int64_t most = 1;
        for (int side = 0; side < 2; side++) {
            begin_negatives(block, c, side);
            most = std::max(most, block.num_candidates[side] - block.first_negative[side]);
        }
        const int64_t fit = int64_t(STRIP_BYTES / sizeof(Real)) / most;
        const int64_t wanted = std::clamp(most / NEGATIVES_PER_ROW, SHORTEST_STRIP, LONGEST_STRIP);
        const int64_t size = std::max<int64_t>(1, std::min(wanted, fit) / WIDTH) * WIDTH;
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
        const ChunkNegatives negatives = {{int(count), int(count), to.ids.at(), squares, sums},
                                          to.vectors,
                                          negative_pulls_[side].of((count + MOST_ROWS) * stride_)};
        with_products([&](auto& products) { products.begin(side, {s_->dimension, columns_, stride_}, negatives); });
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
            if (prepared(side)) std::memset(pulls_[side].of(count * stride_), 0, count * stride_ * sizeof(Real));
            find_relations(block, c * block.num_positives + first, count, side);
        }
        const int num_panels = int((count + WIDTH - 1) / WIDTH);
        Real* query_pulls = query_pulls_.of(size_t(num_panels) * WIDTH * stride_);
        for (int side = 0; side < 2; side++) {
            const Real* queries = make_queries(count, num_panels * WIDTH, side);
            Positives* panels = panels_.of(num_panels);
            for (int j = 0; j < num_panels; j++)
                fill_panel(block.weights + c * block.num_positives + first, count, j * WIDTH, side, queries, panels[j]);
            const Strip strip = {Comparator(s_->comparator), Loss(s_->loss), Real(s_->margin), num_panels,
                                 queries, panels, query_pulls, first == 0};
            with_products([&](auto& products) { products.run(side, strip); });
            pull_edges(count, side, queries, query_pulls);
            for (int64_t p = 0; p < count; p++) pull_back_query(p, side, queries + p * stride_, query_pulls + p * stride_);
            for (int j = 0; j < num_panels; j++) {
                figures_.loss += panels[j].loss;
                figures_.violators[side] += panels[j].violators;
            }
        }
        for (int side = 0; side < 2; side++)
            if (prepared(side))
                for (int64_t p = 0; p < count; p++) pull_back(positives_[side], p, side, pull_of(p, side));
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

    // Every edge's relation on the side whose operator is applied.
    void find_relations(const Block& block, int64_t first, int64_t count, int side) {
        if (!s_->two_sided && side == 0) return;
        int* slot = relation_of_[side].of(count);
        for (int64_t p = 0; p < count; p++) {
            slot[p] = relation_slots_[side].find(block.relations ? block.relations[first + p] : 0);
            relation_slots_[side].counts[slot[p]]++;
        }
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
    Buffer<Real> pulls_[2], negative_pulls_[2], squares_[2], sums_[2];
    Buffer<Real> queries_, query_pulls_, query_lengths_;
    Buffer<int> relation_of_[2];
    Buffer<Positives> panels_;
    Products<Full> full_;
#ifdef HAS_HALF
    Products<Half> half_;
#endif
};

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
    try {
        *figures =
            static_cast<Workspace*>(workspace)->run(*settings, tables, relations, blocks, num_blocks, num_steps);
        return 0;
    } catch (const std::bad_alloc&) {
        return 1;
    }
}
}
