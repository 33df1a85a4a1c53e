// A word drawn from the top k or the top p of a row without making the row: as `draw_words`, then the rank of the word
// and the weight above it, from children in order of probability; a word beyond the limit is refused and drawn again
// (rejection sampling, von Neumann, 1951). Of later draws, only words above the one refused count, as with the pivots
// of FlashInfer (Ye et al., 2025).
#include "grid.cuh"
#include "integer_hash.cuh"
#include "draws.cuh"
#include "floats.cuh"
#include "powers.cuh"
#include "sorted_search.cuh"
#include "backoff_levels.cuh"

#define UNROLL 4

__device__ __forceinline__ bool is_above(double value, u32 word, double other, u32 other_word) {
  return value > other || (value == other && word < other_word);
}

// The words of a row by rank, greatest probability first, ties by lower id. All lanes of a warp call the functions.
struct Ranks {
  const Levels& levels;
  const float* prob_G;
  const u32* ranked_V;
  const double* ranked_sums_V;
  i64 left_out;
  double all;  // the weight of all words; below 0: not known yet

  __device__ __forceinline__ double weight(float prob) const {
    double log10 = to_double(prob);
    return log10 > MIN_LOG10 ? raised(log10, levels.inverse) : 0;
  }

  // Return how many single words rank above a word, when their log10 is raised by `log10`; 32 lanes search together.
  __device__ i64 singles_above(double log10, double value, u32 word) const {
    i64 low = 0, high = levels.V;
    while (low < high) {
      i64 step = (high - low + 31) / 32, at = low + lane_id() * step + step - 1;
      bool is = false;
      if (at < high) {
        u32 other = ranked_V[at];
        is = is_above(__dadd_rn(to_double(prob_G[other]), log10), other, value, word);
      }
      low += __popc(__ballot_sync(FULL_WARP, is)) * step;
      high = min(high, low + step - 1);
    }
    return low;
  }

  // Count and weigh the words that rank above a word. Each child of a history counts with its own weight, less that of
  // the same word among the children of the next shorter history.
  __device__ void above(double value, u32 word, i64& count, double& mass) {
    double log10 = 0, sum = 0, covered = 0;
    i64 more = 0;
    for (i64 m = levels.K; m > 0; --m) {
      double lower_log10 = levels.backed_off(log10, m - 1);
      double factor = levels.factor(log10), lower_factor = levels.factor(lower_log10);
      i64 end = levels.end(m), lower_first = levels.first(m - 1), lower_end = levels.end(m - 1);
#pragma unroll UNROLL
      for (i64 i = levels.first(m) + lane_id(); i < end; i += 32) {
        u32 child = levels.word_G[i];
        float prob = prob_G[i];
        i64 at = m == 1 ? (i64)child : first_from(levels.word_G, lower_first, lower_end, child);
        if ((i64)child == left_out) continue;
        float lower_prob = prob_G[at];
        if (is_above(__dadd_rn(to_double(prob), log10), child, value, word)) {
          sum = __dadd_rn(sum, __dmul_rn(weight(prob), factor));
          ++more;
        }
        bool is = is_above(__dadd_rn(to_double(lower_prob), lower_log10), child, value, word);
        if (is || all < 0) {
          double lower = __dmul_rn(weight(lower_prob), lower_factor);
          covered = __dadd_rn(covered, lower);
          if (is) sum = __dadd_rn(sum, -lower), --more;
        }
      }
      log10 = lower_log10;
    }
    for (int d = 16; d > 0; d /= 2) {
      sum = __dadd_rn(sum, __shfl_xor_sync(FULL_WARP, sum, d));
      covered = __dadd_rn(covered, __shfl_xor_sync(FULL_WARP, covered, d));
      more += __shfl_xor_sync(FULL_WARP, more, d);
    }
    if (all < 0) all = __dadd_rn(levels.total, -covered);
    i64 singles = singles_above(log10, value, word);
    count = singles + more;
    if (left_out >= 0 && is_above(__dadd_rn(to_double(prob_G[left_out]), log10), (u32)left_out, value, word)) --count;
    mass = singles ? __dadd_rn(sum, __dmul_rn(ranked_sums_V[singles - 1], levels.factor(log10))) : sum;
  }
};

// As draw_words.cu, and prob_G (G,) f32, ranked_V (V,) u32, ranked_sums_V (V,) f64: see draw_ranked.py  ->  id_H (H,).
// One warp per history. Its lanes draw the same word, then share the children of all histories to find its rank.
extern "C" __global__ void draw_ranked(const CHILD* first_HK, const CHILD* end_HK, const float* backoff_HK, i64 H,
                                       i64 K, const u32* word_G, const float* prob_G, const double* sums_G, i64 V,
                                       const u32* ranked_V, const double* ranked_sums_V, const i64* numbers_H, u64 seed,
                                       double inverse, i64 top_k, double top_p, i64 left_out, i64 tries, int* id_H) {
  extern __shared__ double masses[];
  GRID_STRIDE_LOOP(thread, 32 * H) {
    i64 h = thread / 32;
    Levels levels = {first_HK + h * K, end_HK + h * K, backoff_HK + h * K, K, V, word_G, sums_G, inverse,
                     masses + threadIdx.x};
    levels.weigh();
    Ranks ranks = {levels, prob_G, ranked_V, ranked_sums_V, left_out, -1};
    int id = levels.total > 0 ? NOT_DRAWN : NO_WORD;
    u64 stream = stream_of(seed, (u64)numbers_H[h]);
    double bound = __longlong_as_double(0xfff0000000000000LL);  // -inf; a word that was refused, and its value
    u32 bound_word = 0;
    for (i64 t = 0; id == NOT_DRAWN && t < tries; ++t) {
      i64 level;
      u32 word;
      i64 node = levels.draw(stream, t, level, word);
      if (node < 0) continue;
      double log10 = 0;
      for (i64 m = K; m >= level; --m) log10 = levels.backed_off(log10, m);
      double value = __dadd_rn(to_double(prob_G[node]), log10);
      if (!is_above(value, word, bound, bound_word)) continue;
      i64 count;
      double mass;
      ranks.above(value, word, count, mass);
      if ((top_k == 0 || count < top_k) && (count == 0 || mass < __dmul_rn(top_p, ranks.all))) id = (int)word;
      bound = value, bound_word = word;
    }
    if (lane_id() == 0) id_H[h] = id;
  }
}
