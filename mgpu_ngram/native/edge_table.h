// The edge table of a model file: a hash table that finds a child of a node by its word.
#pragma once

#include "table.h"

namespace ngram {

// kernels/trie/edges.py describes the table.
struct Edges {
  const char* slots = nullptr;
  uint64_t count = 0;  // slots
  uint64_t buckets = 0;
  uint32_t word_bits = 0, key_bits = 0, node_bits = 0, check_bits = 0, filter_bits = 0;

  // The first slot that a (node, word) may be in, and its tag there.
  struct Place {
    uint64_t slot, tag;
  };

  Place place(uint64_t node, uint32_t word) const {
    const uint64_t mask = ~uint64_t{0} >> (64 - key_bits);
    const uint32_t half = key_bits / 2;
    uint64_t x = node << word_bits | word;
    x ^= x >> half;
    x = x * 0x9E3779B97F4A7C15ull & mask;
    x ^= x >> half;
    x = x * 0xD6E8FEB86659FD93ull & mask;
    x ^= x >> half;
    x <<= 64 - key_bits;
    return {2 * upper_product(x, buckets), ~(x * buckets) >> (64 - check_bits)};
  }

  Place fetch(uint64_t node, uint32_t word) const {
    const Place found = place(node, word);
    prefetch(slots + 16 * found.slot);
    return found;
  }

  // The slot of an n-gram, or null.
  const char* find(const Place& place) const {
    const uint64_t step = uint64_t{1} << check_bits;
    const uint32_t shift = node_bits + filter_bits;
    uint64_t tag = place.tag;
    for (uint64_t slot = place.slot; slot < count; ++slot, tag += step) {
      const uint64_t entry = load<uint64_t>(slots + 16 * slot);
      if (entry >> shift > tag) continue;
      return entry && entry >> shift == tag ? slots + 16 * slot : nullptr;
    }
    return nullptr;
  }

  // The filter of the child's own children; it is empty if the child has none.
  uint64_t filter(const char* slot) const {
    return load<uint64_t>(slot) >> node_bits & ((uint64_t{1} << filter_bits) - 1);
  }

  // The bit of a word in a filter of so many bits (kernels/trie/child_filters.py).
  static uint32_t filter_bit(uint32_t word, uint32_t bits) {
    return static_cast<uint32_t>(uint64_t{word * 0x9E3779B1u} * bits >> 32);
  }

  uint64_t child(const char* slot) const { return load<uint64_t>(slot) & ((uint64_t{1} << node_bits) - 1); }
};

}  // namespace ngram
