// The most probable pieces of a text under a unigram model of pieces (Kudo, "Subword Regularization", 2018): a Viterbi
// search over the bytes, as `EncodeOptimized` of SentencePiece 0.2.3, whose float32 sums decide between near-equal
// paths.
// A thread searches a span, mostly a word, from a sum of 0. Then a warp adds up the sentence in SentencePiece's order,
// and a span is searched again where rounding could change the choice, 0.03 % of them: see engine/filter/NOTES.md.
#include "grid.cuh"
#include "delimiters.cuh"
#include "utf8.cuh"
#include "word_table.cuh"
#define ENDS 256u
#define SPELT 0u
#define MAX_SUM 100000.0f
#define NONE 0xffffffffu  // in node_B: no piece of the best path starts there
#define UNKNOWN 0u  // in node_B: an unknown character. The root is the end of no piece

struct Trie {
  const u32* units_U;
  const float* score_U;
  float unknown_score, greatest_score;
};

// Of each byte. During the search of a word: of the best piece that ends with the byte, its sum, how much greater that is
// than the next, the byte of the word where the piece starts (-1: there is none yet), and its unit of the trie. Then, of the
// piece of the best path that starts there: its score, the greatest absolute sum before it with which the word need not be
// searched again, and its unit, NONE where no piece of the path starts.
struct Path {
  float* score_B;
  float* safe_B;
  int* start_B;
  u32* node_B;
};

__device__ __forceinline__ void offer(const Path& word, int end, int start, u32 node, float sum) {
  int last = end - 1;
  if (word.start_B[last] < 0) {
    word.safe_B[last] = MAX_SUM;
  } else {
    word.safe_B[last] = fminf(word.safe_B[last], fabsf(__fsub_rn(sum, word.score_B[last])));
    if (!(sum > word.score_B[last])) return;
  }
  word.score_B[last] = sum;
  word.start_B[last] = start;
  word.node_B[last] = node;
}

// Search the word text_B[begin:stop] from the sum before it, and return the greatest absolute value of another
// sum with which its path is surely the same; -1 if a sum passes MAX_SUM.
//
// Let n be the characters, M the greatest absolute sum: M <= (|sum before| + n greatest_score) (1 + 2^-24)^n. An addition
// errs by at most M 2^-24, so the best sums of a byte from two sums before the word differ, these apart, by n M 2^-23 at
// most: the best of values that move by e moves by e. So sums that are more than n M 2^-22 apart keep their order, and
// M <= MAX_SUM fails nowhere. `slack` makes up for the power and for the rounding here.
__device__ float search_word(const u8* text_B, i64 begin, i64 stop, float sum, const Trie& trie, const Path& path) {
  const u8* text = text_B + begin;
  Path word = {path.score_B + begin, path.safe_B + begin, path.start_B + begin, path.node_B + begin};
  int size = (int)(stop - begin), characters = 0;
  for (int i = 0; i < size; ++i) word.start_B[i] = -1;
  u32 root = trie.units_U[0] >> 9;
  for (int i = 0; i < size; ++characters) {
    float so_far = i ? word.score_B[i - 1] : sum;
    if (fabsf(so_far) > MAX_SUM) return -1.0f;
    int width = character_size(text[i]);
    bool has_single = false;
    u32 base = root;
    for (int end = i + 1; end <= size; ++end) {
      u32 c = text[end - 1], node = base ^ c, unit = trie.units_U[node];
      if ((unit & 255) != c) break;
      base = unit >> 9;
      if (!(unit & ENDS)) continue;
      offer(word, end, i, node, __fadd_rn(trie.score_U[node], so_far));
      has_single |= end - i == width;
    }
    if (!has_single) offer(word, i + width, i, UNKNOWN, __fadd_rn(trie.unknown_score, so_far));
    i += width;
  }
  float gap = MAX_SUM;
  for (int end = size; end;) {  // an entry that is read is never before the start of a piece that was written
    int last = end - 1, start = word.start_B[last];
    u32 node = word.node_B[last];
    gap = fminf(gap, word.safe_B[last]);
    for (int i = start + 1; i < end; ++i) word.node_B[i] = NONE;
    word.node_B[start] = node;
    word.score_B[start] = node == UNKNOWN ? trie.unknown_score : trie.score_U[node];
    word.safe_B[start] = MAX_SUM;
    end = start;
  }
  float slack = 0.999f - characters * 1.2e-7f;
  return fmaxf(0.0f, slack * fminf(MAX_SUM, gap * 4194304.0f / characters) - characters * trie.greatest_score);
}

