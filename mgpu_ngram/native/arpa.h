// ARPA files read into KenLM's hash tables, line by line. Lines as lmplz, SRILM and core/models/arpa.py write them are read;
// anything else is refused here and left to core/models/arpa.py, which reads more and names a wrong line.
#pragma once

#include <charconv>
#include <cstdio>
#include <memory>

#include "probing.h"

namespace ngram {

// The model of an ARPA file, with the memory of its tables.
class ArpaModel : public Probing {
 public:
  std::vector<GrowingTable> owned;  // words, then orders 2 to N
  Memory unigram_memory;

  float* values(uint32_t word) { return reinterpret_cast<float*>(unigram_memory.get()) + 2 * size_t{word}; }
};

// Reads a number as core/decimals.py does: the float32 that is nearest to the digits. The drop-in module has a reader of
// its own, because it starts without Numba. std::from_chars alone would do; but with GCC 12 it makes the load of a 50 MB
// ARPA file take 0.33 s of CPU time instead of 0.31 s, and before GCC 12 it switches locales for each number.
inline bool read_number(const char*& text, float& number) {
  static const double POWERS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
  const char* at = text;
  const bool minus = *at == '-';
  at += minus;
  const char* first = at;
  uint64_t digits = 0;
  int64_t scale = 0;
  for (; *at >= '0' && *at <= '9'; ++at) digits = digits * 10 + (*at - '0');
  int64_t count = at - first;
  if (*at == '.') {
    const char* point = ++at;
    for (; *at >= '0' && *at <= '9'; ++at) digits = digits * 10 + (*at - '0');
    scale = point - at;
    count += at - point;
  }
  if (!count) return false;
  if (*at == 'e' || *at == 'E') {
    const char* sign = at + 1;
    const char* power = sign + (*sign == '-' || *sign == '+');
    if (*power >= '0' && *power <= '9') {
      int64_t written = 0;
      for (at = power; *at >= '0' && *at <= '9'; ++at)
        if (written < 100000) written = written * 10 + (*at - '0');
      scale += *sign == '-' ? -written : written;
    }
  }
  if (count <= 19 && digits <= uint64_t{1} << 53 && scale >= -22 && scale <= 22) {
    const double value = scale < 0 ? digits / POWERS[-scale] : digits * POWERS[scale];  // rounded once
    const bool halfway = (load<uint64_t>(&value) & 0x1fffffff) == 0x10000000;  // between two float32
    if (!halfway && (!digits || (value > 1.2e-38 && value < 3.4e38))) {
      number = static_cast<float>(minus ? -value : value);
      text = at;
      return true;
    }
  }
  const auto read = std::from_chars(text, at, number);
  if (read.ec != std::errc() || read.ptr != at) return false;
  text = at;
  return true;
}

class ArpaReader {
 public:
  ArpaReader() : model_(new ArpaModel) {}

  // Reads the next part of the file.
  void feed(const char* text, size_t size) {
    const char* end = text + size;
    if (!rest_.empty()) {
      const char* newline = static_cast<const char*>(std::memchr(text, '\n', size));
      rest_.append(text, newline ? newline + 1 : end);
      if (!newline) return;
      lines(rest_.data(), rest_.data() + rest_.size());
      rest_.clear();
      text = newline + 1;
    }
    const char* stop = end;
    while (stop != text && stop[-1] != '\n') --stop;
    lines(text, stop);
    rest_.assign(stop, end);
  }

  // The model of the whole file; `lacks_unknown`: it has no <unk>, which gets KenLM's log10 probability of -100.
  std::unique_ptr<Model> finish(bool& lacks_unknown) {
    if (!rest_.empty()) {
      rest_ += '\n';
      lines(rest_.data(), rest_.data() + rest_.size());
    }
    require(part_ == END, "it is cut short");
    lacks_unknown = !has_unknown_;
    model_->order = order();
    size_t bytes = 0;
    for (size_t n = 0; n < model_->owned.size(); ++n) {
      const Table& table = model_->owned[n].table;
      bytes += table.buckets * table.stride;
      if (n) model_->tables.push_back(table);
    }
    model_->is_large = bytes > LARGE_BYTES;
    return std::move(model_);
  }

 private:
  enum { BEFORE, COUNTS, HEADER, NGRAMS, END };  // of what the next line is a part
  static constexpr size_t BATCH = 32;  // n-grams whose slots are fetched before the first is stored

  uint32_t order() const { return static_cast<uint32_t>(counts_.size()); }

