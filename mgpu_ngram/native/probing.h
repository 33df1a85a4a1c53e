// KenLM's probing models: hash tables of n-grams, in a mapped file or filled from an ARPA file (lm/search_hashed.hh).
#pragma once

#include <cmath>
#include <memory>

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

// The key of w1 ... wn from that of w2 ... wn; that of a word is its id.
inline uint64_t longer_key(uint64_t key, uint32_t word) {
  return (key * 8978948897894561157ull) ^ ((1 + static_cast<uint64_t>(word)) * 17894857484156487943ull);
}

inline float negative(float prob) {
  const uint32_t bits = load<uint32_t>(&prob) | 0x80000000u;
  return load<float>(&bits);
}

class Probing : public FromTheLastWord<Probing> {
 public:
  using Node = uint64_t;
  struct Entry {
    float prob, backoff;
    bool extended;  // whether a longer n-gram ends with this one
  };

  uint32_t id(const char* word, size_t size) const override {
    const char* found = words.find(murmur_hash(word, size));
    const uint32_t id = found ? load<uint32_t>(found + 8) : 0;
    return id < bound ? id : 0;
  }

  void unigram(uint32_t word, Node& node, Entry& found) const {
    node = word;
    read(unigrams + static_cast<size_t>(word) * unigram_stride, found);
  }

  bool middle(uint32_t n, uint32_t word, Node& node, Entry& found) const {
    node = longer_key(node, word);
    const char* at = tables[n].find(node);
    if (at) read(at + 8, found);
    return at;
  }

  bool longest(uint32_t word, Node node, float& prob) const {
    const char* at = tables.back().find(longer_key(node, word));
    if (at) prob = load<float>(at + 8);
    return at;
  }

  Table words;  // murmur_hash -> id; entries of 12 bytes
  uint32_t bound = 1;  // ids
  const char* unigrams = nullptr;  // log10 probability, backoff
  uint32_t unigram_stride = 8;
  std::vector<Table> tables;  // of orders 2 to N

 private:
  // The sign of a stored probability tells whether a longer n-gram ends with this one; the value is never positive.
  static void read(const char* at, Entry& found) {
    const uint32_t bits = load<uint32_t>(at);
    found.extended = !(bits >> 31);
    found.prob = negative(load<float>(at));
    found.backoff = load<float>(at + 4);
  }
};

}  // namespace ngram
