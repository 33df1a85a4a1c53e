// KenLM's binary files, as they lie in a memory map (lm/binary_format.cc). core/kenlm/binary_file.py describes the layout.
#pragma once

#include "kenlm_trie.h"
#include "probing.h"

namespace ngram {

class Sections {
 public:
  Sections(const char* data, size_t size) : data_(data), size_(size) {}

  size_t at = 0;

  // The next count * stride bytes.
  const char* take(uint64_t count, uint64_t stride) {
    require(at <= size_ && (!stride || count <= (size_ - at) / stride), "it is truncated");
    const char* start = data_ + at;
    at += count * stride;
    return start;
  }

  void align(size_t bytes) { at = (at + bytes - 1) / bytes * bytes; }

  // Whether `words` strings follow, each with a NUL byte after it. KenLM ignores what follows these.
  bool holds_words(uint64_t words) const {
    const char *text = data_ + at, *end = data_ + size_;
    for (; words && text < end; --words) {
      const void* nul = std::memchr(text, 0, end - text);
      if (!nul) return false;
      text = static_cast<const char*>(nul) + 1;
    }
    return !words;
  }

 private:
  const char* data_;
  size_t size_;
};

inline uint64_t slots_of(uint64_t ngrams, float multiplier) {
  return std::max(ngrams + 1, static_cast<uint64_t>(multiplier * static_cast<float>(ngrams)));
}

inline std::unique_ptr<Model> map_probing(Sections& file, const std::vector<uint64_t>& counts, float multiplier,
                                          bool rest, uint64_t& words) {
  std::unique_ptr<Probing> model(new Probing);
  const char* head = file.take(2, 4);
  words = load<uint32_t>(head + 4);
  require(load<uint32_t>(head) == 0 && words && words <= counts[0] + 1, "its words are damaged");
  model->bound = static_cast<uint32_t>(words);
  model->words = Table(slots_of(counts[0], multiplier), 12);
  model->words.slots = file.take(model->words.buckets, 12);
  const uint32_t more = rest ? 4 : 0;
  model->unigram_stride = 8 + more;
  model->unigrams = file.take(counts[0] + 1, model->unigram_stride);
  for (size_t n = 2; n <= counts.size(); ++n) {
    Table table(slots_of(counts[n - 1], multiplier), n == counts.size() ? 12 : 16 + more);
    table.slots = file.take(table.buckets, table.stride);
    model->tables.push_back(table);
  }
  model->is_large = file.at > LARGE_BYTES;
  return model;
}

// The model of a KenLM binary file in memory, which must stay there.
inline std::unique_ptr<Model> map_kenlm(const char* data, size_t size) {
  static const char VERSION[] = "mmap lm http://kheafield.com/code format version 5\n";
  char sane[88] = {};
  std::memcpy(sane, VERSION, sizeof VERSION);
  const float floats[] = {0, 1, -0.5f};
  const uint32_t integers[] = {1, 0xffffffffu, 0};
  std::memcpy(sane + 56, floats, 12);
  std::memcpy(sane + 68, integers, 12);
  store<uint64_t>(sane + 80, 1);
  Sections file(data, size);
  const char* head = file.take(108, 1);
  require(!std::memcmp(head, sane, sizeof sane), "its header is not that of a KenLM binary model");
  const uint32_t order = static_cast<unsigned char>(head[88]), kind = load<uint32_t>(head + 96);
  const float multiplier = load<float>(head + 92);
  const bool is_trie = kind >= 2, has_words = head[100];
  require(order >= 2 && kind < 6 && multiplier >= 1 && multiplier < 1e6f && load<uint32_t>(head + 104) == is_trie,
          "its header is damaged");
  const char* numbers = file.take(order, 8);
  std::vector<uint64_t> counts(order);
  for (uint32_t n = 0; n < order; ++n) {
    counts[n] = load<uint64_t>(numbers + 8 * n);
    require(counts[n] < size, "it is truncated");  // an n-gram takes a byte or more
  }
  file.align(8);
  uint64_t words = counts[0];
  std::unique_ptr<Model> model = is_trie ? map_trie(file, counts, kind & 1, kind >= 4)
                                         : map_probing(file, counts, multiplier, kind == 1, words);
  require(!has_words || file.holds_words(words), "its words are damaged");
  model->order = order;
  model->find_markers();
  return model;
}

}  // namespace ngram
