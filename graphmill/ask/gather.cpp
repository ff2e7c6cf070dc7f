// Strings looked up by number. Each is three loads at random, of its row, its offsets and its text; they are
// done some rows at a time, one kind after the other, and asked for ahead, so that their misses overlap.

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace {

using std::int32_t;
using std::int64_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr int64_t kRowsAtOnce = 256;
constexpr int64_t kAhead = 24;
constexpr int64_t kShort = 32;

// Where each string begins, and where its copy ends; the length of all copies.
template <class Place>
int64_t locate(const Place* place, const int64_t* numbers, int64_t num, const int64_t* offsets,
               int64_t* starts, int64_t* ends) {
  int64_t end = 0;
  for (int64_t begin = 0; begin < num; begin += kRowsAtOnce) {
    const int64_t stop = std::min(begin + kRowsAtOnce, num);
    for (int64_t row = begin; row < std::min(stop + kRowsAtOnce, num); ++row)
      __builtin_prefetch(place + numbers[row]);
    for (int64_t row = begin; row < stop; ++row) {
      starts[row] = int64_t(place[numbers[row]]) - 1;
      __builtin_prefetch(offsets + starts[row]);
    }
    for (int64_t row = begin; row < stop; ++row) {
      const int64_t at = starts[row];
      starts[row] = offsets[at];
      ends[row] = end += offsets[at + 1] - offsets[at];
    }
  }
  return end;
}

// Folds the product of two numbers: each bit of the result depends on all bits of both.
uint64_t mixed(uint64_t left, uint64_t right) {
  const auto product = static_cast<unsigned __int128>(left) * right;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
constexpr uint64_t kOther = 0xD6E8FEB86659FD93;

}  // namespace

extern "C" {

// A number of 64 bits for each string, hashes [num]: the same for equal strings, and hardly for others.
// String k is the bytes offsets[k] to offsets[k + 1] of the text.
void graphmill_hash(const uint8_t* text, const int32_t* offsets, int64_t num, uint64_t* hashes) {
  for (int64_t row = 0; row < num; ++row) {
    const uint8_t* at = text + offsets[row];
    int64_t left = offsets[row + 1] - offsets[row];
    uint64_t hash = mixed(uint64_t(left) ^ kOdd, kOther);
    for (; left >= 8; left -= 8, at += 8) {
      uint64_t word;
      std::memcpy(&word, at, 8);
      hash = mixed(hash ^ word ^ kOdd, kOther);
    }
    uint64_t word = 0;
    std::memcpy(&word, at, left);
    hashes[row] = mixed(hash ^ word, kOdd);
  }
}

// Of strings `numbers` [num]: where they begin in the text, starts [num], and where their copies end, ends
// [num]; all bytes of them. `place` has 1 + the row of each number, of 32 bits or 64.
int64_t graphmill_locate(const void* place, bool is_wide, const int64_t* numbers, int64_t num,
                         const int64_t* offsets, int64_t* starts, int64_t* ends) {
  if (is_wide) return locate(static_cast<const uint64_t*>(place), numbers, num, offsets, starts, ends);
  return locate(static_cast<const uint32_t*>(place), numbers, num, offsets, starts, ends);
}

// The strings so found, one after the other, to `copies`, which has room for 32 bytes more than they take;
// where each begins there, offsets [num + 1].
void graphmill_copy(const uint8_t* text, int64_t num_bytes, const int64_t* starts, const int64_t* ends,
                    int64_t num, uint8_t* copies, int32_t* offsets) {
  int64_t at = 0;
  for (int64_t row = 0; row < num; ++row) {
    if (row + kAhead < num) __builtin_prefetch(text + starts[row + kAhead]);
    offsets[row] = int32_t(at);
    const int64_t length = ends[row] - at;
    const uint8_t* string = text + starts[row];
    if (length <= kShort && starts[row] + kShort <= num_bytes)
      std::memcpy(copies + at, string, kShort);  // the next one covers what is too much
    else
      std::memcpy(copies + at, string, length);
    at = ends[row];
  }
  offsets[num] = int32_t(at);
}

}  // extern "C"
