// What the three kinds of models share: histories, the score of a word after a history, and text cut into words.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace ngram {

// A file that this code does not read. Python then reads it with core's readers, which name what is wrong with it.
struct Refused : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool holds, const char* why) {
  if (!holds) throw Refused(why);
}

// Values in files may be unaligned.
template <class T>
inline T load(const void* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

template <class T>
inline void store(void* at, T value) {
  std::memcpy(at, &value, sizeof value);
}

inline uint64_t upper_product(uint64_t a, uint64_t b) {
#if defined(__SIZEOF_INT128__)
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
#else
  const uint64_t low = 0xffffffff, middle = (a & low) * (b & low) >> 32;
  const uint64_t cross = (a >> 32) * (b & low) + middle, other = (a & low) * (b >> 32) + (cross & low);
  return (a >> 32) * (b >> 32) + (cross >> 32) + (other >> 32);
#endif
}

inline void prefetch(const void* at) {
#if defined(__GNUC__)
  __builtin_prefetch(at);
#else
  (void)at;
#endif
}

// The place of the lowest bit that is 1; there is one.
inline uint32_t lowest_bit(uint64_t bits) {
#if defined(__GNUC__)
  return static_cast<uint32_t>(__builtin_ctzll(bits));
#else
  uint32_t at = 0;
  for (; !(bits & 1); bits >>= 1) ++at;
  return at;
#endif
}

// MurmurHash64A with seed 0: KenLM's hash of a word. Memory may be read up to `end`, which may lie past the word.
inline uint64_t murmur_hash(const char* word, size_t size, const char* end) {
  const uint64_t m = 0xc6a4a7935bd1e995;
  uint64_t h = size * m;
  const char* whole = word + size / 8 * 8;
  for (; word != whole; word += 8) {
    uint64_t k = load<uint64_t>(word) * m;
    h = (h ^ (k ^ (k >> 47)) * m) * m;
  }
  if (size & 7) {  // as small loads near the end: memcpy of a varying size takes longer than the rest
    uint64_t k = 0;
    if (end - word >= 8) {
      k = load<uint64_t>(word) & ~(~uint64_t{0} << 8 * (size & 7));
      h = (h ^ k) * m;
      h = (h ^ (h >> 47)) * m;
      return h ^ (h >> 47);
    }
    size_t at = 0;
    if (size & 4) k = load<uint32_t>(word), at = 4;
    if (size & 2) k |= uint64_t{load<uint16_t>(word + at)} << 8 * at, at += 2;
    if (size & 1) k |= uint64_t{static_cast<unsigned char>(word[at])} << 8 * at;
    h = (h ^ k) * m;
  }
  h = (h ^ (h >> 47)) * m;
  return h ^ (h >> 47);
}

inline uint64_t murmur_hash(const char* word, size_t size) { return murmur_hash(word, size, word + size); }

// A backoff of -0 marks an n-gram that no longer one extends: a state need not remember it (lm/blank.hh).
constexpr uint32_t NO_EXTENSION = 0x80000000u;

inline bool extends(float backoff) { return load<uint32_t>(&backoff) != NO_EXTENSION; }

// The words that a state remembers, the last one first, and the backoffs of the histories that they make. For a model
// file, nodes of its trie, of two numbers each, stand in place of words. Short histories need no other memory.
class History {
 public:
  uint32_t length = 0;  // words; 0 is the empty history
  uint32_t numbers = 0;  // numbers in words()

  History() = default;
  History(const History& other) { *this = other; }
  ~History() { std::free(more_); }

  History& operator=(const History& other) {
    if (this == &other) return *this;
    reserve(other.room_);
    length = other.length, numbers = other.numbers;
    std::memcpy(words(), other.words(), 4 * numbers);
    std::memcpy(backoffs(), other.backoffs(), 4 * numbers);
    return *this;
  }

  void reserve(uint32_t room) {
    if (room <= room_) return;
    uint32_t* more = static_cast<uint32_t*>(std::malloc(8 * static_cast<size_t>(room)));
    if (!more) throw std::bad_alloc();
    std::memcpy(more, words(), 4 * numbers);
    std::memcpy(more + room, backoffs(), 4 * numbers);
    std::free(more_);
    more_ = more, room_ = room;
  }

  uint32_t* words() { return more_ ? more_ : held_; }
  const uint32_t* words() const { return more_ ? more_ : held_; }
  float* backoffs() { return reinterpret_cast<float*>(words() + room_); }
  const float* backoffs() const { return reinterpret_cast<const float*>(words() + room_); }

  // Negative, 0 or positive: shorter histories sort first.
  int compare(const History& other) const {
    if (length != other.length) return length < other.length ? -1 : 1;
    for (uint32_t i = 0; i < std::min(numbers, other.numbers); ++i)
      if (words()[i] != other.words()[i]) return words()[i] < other.words()[i] ? -1 : 1;
    return static_cast<int>(numbers > other.numbers) - static_cast<int>(numbers < other.numbers);
  }

  uint64_t hash() const { return murmur_hash(reinterpret_cast<const char*>(words()), 4 * numbers); }

 private:
  static constexpr uint32_t HELD = 10;  // up to order 6, which KenLM loads as it is distributed
  uint32_t room_ = HELD;
  uint32_t* more_ = nullptr;
  uint32_t held_[2 * HELD] = {};
};

struct Scored {
  float prob;
  uint32_t length;  // words of the longest match
};

constexpr size_t BLOCK = 64;  // words that are scored at once

class Model {
 public:
  virtual ~Model() = default;

  uint32_t order = 0;
  uint32_t begin_id = 0, end_id = 0;  // <s>, </s>

  // The id of the word with a murmur_hash, 0 if it is unknown.
  virtual uint32_t id_of(uint64_t hash) const = 0;

  // Words of a file that an earlier one repeats; only mapped files of KenLM have such words.
  virtual uint64_t repeated_words() const { return 0; }

  uint32_t id(const char* word, size_t size) const { return id_of(murmur_hash(word, size)); }

  virtual void find_ids(const uint64_t* hashes, size_t count, uint32_t* ids) const {
    for (size_t i = 0; i < count; ++i) ids[i] = id_of(hashes[i]);
  }

  // Scores words of a sentence. `histories[now]` precedes them, and then precedes the words after them.
  virtual void score(const uint32_t* ids, size_t count, History* histories, unsigned& now, Scored* scores) const = 0;

  // The score of a word after `in`; sets `out`, which may be `in`, to the history after it.
  Scored step(const History& in, uint32_t word, History& out) const {
    if (&in != &out) return step_to(in, word, out);
    return step_to(History(in), word, out);
  }

  virtual void begin(History& history) const = 0;

  static void clear(History& history) { history.length = history.numbers = 0; }

  void find_markers() {
    begin_id = id("<s>", 3), end_id = id("</s>", 4);
    require(begin_id && end_id, "it lacks <s> or </s>");
  }

 protected:
  virtual Scored step_to(const History& in, uint32_t word, History& out) const = 0;
};

// A model whose `Search` finds n-grams from the last word back, as KenLM's do (lm/model.cc, FullScore).
template <class Search>
class FromTheLastWord : public Model {
 public:
  void begin(History& history) const override {
    clear(history);
    if (order == 1) return;
    typename Search::Node node;
    typename Search::Entry found;
    search().unigram(begin_id, node, found);
    history.length = history.numbers = 1;
    history.words()[0] = begin_id, history.backoffs()[0] = found.backoff;
  }

  void score(const uint32_t* ids, size_t count, History* histories, unsigned& now, Scored* scores) const override {
    if (is_large)
      for (size_t i = 0; i < std::min(AHEAD, count); ++i) search().fetch(ids, i);
    for (size_t i = 0; i < count; ++i, now ^= 1) {
      if (is_large && i + AHEAD < count) search().fetch(ids, i + AHEAD);
      scores[i] = look_up(histories[now], ids[i], histories[now ^ 1]);
    }
  }

  bool is_large = false;  // larger than caches: entries are fetched from memory before they are needed

 protected:
  Scored step_to(const History& in, uint32_t word, History& out) const override { return look_up(in, word, out); }

 private:
  static constexpr size_t AHEAD = 4;  // words between fetch and use

  const Search& search() const { return static_cast<const Search&>(*this); }

  Scored look_up(const History& in, uint32_t word, History& out) const {
    out.reserve(order);
    const uint32_t context = std::min(in.length, order - 1);
    uint32_t *words = out.words(), length = 1;
    float* backoffs = out.backoffs();
    typename Search::Node node;
    typename Search::Entry found;
    search().unigram(word, node, found);
    float prob = found.prob;
    words[0] = word, backoffs[0] = found.backoff;
    uint32_t kept = order > 1 && extends(found.backoff);
    for (uint32_t n = 0; n < context && found.extended; ++n) {
      if (n + 2 == order) {
        if (search().longest(in.words()[n], node, prob)) length = order;
        break;
      }
      if (!search().middle(n, in.words()[n], node, found)) break;
      prob = found.prob, length = n + 2;
      backoffs[n + 1] = found.backoff;
      if (extends(found.backoff)) kept = length;
    }
    for (uint32_t n = 1; n < kept; ++n) words[n] = in.words()[n - 1];
    out.length = out.numbers = kept;
    for (uint32_t n = length - 1; n < context; ++n) prob += in.backoffs()[n];  // KenLM's order: from the shortest
    return {prob, length};
  }
};

// The words of a text between white space of C's isspace. As in KenLM, a word ends at a NUL byte.
class Words {
 public:
  Words(const char* text, size_t size)
      : at_(text), end_(text + size), window_(text), has_nul_(size && std::memchr(text, 0, size)) {
    look();
  }

  // Finds the murmur_hash of the next words, at most so many; returns how many it found.
  size_t next(uint64_t* hashes, size_t most) {
    for (size_t count = 0; count < most; ++count) {
      if (!go_to(false)) return count;
      const char* start = at_;
      go_to(true);
      size_t size = at_ - start;
      if (has_nul_)
        if (const void* nul = std::memchr(start, 0, size)) size = static_cast<const char*>(nul) - start;
      hashes[count] = murmur_hash(start, size, end_);
    }
    return most;
  }

 private:
  static constexpr ptrdiff_t WINDOW = 64;  // bytes

  // Goes to the next byte that is white space, or that is not; false if none is left.
  bool go_to(bool space) {
    while (true) {
      const ptrdiff_t past = at_ - window_;
      const uint64_t left = past < WINDOW ? (space ? spaces_ : ~spaces_) & ~uint64_t{0} << past : 0;
      if (left) {
        at_ = window_ + lowest_bit(left);
        return at_ < end_;
      }
      if (end_ - window_ <= WINDOW) {
        at_ = end_;
        return false;
      }
      at_ = window_ += WINDOW;
      look();
    }
  }

  // Finds the white space of a window. What follows the text is white space.
  void look() {
    if (end_ - window_ >= WINDOW) {
      spaces_ = spaces_of(window_);
      return;
    }
    char rest[WINDOW];
    std::memset(rest, ' ', WINDOW);
    if (end_ != window_) std::memcpy(rest, window_, end_ - window_);
    spaces_ = spaces_of(rest);
  }

  // A bit for each byte, of eight bytes at a time; sums do not carry from byte to byte.
  static uint64_t spaces_of(const char* text) {
    constexpr uint64_t EACH = 0x0101010101010101;
    uint64_t found = 0;
    for (int i = 0; i < WINDOW / 8; ++i) {
      const uint64_t bytes = load<uint64_t>(text + 8 * i), low = bytes & 0x7f * EACH;
      const uint64_t controls = (low + (0x80 - '\t') * EACH) & ~(low + (0x80 - '\r' - 1) * EACH);
      const uint64_t blanks = ~((low ^ ' ' * EACH) + 0x7f * EACH);
      const uint64_t high = (controls | blanks) & ~bytes & 0x80 * EACH;
      found |= (high >> 7) * 0x0102040810204080 >> 56 << 8 * i;
    }
    return found;
  }

  const char *at_, *end_, *window_;
  uint64_t spaces_ = 0;
  bool has_nul_;
};

constexpr size_t LARGE_BYTES = size_t{4} << 20;

}  // namespace ngram
