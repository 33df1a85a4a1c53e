// The models of core/model_file.py: the arrays of a trie (core/trie.py), and its edge table if the file has one.
#pragma once

#include <map>
#include <memory>

#include "model.h"

namespace ngram {

struct Array {
  const char* data = nullptr;
  uint64_t size = 0;  // bytes
};

// kernels/trie/edges.py describes the table.
struct Edges {
  const char* slots = nullptr;
  uint64_t count = 0;  // slots
  uint64_t buckets = 0;
  uint32_t word_bits = 0, key_bits = 0, node_bits = 0, check_bits = 0, filter_bits = 0;

  // The slot of (node, word), or null.
  const char* find(uint64_t node, uint32_t word) const {
    const uint64_t mask = ~uint64_t{0} >> (64 - key_bits);
    const uint32_t half = key_bits / 2;
    uint64_t x = node << word_bits | word;
    x ^= x >> half;
    x = x * 0x9E3779B97F4A7C15ull & mask;
    x ^= x >> half;
    x = x * 0xD6E8FEB86659FD93ull & mask;
    x ^= x >> half;
    x <<= 64 - key_bits;
    const uint64_t step = uint64_t{1} << check_bits;
    uint64_t slot = 2 * upper_product(x, buckets), tag = ~(x * buckets) >> (64 - check_bits);
    const uint32_t shift = node_bits + filter_bits;
    for (; slot < count; ++slot, tag += step) {
      const uint64_t entry = load<uint64_t>(slots + 16 * slot);
      if (entry >> shift > tag) continue;
      return entry && entry >> shift == tag ? slots + 16 * slot : nullptr;
    }
    return nullptr;
  }

  uint64_t child(const char* slot) const { return load<uint64_t>(slot) & ((uint64_t{1} << node_bits) - 1); }
};

class ModelFile : public Model {
 public:
  using Arrays = std::map<std::string, Array>;

  // `starts`: the first node of each order, and the number of nodes. `edges` has no slots if there is no edge table.
  ModelFile(const Arrays& arrays, const std::vector<uint64_t>& starts, uint64_t fanout, const Edges& edges)
      : starts_(starts), fanout_(fanout), edges_(edges) {
    require(starts.size() >= 2 && starts[0] == 0 && fanout >= 2, "its orders are wrong");
    for (size_t n = 1; n < starts.size(); ++n) require(starts[n - 1] <= starts[n], "its orders are wrong");
    order = static_cast<uint32_t>(starts.size() - 1);
    nodes_ = starts.back(), histories_ = starts[order - 1], words_ = starts[1];
    require(nodes_ < uint64_t{1} << 56 && words_ < 0xffffffffu, "it is too large");
    wide_ = nodes_ >= uint64_t{1} << 32;
    const uint64_t node_bytes = wide_ ? 8 : 4, pairs_end = starts[std::min<size_t>(2, order)];
    word_G_ = take(arrays, "word_G", 4 * nodes_);
    first_child_M_ = take(arrays, "first_child_M", node_bytes * (histories_ + 1));
    suffix_L_ = take(arrays, "suffix_L", node_bytes * (histories_ > pairs_end ? histories_ - pairs_end : 0));
    if (arrays.count("centers")) {
      code_bytes_ = arrays.at("prob_G").size == 2 * nodes_ ? 2 : 1;
      centers_ = take(arrays, "centers", uint64_t{8} * (order - 1) << 8 * code_bytes_);
      words_V2_ = take(arrays, "words_V2", 8 * words_);
    }
    const uint64_t value_bytes = centers_ ? code_bytes_ : 4;
    prob_G_ = take(arrays, "prob_G", value_bytes * nodes_);
    backoff_M_ = take(arrays, "backoff_M", value_bytes * histories_);
    take_samples(arrays);
    if (edges_.slots) {
      const uint32_t bits[] = {edges_.word_bits, edges_.key_bits, edges_.node_bits, edges_.check_bits};
      for (uint32_t n : bits) require(n >= 1 && n <= 64, "its edge table is damaged");
      require(edges_.buckets <= edges_.count / 2 && edges_.node_bits + edges_.filter_bits + edges_.check_bits <= 64 &&
                  edges_.filter_bits >= 1 && edges_.node_bits < 64 && edges_.check_bits < 64 && edges_.word_bits < 64,
              "its edge table is damaged");
    }
    index_words(arrays);
    find_markers();
  }