// text_B (B,) u8, pairs_X (X,) u32 bits by the hash of two characters, moved down by `shift`  ->  starts_B (B + 1,) u8:
// whether a word starts there: between two characters that stand next to each other in no piece, so that no piece crosses
// the place; 0 and B are starts. The caller adds the starts of sentences.
extern "C" __global__ void mark_words(const u8* text_B, i64 B, const u32* pairs_X, int shift, u8* starts_B) {
  GRID_STRIDE_LOOP(i, B + 1) {
    bool starts = i == 0 || i == B;
    if (!starts && (text_B[i] & 0xC0) != 0x80) {
      i64 before = i - 1;
      while (before > 0 && (text_B[before] & 0xC0) == 0x80) --before;
      u32 bit = ((code_point(text_B, before) * 0x9E3779B1u ^ code_point(text_B, i)) * 0x85EBCA77u) >> shift;
      starts = !(pairs_X[bit / 32] >> bit % 32 & 1);
    }
    starts_B[i] = starts;
  }
}

// text_B (B,) u8, starts_W (W + 1,) i64 where words start, Trie  ->  Path, of each word as if it began a sentence. A thread
// takes a word.
extern "C" __global__ void search_words(const u8* text_B, const i64* starts_W, i64 W, const u32* units_U,
                                        const float* score_U, float unknown_score, float greatest_score, float* score_B,
                                        float* safe_B, int* start_B, u32* node_B) {
  Trie trie = {units_U, score_U, unknown_score, greatest_score};
  Path path = {score_B, safe_B, start_B, node_B};
  GRID_STRIDE_LOOP(w, W) {
    float safe = search_word(text_B, starts_W[w], starts_W[w + 1], 0.0f, trie, path);
    safe_B[starts_W[w]] = safe;
    if (safe < 0.0f) node_B[starts_W[w]] = UNKNOWN;  // settle_words searches it again, so a piece has to start there
  }
}

struct Spelling {
  const u32* piece_U;
  const u32* code_P;
  u32 unknown;
  __device__ u32 piece(u32 node) const { return node == UNKNOWN ? unknown : piece_U[node]; }
};

// Return the end of the word that starts at the first byte of text_B[first:stop] that is not white space, and move `first`
// there; `first` is `stop` if there is none.
__device__ __forceinline__ i64 next_word(const u8* text_B, i64& first, i64 stop) {
  while (first < stop && is_space(text_B[first])) ++first;
  i64 last = first;
  while (last < stop && !is_space(text_B[last])) ++last;
  return last;
}

// Return how many codes the pieces of the sentence text_B[begin:end] give; put(at, code, first, last) takes each, its place,
// and the word that is to be looked up if the code is SPELT. A warp takes a sentence.
template <class Put>
__device__ __forceinline__ i64 each_code(const u8* text_B, i64 begin, i64 end, const u32* node_B, const Spelling& spelling,
                                         Put put) {
  i64 codes = 0;
  bool was_unknown = false;
  for (i64 window = begin; window < end; window += 32) {
    i64 i = window + lane_id();
    u32 node = i < end ? node_B[i] : NONE;
    bool starts = node != NONE;
    u32 piece = starts ? spelling.piece(node) : 0;
    bool is_unknown = starts && piece == spelling.unknown;
    u32 all = __ballot_sync(FULL_WARP, starts), unknowns = __ballot_sync(FULL_WARP, is_unknown);
    u32 before = all & lanes_below();
    // Unknown pieces next to each other are one, which the first one's lane takes.
    bool follows = before ? unknowns >> (31 - __clz(before)) & 1 : was_unknown;
    bool gives = starts && !(is_unknown && follows);
    u32 code = gives ? spelling.code_P[piece] : SPELT;
    bool is_spelt = gives && code == SPELT;
    int mine = gives;
    i64 stop = i + 1;
    if (is_spelt) {
      while (stop < end && (node_B[stop] == NONE || (is_unknown && spelling.piece(node_B[stop]) == spelling.unknown)))
        ++stop;
      mine = 0;
      for (i64 first = i, last; (last = next_word(text_B, first, stop)) > first; first = last) ++mine;
    }
    int scan = mine;
    for (int d = 1; d < 32; d *= 2) {
      int up = __shfl_up_sync(FULL_WARP, scan, d);
      if (lane_id() >= d) scan += up;
    }
    i64 at = codes + scan - mine;
    if (is_spelt) {
      for (i64 first = i, last; (last = next_word(text_B, first, stop)) > first; first = last) put(at++, SPELT, first, last);
    } else if (gives) {
      put(at, code, i, stop);
    }
    codes += __shfl_sync(FULL_WARP, scan, 31);
    if (all) was_unknown = unknowns >> (31 - __clz(all)) & 1;
  }
  return codes;
}

