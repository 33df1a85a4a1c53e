// The suffix of each n-gram (the n-gram without its first word), among the n-grams of the order below. It is the child,
// by the last word, of the suffix of the n-gram's history, so a search reads the few children of one node.
// Searches in whole tables took several times as long; this kernel is near the limit of random reads: see
// engine/estimate/NOTES.md.
#include "grid.cuh"
#include "sorted_search.cuh"

// See find_suffixes.py. Adds to left_M, which is zero; *missing counts n-grams without a suffix.
extern "C" __global__ void find_suffixes(const u32* word_R, const u32* history_R, i64 R, const u32* word_M,
                                         const u32* first_L1, const u32* suffix_M, u32* suffix_R, u32* left_M,
                                         u32* missing) {
  GRID_STRIDE_LOOP(r, R) {
    u32 word = word_R[r], lower = suffix_M[history_R[r]];
    i64 end = __ldg(first_L1 + lower + 1), at = first_from(word_M, __ldg(first_L1 + lower), end, word);
    if (at < end && __ldg(word_M + at) == word) {
      suffix_R[r] = (u32)at;
      atomicAdd(left_M + at, 1);
    } else {
      atomicAdd(missing, 1);
    }
  }
}