  uint32_t id(const char* word, size_t size) const override {
    const uint64_t hash = murmur_hash(word, size);
    for (uint64_t slot = hash & mask_;; slot = (slot + 1) & mask_) {
      const uint64_t entry = slots_[slot];
      if (!entry) return 0;
      const uint32_t id = static_cast<uint32_t>(entry);
      if (entry >> 32 == hash >> 32 && size == length_of(id) && !std::memcmp(word, word_of(id), size)) return id;
    }
  }

  void begin(History& history) const override {
    clear(history);
    if (order > 1) remember(begin_id, history);
  }

 protected:
  // As in KenLM, from the longest history on, because it usually has the word.
  Scored step_to(const History& in, uint32_t word, History& out) const override {
    uint64_t node = in.numbers == 2 ? uint64_t{in.words()[0]} << 32 | in.words()[1] : NONE, found = word;
    if (node >= histories_) node = NONE;  // a state of another model
    float held[32], prob = unigram_prob(word);
    std::vector<float> more(order > 32 ? order : 0);
    float* missed = order > 32 ? more.data() : held;
    uint32_t misses = 0;
    while (node != NONE && misses < order) {
      const uint64_t child = find_child(node, word, prob);
      if (child != NONE) {
        found = child;
        break;
      }
      missed[misses++] = backoff(node);
      node = suffix(node);
    }
    while (misses) prob += missed[--misses];  // KenLM's order: from the shortest
    const uint32_t matched = order_of(found);
    if (matched == order) {  // an n-gram of the highest order is no history; its longest suffix is
      found = NONE;
      if (node != NONE) {
        float unused;
        node = suffix(node);
        found = node == NONE ? word : find_child(node, word, unused);
      }
    }
    while (found < histories_ && !extends(backoff(found))) found = suffix(found);
    if (found < histories_)
      remember(found, out);
    else
      clear(out);
    return {prob, matched};
  }

 private:
  static constexpr uint64_t NONE = ~uint64_t{0};
  static constexpr uint64_t MIN_INDEXED = 512;  // as in kernels/trie/find_children.py

  static const char* take(const Arrays& arrays, const char* name, uint64_t size) {
    const auto found = arrays.find(name);
    require(found != arrays.end() && found->second.size == size, "its arrays do not agree");
    return found->second.data;
  }

  void take_samples(const Arrays& arrays) {
    const auto found = arrays.find("sample_starts");
    require(found != arrays.end() && found->second.size >= 8, "its index is damaged");
    uint64_t begin = 0, step = 1;
    for (uint64_t t = 0; t < found->second.size / 8; ++t) {
      require(load<uint64_t>(found->second.data + 8 * t) == begin, "its index is damaged");
      sample_starts_.push_back(begin);
      step *= fanout_;
      begin += (nodes_ + step - 1) / step;
    }
    samples_ = take(arrays, "samples", 4 * sample_starts_.back());
  }

  void index_words(const Arrays& arrays) {
    offsets_V_ = take(arrays, "offsets_V", 8 * (words_ + 1));
    const auto data = arrays.find("data");
    require(data != arrays.end() && load<int64_t>(offsets_V_) == 0, "its words are damaged");
    data_ = data->second.data;
    uint64_t size = 4;
    while (size < words_ + words_ / 2) size *= 2;
    slots_.resize(size), mask_ = size - 1;
    for (uint32_t v = 0; v < words_; ++v) {
      const uint64_t begin = load<uint64_t>(offsets_V_ + 8 * size_t{v}), end = load<uint64_t>(offsets_V_ + 8 * (size_t{v} + 1));
      require(begin <= end && end <= data->second.size, "its words are damaged");
      if (!v) continue;  // <unk>
      const uint64_t hash = murmur_hash(data_ + begin, end - begin);
      uint64_t slot = hash & mask_;
      while (slots_[slot]) slot = (slot + 1) & mask_;
      slots_[slot] = hash >> 32 << 32 | v;
    }
  }

  uint64_t length_of(uint32_t v) const { return load<uint64_t>(offsets_V_ + 8 * (size_t{v} + 1)) - load<uint64_t>(offsets_V_ + 8 * size_t{v}); }
  const char* word_of(uint32_t v) const { return data_ + load<uint64_t>(offsets_V_ + 8 * size_t{v}); }

  uint64_t node_at(const char* array, uint64_t i) const {
    return wide_ ? load<uint64_t>(array + 8 * i) : load<uint32_t>(array + 4 * i);
  }

