// KenLM's tries: plain, quantised, with array pointers, or both (lm/trie.cc, lm/quantize.cc, lm/bhiksha.cc).
#pragma once

#include <memory>

#include "model.h"

namespace ngram {

inline uint32_t bit_length(uint64_t number) {
  uint32_t bits = 0;
  for (; number; number >>= 1) ++bits;
  return bits;
}

// At most 57 bits from bit `at` on.
inline uint64_t load_bits(const char* base, uint64_t at, uint64_t mask) {
  return load<uint64_t>(base + (at >> 3)) >> (at & 7) & mask;
}

inline uint64_t mask_of(uint32_t bits) { return (uint64_t{1} << bits) - 1; }

// The position in (before, after) of `key` among rising numbers, or `after`. value(i) is number i, from `low` to `high`.
// Numbers are spread evenly, so a guess is near; among few of them, halves are tried, which needs no division.
template <class Value>
uint64_t find_evenly(Value value, int64_t before, int64_t after, uint64_t low, uint64_t high, uint64_t key) {
  constexpr int64_t FEW = 8;
  const int64_t missing = after;
  while (after - before > FEW) {
    const double width = static_cast<double>(after - before - 1);
    const double share = static_cast<double>(key - low) / (static_cast<double>(high - low) + 1);
    const int64_t middle = before + 1 + std::min(static_cast<int64_t>(share * width), after - before - 2);
    const uint64_t found = value(middle);
    if (found == key) return middle;
    if (found < key)
      before = middle, low = found;
    else
      after = middle, high = found;
  }
  int64_t first = before + 1, size = after - first;
  if (size <= 0) return missing;
  while (size > 1) {
    const int64_t half = size / 2;
    first += value(first + half) <= key ? half : 0;
    size -= half;
  }
  return value(first) == key ? first : missing;
}

// The n-grams of an order, as entries of bits: the word before, the values, the first child.
struct Entries {
  const char* base = nullptr;
  uint64_t count = 0, children = 0;
  uint32_t bits = 0;  // of an entry
  uint32_t inline_bits = 0;  // of a child pointer; its high bits follow from `table`
  const char* table = nullptr;
  uint64_t highs = 0;  // numbers in `table`
  const float *probs = nullptr, *backoffs = nullptr;  // values of codes
};

class KenlmTrie : public FromTheLastWord<KenlmTrie> {
 public:
  struct Node {
    uint64_t begin, end;
  };
  struct Entry {
    float prob, backoff;
    bool extended;
  };

  uint32_t id_of(uint64_t hash) const override {
    const auto value = [this](int64_t i) { return load<uint64_t>(hashes + 8 * i); };
    const uint64_t at = find_evenly(value, -1, static_cast<int64_t>(known), 0, ~uint64_t{0}, hash);
    if (at == known) return 0;
    const bool repeated = (at && value(at - 1) == hash) || (at + 1 < known && value(at + 1) == hash);
    return static_cast<uint32_t>(repeated ? find_as_kenlm(hash) : at + 1);
  }

  uint64_t repeated_words() const override {  // their hashes ascend
    uint64_t found = 0;
    for (uint64_t i = 1; i < known; ++i) found += load<uint64_t>(hashes + 8 * i) == load<uint64_t>(hashes + 8 * (i - 1));
    return found;
  }

  void fetch(const uint32_t* ids, size_t i) const { prefetch(unigrams + 16 * static_cast<size_t>(ids[i])); }

  void unigram(uint32_t word, Node& node, Entry& found) const {
    const char* at = unigrams + 16 * static_cast<size_t>(word);
    found.prob = load<float>(at), found.backoff = load<float>(at + 4);
    set(node, load<uint64_t>(at + 8), load<uint64_t>(at + 24), levels[0].count);
    found.extended = node.begin != node.end;
  }

  bool middle(uint32_t n, uint32_t word, Node& node, Entry& found) const {
    const Entries& level = levels[n];
    const uint64_t at = find(level, word, node);
    if (at == node.end) return false;
    uint64_t bit = at * level.bits + word_bits;
    if (level.probs) {
      found.backoff = level.backoffs[load_bits(level.base, bit, mask_of(backoff_bits))];
      found.prob = level.probs[load_bits(level.base, bit + backoff_bits, mask_of(prob_bits))];
    } else {
      found.prob = negative_of(load_bits(level.base, bit, mask_of(31)));
      const uint32_t backoff = static_cast<uint32_t>(load_bits(level.base, bit + 31, mask_of(32)));
      found.backoff = load<float>(&backoff);
    }
    bit += prob_bits + backoff_bits;
    const uint64_t mask = mask_of(level.inline_bits);
    uint64_t begin = load_bits(level.base, bit, mask), end = load_bits(level.base, bit + level.bits, mask);
    if (level.table) {
      begin |= high(level, at) << level.inline_bits;
      end |= high(level, at + 1) << level.inline_bits;
    }
    set(node, begin, end, level.children);
    found.extended = node.begin != node.end;
    return true;
  }

  bool longest(uint32_t word, const Node& node, float& prob) const {
    const Entries& level = levels.back();
    const uint64_t at = find(level, word, node);
    if (at == node.end) return false;
    const uint64_t bits = load_bits(level.base, at * level.bits + word_bits, mask_of(prob_bits));
    prob = level.probs ? level.probs[bits] : negative_of(bits);
    return true;
  }

  const char* hashes = nullptr;
  uint64_t known = 0;  // words with a hash: all but <unk>
  const char* unigrams = nullptr;
  uint32_t word_bits = 0, prob_bits = 31, backoff_bits = 32;
  std::vector<Entries> levels;  // of orders 2 to N

