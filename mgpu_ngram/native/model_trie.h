// The n-grams of a model file: the arrays of a trie (core/ngrams/trie.py), and its edge table if the file has one.
#pragma once

#include <map>

#include "edge_table.h"

namespace ngram {

struct Array {
  const char* data = nullptr;
  uint64_t size = 0;  // bytes
};

class ModelTrie : public Model {
 public:
  using Arrays = std::map<std::string, Array>;

  // `starts`: the first node of each order, and the number of nodes. `edges` has no slots if there is no edge table.
  ModelTrie(const Arrays& arrays, const std::vector<uint64_t>& starts, uint64_t fanout, const Edges& edges)
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
    value_bytes_ = centers_ ? code_bytes_ : 4;
    prob_G_ = take(arrays, "prob_G", value_bytes_ * nodes_);
    backoff_M_ = take(arrays, "backoff_M", value_bytes_ * histories_);
    take_samples(arrays);
    if (edges_.slots) {
      const uint32_t bits[] = {edges_.word_bits, edges_.key_bits, edges_.node_bits, edges_.check_bits};
      for (uint32_t n : bits) require(n >= 1 && n <= 64, "its edge table is damaged");
      require(edges_.buckets <= edges_.count / 2 && edges_.node_bits + edges_.filter_bits + edges_.check_bits <= 64 &&
                  edges_.filter_bits >= 1 && edges_.node_bits < 64 && edges_.check_bits < 64 && edges_.word_bits < 64,
              "its edge table is damaged");
      edge_words_V2_ = take(arrays, "edges.words_V2", 16 * words_);
    }
  }

 protected:
  static constexpr uint64_t NONE = ~uint64_t{0};

  struct Child {
    uint64_t node;
    float prob, backoff;
  };

  static const char* take(const Arrays& arrays, const char* name, uint64_t size) {
    const auto found = arrays.find(name);
    require(found != arrays.end() && found->second.size == size, "its arrays do not agree");
    return found->second.data;
  }

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

  Child unigram(uint32_t word) const {
    if (!edge_words_V2_) return {word, value(prob_G_, word, 0), order > 1 ? backoff(word) : -0.0f};
    const char* at = edge_words_V2_ + 16 * size_t{word};
    Child found{word, load<float>(at + 8), load<float>(at + 12)};
    if (found.backoff == 0) found.backoff = load<uint64_t>(at) || is_unknown_added(word, found.prob) ? 0.0f : -0.0f;
    return found;
  }

  // KenLM remembers an <unk> that the ARPA file lacked.
  static bool is_unknown_added(uint64_t node, float prob) { return node == 0 && prob == -100; }

  // The backoff of a history; zeros have KenLM's signs.
  float backoff(uint64_t node) const {
    const float stored = value(backoff_M_, node, 1);
    if (stored != 0) return stored;
    const bool extended = node_at(first_child_M_, node) < node_at(first_child_M_, node + 1);
    return extended || is_unknown_added(node, value(prob_G_, 0, 0)) ? 0.0f : -0.0f;
  }

  // The node of the suffix w2 ... wn of a history w1 ... wn; NONE for a single word.
  uint64_t suffix(uint64_t node) const {
    if (node < words_) return NONE;
    const uint64_t pairs_end = starts_[2], found = node < pairs_end ? word_at(node) : node_at(suffix_L_, node - pairs_end);
    return found < node ? found : NONE;
  }

  // The n-gram of a slot of the edge table.
  Child child_at(const char* slot) const {
    Child child{edges_.child(slot), load<float>(slot + 8), load<float>(slot + 12)};
    if (child.backoff == 0) child.backoff = edges_.filter(slot) ? 0.0f : -0.0f;
    return child;
  }

  // Finds the child of a history by a word, at its place in the edge table if that is known.
  bool find_child(uint64_t node, uint32_t word, const Edges::Place* place, Child& child) const {
    if (edges_.slots) {
      const char* slot = edges_.find(place ? *place : edges_.place(node, word));
      if (!slot || edges_.child(slot) >= nodes_) return false;
      child = child_at(slot);
      return true;
    }
    if (node >= histories_) return false;
    uint64_t first = node_at(first_child_M_, node);
    const uint64_t end = std::min(node_at(first_child_M_, node + 1), nodes_);
    if (first >= end) return false;
    uint64_t last = end - 1;
    if (last - first >= MIN_INDEXED) narrow(word, first, last);
    for (uint64_t size = last - first + 1; size > 1;) {
      const uint64_t half = size / 2;
      first += word_at(first + half) <= word ? half : 0;
      size -= half;
    }
    if (word_at(first) != word) return false;
    child = {first, value(prob_G_, first, 0), first < histories_ ? backoff(first) : -0.0f};
    return true;
  }

  std::vector<uint64_t> starts_, sample_starts_;
  uint64_t fanout_ = 0, nodes_ = 0, histories_ = 0, words_ = 0;
  Edges edges_;
  bool wide_ = false;
  uint32_t code_bytes_ = 0, value_bytes_ = 4;
  const char *word_G_, *prob_G_, *backoff_M_, *first_child_M_, *suffix_L_, *samples_;
  const char *centers_ = nullptr, *words_V2_ = nullptr, *edge_words_V2_ = nullptr;

 private:
  static constexpr uint64_t MIN_INDEXED = 512;  // as in kernels/trie/find_children.py

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
};

}  // namespace ngram