  void lines(const char* at, const char* end) {
    while (at != end) {
      if (part_ == NGRAMS) {
        at = ngrams(at, end);
        if (at == end) return;
      }
      const char* newline = static_cast<const char*>(std::memchr(at, '\n', end - at));
      std::string line(at, newline);
      if (!line.empty() && line.back() == '\r') line.pop_back();
      at = newline + 1;
      other_line(line);
    }
  }

  // A line that is not an n-gram.
  void other_line(const std::string& line) {
    const bool blank = line.find_first_not_of(" \t\r\v\f") == std::string::npos;
    if (part_ == COUNTS && blank) {
      start_orders();
    } else if (part_ == COUNTS) {
      char after;
      unsigned n;
      unsigned long long count;
      require(std::sscanf(line.c_str(), "ngram %u=%llu%c", &n, &count, &after) == 2 && n == order() + 1 &&
                  count < uint64_t{1} << 40 && n < 1000,
              "a count is wrong");
      counts_.push_back(count);
    } else if (blank) {
      return;
    } else if (part_ == BEFORE) {
      if (line[0] == '#') return;
      require(line == "\\data\\", "it is not an ARPA file");
      part_ = COUNTS;
    } else if (part_ == HEADER) {
      require(line == "\\" + std::to_string(n_ + 1) + "-grams:", "the n-grams of an order are missing");
      start_order();
    } else if (part_ == NGRAMS) {
      require(rows_ == counts_[n_ - 1] && line == (n_ == order() ? "\\end\\" : "\\" + std::to_string(n_ + 1) + "-grams:"),
              "an order has another number of n-grams");
      end_order();
      if (n_ == order())
        part_ = END;
      else
        start_order();
    } else {
      throw Refused("a line follows its end");
    }
  }

  void start_orders() {
    require(!counts_.empty() && counts_[0] < 0xfffffff0u, "its counts are wrong");
    ArpaModel& model = *model_;
    model.unigram_memory = zeros(counts_[0] + 1, 8);
    model.unigrams = model.unigram_memory.get();
    model.owned.emplace_back(counts_[0], 12);
    part_ = HEADER;
  }

  void start_order() {
    part_ = NGRAMS, rows_ = 0, ++n_;
    if (n_ > 1) model_->owned.emplace_back(counts_[n_ - 1], n_ == order() ? 12 : 16);
    ids_.resize(n_ * BATCH);
  }

  void end_order() {
    store_batch();
    ArpaModel& model = *model_;
    if (n_ > 1) return;
    model.words = model.owned[0].table;
    model.bound = static_cast<uint32_t>(next_id_);
    if (!has_unknown_) model.values(0)[0] = -100, model.values(0)[1] = 0;
    model.find_markers();
  }

  // Reads n-grams up to a line that begins with a backslash; returns that line, or the end.
  const char* ngrams(const char* at, const char* end) {
    const bool top = n_ == order();
    while (at != end) {
      if (*at == '\\') return at;
      if (*at == '\n' || (*at == '\r' && at[1] == '\n')) {
        at += 1 + (*at == '\r');
        continue;
      }
      require(rows_ < counts_[n_ - 1], "an order has more n-grams than its count");
      float prob, backoff = 0;
      require(read_number(at, prob) && prob <= 0 && *at == '\t', "a line does not begin with a log10 probability");
      if (n_ == 1)
        at = unigram_word(at + 1);
      else
        at = ngram_words(at);
      if (*at == '\t') {
        ++at;
        require(read_number(at, backoff) && !(top && backoff != 0), "a line does not end with a backoff");
      }
      if (*at == '\r') ++at;
      require(*at == '\n', "a line does not end after its n-gram");
      ++at;
      if (backoff == 0) backoff = -0.0f;
      if (n_ == 1) {
        float* values = model_->values(word_);
        values[0] = negative(prob), values[1] = backoff;
      } else {
        Pending& ngram = pending_[waiting_];
        ngram.prob = negative(prob), ngram.backoff = backoff;
        if (++waiting_ == BATCH) store_batch();
      }
      ++rows_;
    }
    return at;
  }

  static const char* word_end(const char* at) {
    while (static_cast<unsigned char>(*at) > ' ' || !(*at == ' ' || *at == '\t' || *at == '\n' || *at == '\r' || !*at)) ++at;
    return at;
  }

  static bool is_unknown(const char* word, size_t size) {
    return size == 5 && (!std::memcmp(word, "<unk>", 5) || !std::memcmp(word, "<UNK>", 5));
  }

  const char* unigram_word(const char* at) {
    const char* end = word_end(at);
    require(end != at, "a word is missing");
    if (is_unknown(at, end - at)) {
      require(!has_unknown_, "it has <unk> twice");
      has_unknown_ = true, word_ = 0;
      return end;
    }
    require(next_id_ <= counts_[0], "it has too many words");
    char* slot = model_->owned[0].insert(murmur_hash(at, end - at));
    require(slot, "it has a word twice");
    word_ = static_cast<uint32_t>(next_id_++);
    store(slot + 8, word_);
    return end;
  }

