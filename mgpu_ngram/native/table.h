// Hash tables with KenLM's layout: in a mapped file, or filled here (util/probing_hash_table.hh).
#pragma once

#include <memory>

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include "model.h"

namespace ngram {

// An open-addressing table: entries begin with a key of 64 bits, 0 in an empty slot.
struct Table {
  const char* slots = nullptr;
  uint64_t buckets = 1;
  uint32_t stride = 0;  // bytes of an entry
  uint64_t inverse = 0;  // of buckets: a product takes a fifth of the time of a division

  Table() = default;
  Table(uint64_t buckets, uint32_t stride) : buckets(buckets), stride(stride), inverse(~uint64_t{0} / buckets) {}

  // The slot of key % buckets, which KenLM gives the key.
  const char* home(uint64_t key) const {
    uint64_t rest = key - upper_product(key, inverse) * buckets;  // below 3 * buckets
    while (rest >= buckets) rest -= buckets;
    return slots + rest * stride;
  }

  // The entry of a key, or null. Ends also in a damaged table without an empty slot.
  const char* find(uint64_t key) const {
    const char *at = home(key), *const first = at;
    while (true) {
      const uint64_t found = load<uint64_t>(at);
      if (found == key) return at;
      if (!found) return nullptr;
      at += stride;
      if (at == slots + buckets * stride) at = slots;
      if (at == first) return nullptr;
    }
  }
};

struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Memory = std::unique_ptr<char, Free>;

// Zeros in large pages where the system has them: a lookup then seldom waits for the address of its page.
inline Memory zeros(uint64_t count, uint64_t size) {
  if (count > SIZE_MAX / size - 1) throw std::bad_alloc();
#if defined(__linux__)
  constexpr size_t PAGE = size_t{2} << 20;
  if (const size_t bytes = count * size; bytes >= PAGE) {
    void* pages = nullptr;
    if (posix_memalign(&pages, PAGE, bytes)) throw std::bad_alloc();
    madvise(pages, bytes, MADV_HUGEPAGE);
    std::memset(pages, 0, bytes);
    return Memory(static_cast<char*>(pages));
  }
#endif
  Memory memory(static_cast<char*>(std::calloc(count + 1, size)));
  if (!memory) throw std::bad_alloc();
  return memory;
}

// A hash table that owns its slots and grows.
class GrowingTable {
 public:
  Table table;

  GrowingTable(uint64_t entries, uint32_t stride) : table(slots_for(entries), stride) {
    memory_ = zeros(table.buckets, stride);
    table.slots = memory_.get();
  }

  char* find(uint64_t key) const { return const_cast<char*>(table.find(key)); }

  // A new entry for a key, or null if the table has the key or cannot hold it.
  char* insert(uint64_t key) {
    if (!key) return nullptr;
    if (10 * (used_ + 1) > 9 * table.buckets) grow();
    char *at = const_cast<char*>(table.home(key)), *end = memory_.get() + table.buckets * table.stride;
    while (const uint64_t found = load<uint64_t>(at)) {
      if (found == key) return nullptr;
      at += table.stride;
      if (at == end) at = memory_.get();
    }
    store(at, key);
    ++used_;
    return at;
  }

 private:
  static uint64_t slots_for(uint64_t entries) { return std::max(entries + entries / 2, entries + 2); }

  void grow() {
    GrowingTable larger(table.buckets, table.stride);
    for (uint64_t i = 0; i < table.buckets; ++i) {
      const char* at = memory_.get() + i * table.stride;
      if (const uint64_t key = load<uint64_t>(at)) std::memcpy(larger.insert(key), at, table.stride);
    }
    std::swap(memory_, larger.memory_);
    table = larger.table;
  }

  Memory memory_;
  uint64_t used_ = 0;
};

}  // namespace ngram