 private:
  // The id of a word that the model lists several times: KenLM's interpolation decides which one its n-grams have
  // (util/sorted_uniform.hh).
  uint64_t find_as_kenlm(uint64_t hash) const {
    uint64_t before = 0, after = known + 1, low = 0, high = ~uint64_t{0};
    while (true) {
      const uint64_t width = after - before - 1;
      const float share = static_cast<float>(hash - low) / static_cast<float>(high - low) * static_cast<float>(width);
      const uint64_t at = before + 1 + std::min(static_cast<uint64_t>(share), width - 1);
      const uint64_t found = load<uint64_t>(hashes + 8 * (at - 1));
      if (found == hash) return at;
      if (found < hash)
        before = at, low = found;
      else
        after = at, high = found;
    }
  }

  static float negative_of(uint64_t bits) {
    const uint32_t whole = static_cast<uint32_t>(bits) | 0x80000000u;
    return load<float>(&whole);
  }

  // A damaged file must not lead outside the entries.
  static void set(Node& node, uint64_t begin, uint64_t end, uint64_t count) {
    node.end = std::min(end, count);
    node.begin = std::min(begin, node.end);
  }

  uint64_t find(const Entries& level, uint32_t word, const Node& node) const {
    if (word > mask_of(word_bits)) return node.end;
    const uint64_t mask = mask_of(word_bits);
    const auto value = [&](int64_t i) { return load_bits(level.base, i * level.bits, mask); };
    uint64_t at =
        find_evenly(value, static_cast<int64_t>(node.begin) - 1, static_cast<int64_t>(node.end), 0, known, word);
    while (at != node.end && at != node.begin && value(at - 1) == word) --at;  // an n-gram that the model lists twice
    return at;
  }

  // The high bits of the pointer of an entry: the numbers of the table that are not above its index, less one.
  static uint64_t high(const Entries& level, uint64_t index) {
    uint64_t low = 0, size = level.highs;
    while (size) {
      const uint64_t half = size / 2;
      if (load<uint64_t>(level.table + 8 * (low + half)) <= index)
        low += half + 1, size -= half + 1;
      else
        size = half;
    }
    return low ? low - 1 : 0;
  }
};

// High bits of pointers that stand in a table and not in the entries: as many as take the fewest bits in all.
inline uint32_t chopped_bits(uint64_t count, uint64_t children, uint32_t most) {
  const uint32_t bits = bit_length(children);
  uint32_t best = 0;
  int64_t least = INT64_MAX;
  for (uint32_t x = 0; x <= std::min(bits, most); ++x) {
    const int64_t cost = static_cast<int64_t>(children >> (bits - x)) * 64 - static_cast<int64_t>(count + 1) * x;
    if (cost < least) least = cost, best = x;
  }
  return best;
}

template <class Sections>
std::unique_ptr<KenlmTrie> map_trie(Sections& file, const std::vector<uint64_t>& counts, bool quantised, bool arrays) {
  std::unique_ptr<KenlmTrie> model(new KenlmTrie);
  const uint32_t order = static_cast<uint32_t>(counts.size());
  const char* section = file.take(1 + counts[0], 8);
  // Lines of <unk> and <UNK> count apart in the header, but have no hash.
  require(counts[0] && load<uint64_t>(section) < counts[0], "its words are damaged");
  model->hashes = section + 8, model->known = load<uint64_t>(section);
  model->levels.resize(order - 1);
  if (quantised) {
    const unsigned char* bits = reinterpret_cast<const unsigned char*>(file.take(8, 1));
    require(bits[0] == 2 && bits[1] >= 1 && bits[1] <= 25 && bits[2] >= 1 && bits[2] <= 25, "its codes are damaged");
    model->prob_bits = bits[1], model->backoff_bits = bits[2];
    for (uint32_t n = 2; n <= order; ++n) {
      Entries& level = model->levels[n - 2];
      level.probs = reinterpret_cast<const float*>(file.take(uint64_t{1} << bits[1], 4));
      if (n < order) level.backoffs = reinterpret_cast<const float*>(file.take(uint64_t{1} << bits[2], 4));
    }
  }
  model->unigrams = file.take(counts[0] + 2, 16);
  model->word_bits = bit_length(counts[0]);
  uint32_t most = 0;
  if (arrays && order > 2) {
    const unsigned char* head = reinterpret_cast<const unsigned char*>(file.take(2, 1));
    require(head[0] == 0, "its pointers are damaged");
    most = head[1];
    file.at -= 2;
  }
  for (uint32_t n = 2; n <= order; ++n) {
    Entries& level = model->levels[n - 2];
    level.count = counts[n - 1];
    level.bits = model->word_bits + model->prob_bits;
    if (n < order) {
      level.children = counts[n];
      const uint32_t chopped = chopped_bits(level.count, level.children, most);
      level.inline_bits = bit_length(level.children) - chopped;
      level.bits += model->backoff_bits + level.inline_bits;
      if (arrays) {
        level.highs = (level.children >> level.inline_bits) + 1;
        const size_t start = file.at;
        file.align(8);
        file.take(8, 1);
        level.table = file.take(level.highs, 8);
        file.at = start;
        file.take(8 * (1 + level.highs) + 7, 1);
      }
    }
    level.base = file.take(((1 + level.count) * level.bits + 7) / 8 + 8, 1);
  }
  model->is_large = file.at > LARGE_BYTES;
  return model;
}

}  // namespace ngram