  // Reads the words of the next pending n-gram, the last one into its first id.
  const char* ngram_words(const char* at) {
    uint32_t* ids = &ids_[waiting_ * n_];
    for (uint32_t n = 0; n < n_; ++n) {
      const char* start = at + 1;
      require(n ? *at == ' ' : true, "words are not separated by one space");
      at = word_end(start);
      const size_t size = at - start;
      const uint32_t id = size ? model_->id(start, size) : 0;
      require(id || is_unknown(start, size), "a word is not among the 1-grams");
      ids[n_ - 1 - n] = id;
    }
    Pending& ngram = pending_[waiting_];
    ngram.key = ids[0], ngram.history = ids[1];
    for (uint32_t n = 1; n < n_; ++n) {
      ngram.suffix = ngram.key;
      ngram.key = longer_key(ngram.key, ids[n]);
      if (n > 1) ngram.history = longer_key(ngram.history, ids[n]);
    }
    prefetch(model_->owned[n_ - 1].table.home(ngram.key));
    if (n_ == 2) {
      prefetch(model_->values(ids[0]));
      prefetch(model_->values(ids[1]));
    } else {
      prefetch(model_->owned[n_ - 2].table.home(ngram.suffix));
      prefetch(model_->owned[n_ - 2].table.home(ngram.history));
    }
    return at;
  }

  void store_batch() {
    for (size_t i = 0; i < waiting_; ++i) store_ngram(pending_[i], &ids_[i * n_]);
    waiting_ = 0;
  }

  // The values of an n-gram of an order below `n_`: log10 probability, backoff. `ids` begin with the last word.
  char* values(uint64_t key, uint32_t n) const {
    if (n == 1) return reinterpret_cast<char*>(model_->values(static_cast<uint32_t>(key)));
    char* found = model_->owned[n - 1].find(key);
    return found ? found + 8 : nullptr;
  }

  struct Pending {
    uint64_t key, suffix, history;
    float prob, backoff;
  };

  void store_ngram(const Pending& ngram, const uint32_t* ids) {
    char* slot = model_->owned[n_ - 1].insert(ngram.key);
    require(slot, "it has an n-gram twice");
    store(slot + 8, ngram.prob);
    if (n_ < order()) store(slot + 12, ngram.backoff);
    if (char* suffix = values(ngram.suffix, n_ - 1))
      mark_suffix(suffix);
    else
      fill_suffixes(ids);
    char* history = values(ngram.history, n_ - 1);
    require(history, "the history of an n-gram is missing");
    mark_history(history);
  }

  static void mark_suffix(char* values) { store(values, std::fabs(load<float>(values))); }

  static float mark_history(char* values) {
    const float backoff = load<float>(values + 4);
    if (!extends(backoff)) store(values + 4, 0.0f);
    return backoff;
  }

  // Adds the missing suffixes of an n-gram with the probability of backing off (lm/search_hashed.cc, AdjustLower).
  void fill_suffixes(const uint32_t* ids) {
    std::vector<uint64_t> keys(n_);  // of suffixes, by their length
    keys[1] = ids[0];
    for (uint32_t n = 2; n < n_; ++n) keys[n] = longer_key(keys[n - 1], ids[n - 1]);
    uint32_t n = n_ - 1;
    while (!values(keys[n], n)) --n;
    float prob = negative(load<float>(values(keys[n], n)));
    mark_suffix(values(keys[n], n));
    uint64_t history = ids[1];
    for (uint32_t i = 2; i <= n; ++i) history = longer_key(history, ids[i]);
    for (; n < n_ - 1; ++n) {
      if (char* found = values(history, n)) prob += mark_history(found);
      char* slot = model_->owned[n].insert(keys[n + 1]);
      require(slot, "a missing n-gram cannot be filled in");
      store(slot + 8, prob);
      store(slot + 12, -0.0f);
      mark_suffix(slot + 8);
      history = longer_key(history, ids[n + 1]);
    }
  }

  std::unique_ptr<ArpaModel> model_;
  std::string rest_;  // the start of a line whose end is not yet there
  int part_ = BEFORE;
  std::vector<uint64_t> counts_;
  uint32_t n_ = 0;  // the order that is read
  uint64_t rows_ = 0, next_id_ = 1;
  bool has_unknown_ = false;
  uint32_t word_ = 0;
  Pending pending_[BATCH];
  std::vector<uint32_t> ids_;
  size_t waiting_ = 0;
};

}  // namespace ngram