// text_B (B,) u8, ends_S (S,) i64, starts_B (B + 1,) u8 where words start, Trie, Path of search_words, Spelling  ->  Path of
// the sentences; failed_S (S,) u8, those that were left out before and those whose sum passes MAX_SUM; counts_S (S,) i64 codes
// with the 0, 0 if it failed. A warp adds up the scores of a sentence in order, as the search of the whole sentence does,
// and searches the words again for which the sum before them is too great to be safe.
extern "C" __global__ void settle_words(const u8* text_B, const i64* ends_S, i64 S, const u8* starts_B, const u32* units_U,
                                        const float* score_U, float unknown_score, float greatest_score,
                                        float* score_B, float* safe_B, int* start_B, u32* node_B, const u32* piece_U,
                                        const u32* code_P, u32 unknown, i64* counts_S, u8* failed_S) {
  Trie trie = {units_U, score_U, unknown_score, greatest_score};
  Path path = {score_B, safe_B, start_B, node_B};
  Spelling spelling = {piece_U, code_P, unknown};
  u32 lane = lane_id();
  GRID_STRIDE_LOOP(thread, S * 32) {
    i64 s = thread / 32, begin = s ? ends_S[s - 1] : 0, end = ends_S[s];
    bool failed = failed_S[s];
    float sum = 0.0f;
    for (i64 window = begin; window < end && !failed;) {
      i64 i = window + lane;
      bool starts = i < end && node_B[i] != NONE;
      float score = starts ? score_B[i] : 0.0f, before = 0.0f, after = sum;
      for (int k = 0; k < 32; ++k) {  // where no piece starts, 0 is added
        if (k == lane) before = after;
        after = __fadd_rn(__shfl_sync(FULL_WARP, score, k), after);
      }
      u32 unsure = __ballot_sync(FULL_WARP, starts && fabsf(before) > safe_B[i]);
      if (!unsure) {
        sum = after;
        window += 32;
        continue;
      }
      int k = __ffs(unsure) - 1;
      window += k;
      sum = __shfl_sync(FULL_WARP, before, k);
      if (lane == 0) {
        i64 stop = window + 1;
        while (!starts_B[stop]) ++stop;
        failed = search_word(text_B, window, stop, sum, trie, path) < 0.0f;
      }
      failed = __shfl_sync(FULL_WARP, failed, 0);
      __syncwarp();  // all lanes see what the first one wrote
    }
    i64 codes = 0;
    if (!failed) codes = 1 + each_code(text_B, begin, end, node_B, spelling, [](i64, u32, i64, i64) {});
    if (lane == 0) {
      counts_S[s] = codes;
      failed_S[s] = failed;
    }
  }
}

// What settle_words returned, and the words of a model  ->  codes_T (T,) u32, of which sentence s has the counts_S[s] that
// end at ends_of_codes_S[s]. A warp takes a sentence.
extern "C" __global__ void write_piece_codes(const u8* text_B, i64 B, const i64* ends_S, i64 S, const u64* slots_C, i64 C,
                                             const i64* offsets_V, i64 V1, const u8* data, i64 data_bytes,
                                             const u32* node_B, const u32* piece_U, const u32* code_P, u32 unknown,
                                             const i64* counts_S, const i64* ends_of_codes_S, u32* codes_T) {
  Words words = {slots_C, C, offsets_V, data, data_bytes};
  Spelling spelling = {piece_U, code_P, unknown};
  GRID_STRIDE_LOOP(thread, S * 32) {
    i64 s = thread / 32, begin = s ? ends_S[s - 1] : 0, t = ends_of_codes_S[s] - counts_S[s];
    if (!counts_S[s]) continue;
    i64 codes = each_code(text_B, begin, ends_S[s], node_B, spelling, [&](i64 at, u32 code, i64 first, i64 last) {
      if (code == SPELT)
        code = 1 + (V1 ? find_word(words, text_B, B, first, last)
                       : find_hash(murmur_hash(text_B, B, first, last), slots_C, C));
      codes_T[t + at] = code;
    });
    if (lane_id() == 0) codes_T[t + codes] = 0;
  }
}
