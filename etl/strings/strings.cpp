// Distinct strings: hashed, numbered, sorted. etl/strings/table.py says what the table does and why. No
// exception leaves the C functions, which return false where memory ends.
//
// A string is looked up in a table of slots, each a record's address with a tag of its key. A slot and the
// record it points to are two misses of the cache; rows are taken some at a time, so that these overlap.
//
// Anybody can make strings that share a MurmurHash64A, which orders them. So they are looked up by another hash,
// of a secret that each table has anew.

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <vector>

namespace {

using std::int32_t;
using std::int64_t;
using std::size_t;
using std::uint32_t;
using std::uint64_t;
using std::uint8_t;

constexpr uint64_t kM = 0xC6A4A7935BD1E995;
constexpr uint64_t kKindSalt = 0x9E3779B97F4A7C15;
constexpr int kR = 47;
constexpr int kRowsAtOnce = 64;
constexpr size_t kFirstSlots = 1 << 16;
constexpr size_t kArenaBytes = 1 << 22;
constexpr int kAddressBits = 48;
constexpr uint64_t kAddress = (uint64_t{1} << kAddressBits) - 1;

uint64_t word_at(const uint8_t* at) {
  uint64_t word;
  std::memcpy(&word, at, 8);
  return word;
}

// The last `left` < 8 bytes, up to `end`, of a string of `length` bytes: nothing outside of it is read.
uint64_t tail(const uint8_t* end, size_t left, size_t length) {
  if (length >= 8) return word_at(end - 8) >> (64 - 8 * left);
  const uint8_t* at = end - left;
  if (left >= 4) {
    uint32_t low, high;
    std::memcpy(&low, at, 4);
    std::memcpy(&high, end - 4, 4);
    return low | uint64_t{high} << (8 * (left - 4));
  }
  return at[0] | uint64_t{at[left / 2]} << (8 * (left / 2)) | uint64_t{end[-1]} << (8 * (left - 1));
}

// MurmurHash64A, see graphmill/formats/murmur.py.
uint64_t hash_of(const uint8_t* at, size_t length, uint64_t seed) {
  uint64_t value = seed ^ (length * kM);
  size_t left = length;
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t word = word_at(at) * kM;
    word ^= word >> kR;
    value = (value ^ (word * kM)) * kM;
  }
  if (left) value = (value ^ tail(at + left, left, length)) * kM;
  value = (value ^ (value >> kR)) * kM;
  return value ^ (value >> kR);
}

struct Secret {
  uint64_t words[4];
};

uint64_t folded(uint64_t one, uint64_t other) {
  const unsigned __int128 product = static_cast<unsigned __int128>(one) * other;
  return uint64_t(product) ^ uint64_t(product >> 64);
}

// wyhash's products, with constants that nobody knows: to find strings that share it one has to see it.
uint64_t keyed_hash_of(const uint8_t* at, size_t length, const Secret& secret) {
  uint64_t value = secret.words[0] ^ length;
  size_t left = length;
  for (; left > 16; at += 16, left -= 16)
    value = folded(word_at(at) ^ secret.words[1], word_at(at + 8) ^ value);
  const uint64_t one = left >= 8 ? word_at(at) : left ? tail(at + left, left, length) : 0;
  const uint64_t other = left >= 8 ? word_at(at + left - 8) : 0;
  value = folded(one ^ secret.words[1], other ^ value);
  return folded(value ^ secret.words[2], secret.words[3]);
}

bool equal(const uint8_t* one, const uint8_t* other, size_t length) {
  if (length < 8) return !length || tail(one + length, length, length) == tail(other + length, length, length);
  size_t at = 0;
  for (; at + 8 < length; at += 8)
    if (word_at(one + at) != word_at(other + at)) return false;
  return word_at(one + length - 8) == word_at(other + length - 8);
}

// What is known of a distinct string; its bytes follow.
struct Record {
  uint64_t key;
  uint32_t code;
  uint32_t length;
  uint32_t kind;
  uint8_t text[4];
};
constexpr size_t kHead = offsetof(Record, text);

struct Strings {
  uint64_t seed;
  uint64_t hash_mask;
  Secret secret;
  std::vector<uint64_t> slots = std::vector<uint64_t>(kFirstSlots);
  std::vector<const Record*> records;  // by code
  std::vector<std::unique_ptr<uint8_t[]>> arenas;
  uint8_t* free = nullptr;
  size_t num_free = 0;
};