  uint32_t word_at(uint64_t node) const { return load<uint32_t>(word_G_ + 4 * node); }

  uint32_t order_of(uint64_t node) const {
    uint32_t n = 1;
    while (n < order && node >= starts_[n]) ++n;
    return n;
  }

  float value(const char* codes, uint64_t node, uint32_t which) const {
    if (!centers_) return load<float>(codes + 4 * node);
    if (node < words_) return load<float>(words_V2_ + 8 * node + 4 * which);
    const uint32_t code = code_bytes_ == 1 ? static_cast<unsigned char>(codes[node]) : load<uint16_t>(codes + 2 * node);
    const uint64_t row = 2 * (order_of(node) - 2) + which;
    return load<float>(centers_ + 4 * ((row << 8 * code_bytes_) + code));
  }

  float unigram_prob(uint32_t word) const { return value(prob_G_, word, 0); }

  // The backoff of a history; zeros have KenLM's signs.
  float backoff(uint64_t node) const {
    const float stored = value(backoff_M_, node, 1);
    if (stored != 0) return stored;
    const bool extended = node_at(first_child_M_, node) < node_at(first_child_M_, node + 1);
    return extended || (node == 0 && unigram_prob(0) == -100) ? 0.0f : -0.0f;  // an <unk> that the ARPA file lacked
  }

  // The node of the suffix w2 ... wn of a history w1 ... wn; NONE for a single word.
  uint64_t suffix(uint64_t node) const {
    if (node < words_) return NONE;
    const uint64_t pairs_end = starts_[2], found = node < pairs_end ? word_at(node) : node_at(suffix_L_, node - pairs_end);
    return found < node ? found : NONE;
  }

  uint64_t find_child(uint64_t node, uint32_t word, float& prob) const {
    if (edges_.slots) {
      const char* slot = edges_.find(node, word);
      const uint64_t child = slot ? edges_.child(slot) : NONE;
      if (child >= nodes_) return NONE;
      prob = load<float>(slot + 8);
      return child;
    }
    uint64_t first = node_at(first_child_M_, node);
    const uint64_t end = std::min(node_at(first_child_M_, node + 1), nodes_);
    if (first >= end) return NONE;
    uint64_t last = end - 1;
    if (last - first >= MIN_INDEXED) narrow(word, first, last);
    for (uint64_t size = last - first + 1; size > 1;) {
      const uint64_t half = size / 2;
      if (word_at(first + half) <= word) first += half;
      size -= half;
    }
    if (word_at(first) != word) return NONE;
    prob = value(prob_G_, first, 0);
    return first;
  }

  // Narrows a long range of siblings to at most `fanout` of them, among which the word is if it is there.
  void narrow(uint32_t word, uint64_t& first, uint64_t& last) const {
    size_t t = 0;
    uint64_t step = 1;
    while (t + 1 < sample_starts_.size() && last / step - first / step > fanout_) step *= fanout_, ++t;
    uint64_t low = first / step, high = last / step;
    while (t > 0) {
      const char* level = samples_ + 4 * sample_starts_[t - 1];
      while (low < high) {
        const uint64_t middle = (low + high + 1) / 2;
        if (load<uint32_t>(level + 4 * middle) <= word)
          low = middle;
        else
          high = middle - 1;
      }
      --t, step /= fanout_;
      const uint64_t begin = low * fanout_;
      low = std::max(begin, first / step), high = std::min(begin + fanout_ - 1, last / step);
    }
    first = low, last = high;
  }

  void remember(uint64_t node, History& history) const {
    history.length = order_of(node), history.numbers = 2;
    history.words()[0] = static_cast<uint32_t>(node >> 32), history.words()[1] = static_cast<uint32_t>(node);
  }

  std::vector<uint64_t> starts_, sample_starts_;
  uint64_t fanout_ = 0, nodes_ = 0, histories_ = 0, words_ = 0;
  Edges edges_;
  bool wide_ = false;
  uint32_t code_bytes_ = 0;
  const char *word_G_, *prob_G_, *backoff_M_, *first_child_M_, *suffix_L_, *samples_, *offsets_V_, *data_;
  const char *centers_ = nullptr, *words_V2_ = nullptr;
  std::vector<uint64_t> slots_;  // the upper half of a word's hash, then its id; 0 in an empty slot
  uint64_t mask_ = 0;
};

}  // namespace ngram
