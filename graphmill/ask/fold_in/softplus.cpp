// log(1 + exp(gap)) of many queries for each id, in one pass over their scores.
//
// Sums have a fixed order, whatever the number of ids: an id has the same bits beside any others.
#include <cstdint>
#include <cstring>

namespace {

constexpr int LANES = 16;
using Vec = float __attribute__((vector_size(4 * LANES)));
using IntVec = int32_t __attribute__((vector_size(4 * LANES)));

constexpr float LARGEST_GAP = 80;  // whose exp is a float32

inline Vec load(const float* from, int count) {
    Vec found = {};
    std::memcpy(&found, from, sizeof(float) * count);
    return found;
}

// e^x for -87 <= x <= 80; 0 below. Relative error about 1e-7 (Cephes' polynomial).
inline Vec exp_of(Vec x) {
    const Vec shifted = x * 1.44269504088896341f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
    const Vec n = shifted - 12582912.0f;
    Vec r = x - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    Vec p = Vec{} + 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    const IntVec found = ((IntVec)shifted << 23) + (IntVec)p;  // p * 2^n
    return x < -87.0f ? Vec{} : (Vec)found;
}

// log(x) for x >= 1, by Cephes' polynomial between the roots of 1/2 and 2.
inline Vec log_of(Vec x) {
    const IntVec bits = (IntVec)x - 0x3f3504f3;  // less the bits of the root of 1/2
    const IntVec exponent = bits >> 23;
    const Vec m = (Vec)((bits & 0x7fffff) + 0x3f3504f3) - 1.0f;
    const Vec n = __builtin_convertvector(exponent, Vec), square = m * m;
    Vec p = Vec{} + 7.0376836292e-2f;
    p = p * m - 1.1514610310e-1f;
    p = p * m + 1.1676998740e-1f;
    p = p * m - 1.2420140846e-1f;
    p = p * m + 1.4249322787e-1f;
    p = p * m - 1.6668057665e-1f;
    p = p * m + 2.0000714765e-1f;
    p = p * m - 2.4999993993e-1f;
    p = p * m + 3.3333331174e-1f;
    return m + (p * m * square - n * 2.12194440e-4f - 0.5f * square) + n * 0.693359375f;
}

}  // namespace

// Each id's sum of weight * log(1 + exp((score - offset) * scale)); its slopes take the place of the scores.
extern "C" void graphmill_softplus(float* score_BQ, const float* offset_Q, const float* weight_Q, float scale,
                                   int64_t num_ids, int64_t num_queries, float* loss_B) {
    for (int64_t id = 0; id < num_ids; id++) {
        float* score = score_BQ + id * num_queries;
        Vec sum = {};
        const auto add = [&](int64_t q, int count) {
            const Vec weight = load(weight_Q + q, count);  // 0 past the end
            Vec gap = (load(score + q, count) - load(offset_Q + q, count)) * scale;
            gap = gap > LARGEST_GAP ? Vec{} + LARGEST_GAP : gap;
            const Vec odds = exp_of(gap), total = odds + 1.0f, inverse = 1.0f / total;
            const Vec lost = ((total - 1.0f) - odds) * inverse;  // what the rounding of the total has added
            sum += weight * (log_of(total) - lost);
            const Vec slope = weight * odds * inverse;
            std::memcpy(score + q, &slope, sizeof(float) * count);
        };
        int64_t q = 0;
        for (; q + LANES <= num_queries; q += LANES) add(q, LANES);
        if (q < num_queries) add(q, int(num_queries - q));
        float loss = 0;
        for (int lane = 0; lane < LANES; lane++) loss += sum[lane];
        loss_B[id] = loss;
    }
}