// Slot and tag come of a keyed hash that tells kinds apart.
uint64_t key_of(const Strings& table, const uint8_t* text, size_t length, uint64_t kind) {
  return (keyed_hash_of(text, length, table.secret) & table.hash_mask) ^ (kind * kKindSalt);
}

uint64_t slot_of(uint64_t key, const Record* record) {
  return (key & ~kAddress) | reinterpret_cast<uint64_t>(record);
}

const Record* record_of(uint64_t slot) { return reinterpret_cast<const Record*>(slot & kAddress); }

void make_room(Strings& table, size_t num_more) {
  size_t num_slots = table.slots.size();
  while (2 * (table.records.size() + num_more) > num_slots) num_slots *= 2;
  if (num_slots == table.slots.size()) return;
  std::vector<uint64_t> slots(num_slots);
  for (const Record* record : table.records) {
    size_t at = record->key & (num_slots - 1);
    while (slots[at]) at = (at + 1) & (num_slots - 1);
    slots[at] = slot_of(record->key, record);
  }
  table.slots.swap(slots);
}

const Record* added(Strings& table, const uint8_t* text, size_t length, uint64_t key, uint32_t kind) {
  const size_t num_bytes = (kHead + length + 7) / 8 * 8;
  if (num_bytes > table.num_free) {
    table.num_free = std::max(kArenaBytes, num_bytes);
    table.arenas.emplace_back(new uint8_t[table.num_free]);
    table.free = table.arenas.back().get();
  }
  Record* record = new (table.free) Record{key, uint32_t(table.records.size()), uint32_t(length), kind, {}};
  std::memcpy(table.free + kHead, text, length);
  table.free += num_bytes;
  table.num_free -= num_bytes;
  table.records.push_back(record);
  return record;
}

template <class Offset>
void number(Strings& table, const Offset* offsets, const uint8_t* text, int64_t num, const int32_t* kinds,
            int32_t* codes) {
  make_room(table, num);
  const size_t mask = table.slots.size() - 1;
  uint64_t* slots = table.slots.data();
  uint64_t keys[kRowsAtOnce];
  for (int64_t begin = 0; begin < num; begin += kRowsAtOnce) {
    const int count = int(std::min<int64_t>(kRowsAtOnce, num - begin));
    const Offset* starts = offsets + begin;
    for (int row = 0; row < count; ++row) {
      keys[row] = key_of(table, text + starts[row], starts[row + 1] - starts[row], uint32_t(kinds[begin + row]));
      __builtin_prefetch(slots + (keys[row] & mask), 1);
    }
    for (int row = 0; row < count; ++row) {
      const auto* record = reinterpret_cast<const uint8_t*>(record_of(slots[keys[row] & mask]));
      __builtin_prefetch(record);  // of nothing it does nothing
      __builtin_prefetch(record + 40);
    }
    for (int row = 0; row < count; ++row) {
      const uint8_t* string = text + starts[row];
      const size_t length = starts[row + 1] - starts[row];
      const uint32_t kind = kinds[begin + row];
      size_t at = keys[row] & mask;
      const Record* record = nullptr;
      for (uint64_t slot; (slot = slots[at]); at = (at + 1) & mask) {
        if ((slot ^ keys[row]) & ~kAddress) continue;
        const Record* found = record_of(slot);
        if (found->key == keys[row] && found->length == length && equal(found->text, string, length)) {
          record = found;
          break;
        }
      }
      if (!record) {
        record = added(table, string, length, keys[row], kind);
        slots[at] = slot_of(keys[row], record);
      }
      codes[begin + row] = int32_t(record->code);
    }
  }
}

bool before(const Record* one, const Record* other) {
  const int order = std::memcmp(one->text, other->text, std::min(one->length, other->length));
  return order ? order < 0 : one->length < other->length;
}

struct Entry {
  uint64_t hash;
  const Record* record;
};

// The records of a kind by (hash, bytes): spread by the hash's upper bits, then sorted few by few.
std::vector<Entry> in_order(const Strings& table, uint32_t kind) {
  std::vector<Entry> members;
  members.reserve(table.records.size());
  for (const Record* record : table.records)
    if (record->kind == kind)
      members.push_back({hash_of(record->text, record->length, table.seed) & table.hash_mask, record});
  int bits = 1;
  while ((members.size() >> bits) > 8) ++bits;
  std::vector<size_t> ends((size_t{1} << bits) + 1);
  for (const Entry& member : members) ++ends[(member.hash >> (64 - bits)) + 1];
  for (size_t at = 1; at < ends.size(); ++at) ends[at] += ends[at - 1];
  std::vector<Entry> order(members.size());
  for (const Entry& member : members) order[ends[member.hash >> (64 - bits)]++] = member;
  size_t begin = 0;
  for (size_t at = 0; at + 1 < ends.size(); begin = ends[at++])
    std::sort(order.begin() + begin, order.begin() + ends[at], [](const Entry& one, const Entry& other) {
      return one.hash != other.hash ? one.hash < other.hash : before(one.record, other.record);
    });
  return order;
}

