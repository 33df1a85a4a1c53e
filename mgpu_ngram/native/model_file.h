// The models of core/models/model_file.py: they find words and score them.
#pragma once

#include <memory>

#include "model_trie.h"

namespace ngram {

class ModelFile : public ModelTrie {
 public:
  ModelFile(const Arrays& arrays, const std::vector<uint64_t>& starts, uint64_t fanout, const Edges& edges)
      : ModelTrie(arrays, starts, fanout, edges) {
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
  static constexpr uint32_t PLACES = 8;

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

  std::unique_ptr<GrowingTable> word_ids_;
};

}  // namespace ngram
