#include "common.cuh"
#include "trie.cuh"

// codes_T (T,) u32, word + 1, 0 between sentences; positions_H (H,) i64
//   ->  first_HK, end_HK (H, K) CHILD, backoff_HK (H, K) f32: see find_histories.py; backoff_M may be null.
// A thread walks down from the first to the last of k + 1 words. Walks of neighbours that begin at the same place of a
// text, for its next histories, go step by step together and read the same words of the trie.
extern "C" __global__ void find_histories(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                          const i64* sample_starts, i64 levels, i64 fanout, i64 M,
                                          const float* backoff_M, i64 K, const u32* codes_T, const i64* positions_H,
                                          i64 H, i64 begin, CHILD* first_HK, CHILD* end_HK, float* backoff_HK) {
  Trie trie = {word_G, first_child_M, samples, sample_starts, levels, fanout, M};
  GRID_STRIDE_LOOP(i, H * K) {
    i64 t = positions_H[i / K], at = t - 1 - i % K, node = -1;
    if (at >= -1) {  // -1 is before the first sentence
      u32 code = at >= 0 ? codes_T[at] : 0;
      node = code ? (i64)code - 1 : begin;
      while (node >= 0 && ++at < t) {
        code = codes_T[at];
        node = code ? find_child(trie, node, code - 1) : -1;
      }
    }
    first_HK[i] = node >= 0 ? first_child_M[node] : 0;
    end_HK[i] = node >= 0 ? first_child_M[node + 1] : 0;
    backoff_HK[i] = node >= 0 && backoff_M ? backoff_M[node] : -0.0f;  // x + -0 is x, even -0
  }
}
