// The models of core/model_file.py: the arrays of a trie (core/trie.py), and its edge table if the file has one.
#pragma once

#include <map>
#include <memory>

#include "table.h"

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
    index_words(arrays);
    find_markers();
  }

  uint32_t id_of(uint64_t hash) const override {
    const char* found = word_ids_->table.find(hash);
    return found ? load<uint32_t>(found + 8) : 0;
  }

  void find_ids(const uint64_t* hashes, size_t count, uint32_t* ids) const override {
    for (size_t i = 0; i < count; ++i) prefetch(word_ids_->table.home(hashes[i]));
    for (size_t i = 0; i < count; ++i) ids[i] = id_of(hashes[i]);
  }

  // By order, not by word: first the n-grams of two words that end with each word, then those of three, and so on. The
  // searches of an order do not wait for each other, so a processor waits for memory once an order, not once a word.
  void score(const uint32_t* ids, size_t count, History* histories, unsigned& now, Scored* scores) const override {
    if (!count) return;
    std::vector<Child> last;  // the n-grams that end with the last word, the shortest first
    std::vector<Child>* wanted = count == BLOCK ? &last : nullptr;  // shorter blocks end the sentence
    if (edges_.slots)
      score_by_edges(ids, count, histories[now], scores, wanted);
    else
      score_by_children(ids, count, histories[now], scores, wanted);
    if (wanted) remember(last, histories[now]);
  }

  void begin(History& history) const override {
    clear(history);
    if (order == 1) return;
    set_node(history, 0, begin_id);
    history.backoffs()[0] = backoff(begin_id);
    history.length = 1, history.numbers = 2;
  }

 protected:
  // From the longest history on, as it usually has the word. A history holds its node and those of its suffixes, the
  // longest first, and their backoffs.
  Scored step_to(const History& in, uint32_t word, History& out) const override {
    const uint32_t length = usable(in);
    Edges::Place places[PLACES];
    for (uint32_t i = 0; i < std::min(length, PLACES); ++i) {  // all are fetched from memory at once
      if (edges_.slots)
        places[i] = edges_.fetch(node_of(in, i), word);
      else
        prefetch(first_child_M_ + (wide_ ? 8 : 4) * node_of(in, i));
    }
    const Child single = unigram(word);
    Child child = single;
    uint32_t i = 0;
    for (; i < length; ++i)
      if (find_child(node_of(in, i), word, i < PLACES ? &places[i] : nullptr, child)) break;
    float prob = child.prob;
    for (uint32_t n = i; n > 0;) prob += in.backoffs()[--n];  // KenLM's order: from the shortest
    const uint32_t matched = length - i + 1;
    out.reserve(2 * order);
    uint32_t kept = 0;
    for (uint32_t n = matched; n > 0; --n, ++i) {  // the n-grams of n words that end with the word
      if (n == 1)
        child = single;
      else if (n < matched && !find_suffix(in, i, word, places, child))
        break;  // a state of another model
      if (n == order || (!kept && !extends(child.backoff))) continue;
      set_node(out, kept, child.node);
      out.backoffs()[kept++] = child.backoff;
    }
    out.length = kept, out.numbers = 2 * kept;
    return {prob, matched};
  }

 private:
  static constexpr uint64_t NONE = ~uint64_t{0};
  static constexpr uint32_t PLACES = 8;

  struct Child {
    uint64_t node;
    float prob, backoff;
  };

  // A search for the child of a history by a word, word `at` of a block.
  struct Walk {
    uint64_t node, first;  // the history; the first of the children that may be it
    uint32_t size, word, at;  // size: of the children that may be it; at last 1 if there is one, else 0
  };

  void score_by_children(const uint32_t* ids, size_t count, const History& in, Scored* scores,
                         std::vector<Child>* last) const {
    const uint32_t length = usable(in);
    uint64_t ends[BLOCK];  // the n-gram of n words that ends with each word, or NONE
    for (size_t i = 0; i < count; ++i) prefetch(prob_G_ + value_bytes_ * ids[i]);
    for (size_t i = 0; i < count; ++i) ends[i] = ids[i], scores[i] = {value(prob_G_, ids[i], 0), 1};
    if (last) last->push_back(unigram(ids[count - 1]));
    Walk walks[BLOCK];
    for (uint32_t n = 1; n < order; ++n) {
      size_t open = 0;
      uint64_t before = n <= length ? node_of(in, length - n) : NONE;
      for (size_t i = 0; i < count; ++i) {
        walks[open] = {before, 0, 0, ids[i], static_cast<uint32_t>(i)};
        open += before < histories_;
        before = ends[i], ends[i] = NONE;
      }
      if (!open) return;
      find_children(walks, open);
      for (size_t k = 0; k < open; ++k) {  // without branches, which a processor would mispredict
        const Walk& walk = walks[k];
        Scored& scored = scores[walk.at];
        const bool found = walk.size;
        ends[walk.at] = found ? walk.first : NONE;
        const float sum = found ? -0.0f : scored.prob;  // KenLM's order: backoffs from the shortest history on
        const char* values = found ? prob_G_ : backoff_M_;
        const uint64_t node = found ? walk.first : walk.node;
        scored.prob = sum + (centers_ ? value(values, node, !found) : load<float>(values + 4 * node));
        scored.length = found ? n + 1 : scored.length;
      }
      if (const uint64_t node = ends[count - 1]; last && node != NONE)
        last->push_back({node, 0, node < histories_ ? backoff(node) : -0.0f});
    }
  }

  void find_children(Walk* walks, size_t count) const {
    for (size_t k = 0; k < count; ++k) prefetch(first_child_M_ + (wide_ ? 8 : 4) * walks[k].node);
    uint32_t open[BLOCK];
    size_t opened = 0;
    for (size_t k = 0; k < count; ++k) {
      Walk& walk = walks[k];
      walk.first = node_at(first_child_M_, walk.node);
      const uint64_t end = std::min(node_at(first_child_M_, walk.node + 1), nodes_);
      walk.size = end > walk.first ? static_cast<uint32_t>(std::min<uint64_t>(end - walk.first, words_)) : 0;
      prefetch(word_G_ + 4 * (walk.first + walk.size / 2));
      prefetch(backoff_M_ + value_bytes_ * walk.node);
      open[opened] = static_cast<uint32_t>(k);
      opened += walk.size > 1;
    }
    while (opened) {  // all searches in step
      size_t still = 0;
      for (size_t j = 0; j < opened; ++j) {
        Walk& walk = walks[open[j]];
        uint64_t first = walk.first;
        uint32_t size = walk.size;
        for (int step = 0; step < 4; ++step) {
          const uint32_t half = size / 2;
          first += word_at(first + half) <= walk.word ? half : 0;
          size -= half;
        }
        walk.first = first, walk.size = size;
        open[still] = open[j];
        still += size > 1;
      }
      opened = still;
    }
    for (size_t k = 0; k < count; ++k) {
      Walk& walk = walks[k];
      if (!walk.size) continue;
      walk.size = word_at(walk.first) == walk.word;
      prefetch(prob_G_ + value_bytes_ * walk.first);
    }
  }

  // The same in the edge table.
  struct Probe {
    Edges::Place place;
    uint64_t node;
    uint32_t word, at;
    float backoff;  // of the history
  };

  void score_by_edges(const uint32_t* ids, size_t count, const History& in, Scored* scores,
                      std::vector<Child>* last) const {
    const uint32_t length = usable(in);
    const char* ends[BLOCK];  // the slot of the n-gram of n words that ends with each word, or null
    for (size_t i = 0; i < count; ++i) prefetch(edge_words_V2_ + 16 * size_t{ids[i]});
    for (size_t i = 0; i < count; ++i) {
      ends[i] = edge_words_V2_ + 16 * size_t{ids[i]};
      scores[i] = {load<float>(ends[i] + 8), 1};
    }
    if (last) last->push_back(unigram(ids[count - 1]));
    Probe probes[BLOCK];
    for (uint32_t n = 1; n < order; ++n) {
      size_t open = 0;
      if (n <= length) probes[open++] = {{}, node_of(in, length - n), ids[0], 0, in.backoffs()[length - n]};
      const char* before = ends[0];
      ends[0] = nullptr;
      for (size_t i = 1; i < count; ++i) {
        const char* slot = before;
        before = ends[i], ends[i] = nullptr;
        if (!slot) continue;
        const uint64_t filter = n == 1 ? load<uint64_t>(slot) : edges_.filter(slot);
        const float backoff = load<float>(slot + 12);
        const bool open_now = filter >> Edges::filter_bit(ids[i], n == 1 ? 64 : edges_.filter_bits) & 1;
        probes[open] = {{}, n == 1 ? ids[i - 1] : edges_.child(slot), ids[i], static_cast<uint32_t>(i), backoff};
        scores[i].prob += open_now ? -0.0f : backoff;
        open += open_now;
      }
      for (size_t k = 0; k < open; ++k) probes[k].place = edges_.fetch(probes[k].node, probes[k].word);
      for (size_t k = 0; k < open; ++k) {
        const Probe& probe = probes[k];
        Scored& scored = scores[probe.at];
        if (const char* slot = edges_.find(probe.place)) {
          ends[probe.at] = slot;
          scored = {load<float>(slot + 8), n + 1};
        } else {
          scored.prob += probe.backoff;  // KenLM's order: from the shortest history on
        }
      }
      if (last && ends[count - 1]) last->push_back(child_at(ends[count - 1]));
    }
  }

  // Sets a history to what the n-grams that end with its last word, the shortest first, let a model remember.
  void remember(const std::vector<Child>& ending, History& history) const {
    history.reserve(2 * order);
    uint32_t kept = 0;
    for (size_t n = ending.size(); n > 0; --n) {
      const Child& child = ending[n - 1];
      if (!kept && !extends(child.backoff)) continue;
      set_node(history, kept, child.node);
      history.backoffs()[kept++] = child.backoff;
    }
    history.length = kept, history.numbers = 2 * kept;
  }

  // The words of a history that this model may have made.
  uint32_t usable(const History& in) const {
    return in.numbers == 2 * in.length && in.length < order ? in.length : 0;
  }

  static uint64_t node_of(const History& history, uint32_t i) {
    return uint64_t{history.words()[2 * i]} << 32 | history.words()[2 * i + 1];
  }

  static void set_node(History& history, uint32_t i, uint64_t node) {
    history.words()[2 * i] = static_cast<uint32_t>(node >> 32);
    history.words()[2 * i + 1] = static_cast<uint32_t>(node);
  }

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
    const char* offsets_V = take(arrays, "offsets_V", 8 * (words_ + 1));
    const auto data = arrays.find("data");
    require(data != arrays.end(), "its words are damaged");
    const char* text = data->second.data;
    word_ids_.reset(new GrowingTable(words_, 12));
    for (uint32_t v = 0; v < words_; ++v) {
      const uint64_t begin = load<uint64_t>(offsets_V + 8 * size_t{v}), end = load<uint64_t>(offsets_V + 8 * (size_t{v} + 1));
      require(begin <= end && end <= data->second.size, "its words are damaged");
      if (!v) continue;  // <unk>
      char* slot = word_ids_->insert(murmur_hash(text + begin, end - begin));
      require(slot, "it has a word twice");
      store(slot + 8, v);
    }
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

  // Finds the suffix of an n-gram that is given as `child`: the child of history i by the word.
  bool find_suffix(const History& in, uint32_t i, uint32_t word, const Edges::Place* places, Child& child) const {
    if (edges_.slots) return find_child(node_of(in, i), word, i < PLACES ? &places[i] : nullptr, child);
    child.node = child.node < histories_ ? suffix(child.node) : node_of_longest(in, i, word);
    if (child.node >= histories_) return false;
    child.backoff = backoff(child.node);
    return true;
  }

  // The node of the suffix of an n-gram of the highest order, for which a trie stores none.
  uint64_t node_of_longest(const History& in, uint32_t i, uint32_t word) const {
    Child child{NONE, 0, 0};
    find_child(node_of(in, i), word, nullptr, child);
    return child.node;
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

  std::vector<uint64_t> starts_, sample_starts_;
  uint64_t fanout_ = 0, nodes_ = 0, histories_ = 0, words_ = 0;
  Edges edges_;
  bool wide_ = false;
  uint32_t code_bytes_ = 0, value_bytes_ = 4;
  const char *word_G_, *prob_G_, *backoff_M_, *first_child_M_, *suffix_L_, *samples_;
  const char *centers_ = nullptr, *words_V2_ = nullptr, *edge_words_V2_ = nullptr;
  std::unique_ptr<GrowingTable> word_ids_;
};

}  // namespace ngram
