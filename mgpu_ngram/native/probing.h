// KenLM's probing models: hash tables of n-grams, in a mapped file or filled from an ARPA file (lm/search_hashed.hh).
#pragma once

#include <cmath>
#include <memory>

#include "table.h"

namespace ngram {

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

  uint32_t id_of(uint64_t hash) const override {
    const char* found = words.find(hash);
    const uint32_t id = found ? load<uint32_t>(found + 8) : 0;
    return id < bound ? id : 0;
  }

  void find_ids(const uint64_t* hashes, size_t count, uint32_t* ids) const override {
    if (is_large)
      for (size_t i = 0; i < count; ++i) prefetch(words.home(hashes[i]));
    for (size_t i = 0; i < count; ++i) ids[i] = id_of(hashes[i]);
  }

  uint64_t repeated_words() const override {  // lookups find the first slot of a hash
    uint64_t found = 0;
    for (uint64_t b = 0; b < words.buckets; ++b) {
      const char* at = words.slots + b * words.stride;
      const uint64_t hash = load<uint64_t>(at);
      found += hash && words.find(hash) != at;
    }
    return found;
  }

  // Fetches the entries of the shorter n-grams that end with word i.
  void fetch(const uint32_t* ids, size_t i) const {
    prefetch(unigrams + static_cast<size_t>(ids[i]) * unigram_stride);
    uint64_t key = ids[i];
    for (size_t n = 0; n < std::min<size_t>({i, tables.size(), 2}); ++n) {
      key = longer_key(key, ids[i - 1 - n]);
      prefetch(tables[n].home(key));
    }
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