template <class Call>
bool within_memory(Call call) {
  try {
    call();
    return true;
  } catch (const std::bad_alloc&) {
    return false;
  }
}

template <class Value>
void take(const Value* values, int64_t num_values, const int32_t* at, int64_t num, Value* found) {
  for (int64_t row = 0; row < num; ++row) found[row] = values[at[row] + (at[row] < 0 ? num_values : 0)];
}

}  // namespace

extern "C" {

Strings* graphmill_strings(uint64_t seed, uint64_t hash_mask, const uint64_t* secret) {
  try {
    return new Strings{seed, hash_mask, {secret[0], secret[1], secret[2], secret[3]}};
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

void graphmill_strings_free(Strings* table) { delete table; }

bool graphmill_strings_number(Strings* table, const void* offsets, bool large, const uint8_t* text,
                              int64_t num, const int32_t* kinds, int32_t* codes) {
  return within_memory([&] {
    if (large)
      number(*table, static_cast<const int64_t*>(offsets), text, num, kinds, codes);
    else
      number(*table, static_cast<const int32_t*>(offsets), text, num, kinds, codes);
  });
}

// How many strings there are of each kind, and their bytes.
void graphmill_strings_count(const Strings* table, int64_t* counts, int64_t* num_bytes) {
  for (const Record* record : table->records) {
    ++counts[record->kind];
    num_bytes[record->kind] += record->length;
  }
}

// A kind's strings in order: hashes [count], offsets [count + 1], text; and in `position_of`, by code, each
// one's place, counted from `first`.
bool graphmill_strings_order(const Strings* table, int32_t kind, int32_t first, uint64_t* hashes,
                             int64_t* offsets, uint8_t* text, int32_t* position_of) {
  return within_memory([&] {
    constexpr size_t kAhead = 16;
    const std::vector<Entry> order = in_order(*table, uint32_t(kind));
    int64_t num_bytes = 0;
    for (size_t at = 0; at < order.size(); ++at) {
      if (at + kAhead < order.size()) __builtin_prefetch(order[at + kAhead].record);
      const Record* record = order[at].record;
      hashes[at] = order[at].hash;
      offsets[at] = num_bytes;
      std::memcpy(text + num_bytes, record->text, record->length);
      num_bytes += record->length;
      position_of[record->code] = first + int32_t(at);
    }
    offsets[order.size()] = num_bytes;
  });
}

void graphmill_hash(const void* offsets, bool large, const uint8_t* text, int64_t num, uint64_t seed,
                    uint64_t* hashes) {
  for (int64_t row = 0; row < num; ++row) {
    const int64_t start = large ? static_cast<const int64_t*>(offsets)[row] : static_cast<const int32_t*>(offsets)[row];
    const int64_t stop = large ? static_cast<const int64_t*>(offsets)[row + 1] : static_cast<const int32_t*>(offsets)[row + 1];
    hashes[row] = hash_of(text + start, stop - start, seed);
  }
}

void graphmill_take_4(const uint32_t* values, int64_t num_values, const int32_t* at, int64_t num,
                      uint32_t* found) {
  take(values, num_values, at, num, found);
}

void graphmill_take_8(const uint64_t* values, int64_t num_values, const int32_t* at, int64_t num,
                      uint64_t* found) {
  take(values, num_values, at, num, found);
}

void graphmill_count(const int32_t* at, int64_t num, int64_t* counts) {
  for (int64_t row = 0; row < num; ++row)
    if (at[row] >= 0) ++counts[at[row]];
}

// Rows of `columns` to `records` [rows, columns], each to the next free place of its group, if it has one.
void graphmill_group(const int32_t* const* columns, int32_t num_columns, const int32_t* groups, int64_t num,
                     int64_t* free, int32_t* records) {
  for (int64_t row = 0; row < num; ++row) {
    if (groups[row] < 0) continue;
    int32_t* record = records + free[groups[row]]++ * num_columns;
    for (int32_t column = 0; column < num_columns; ++column) record[column] = columns[column][row];
  }
}

}  // extern "C"
