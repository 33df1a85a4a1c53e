#include "common.cuh"
#include "trie.cuh"

// codes_T (T,) u32, word + 1, 0 between sentences; positions_H (H,) i64
//   ->  first_HK, end_HK (H, K) CHILD, backoff_HK (H, K) f32: see find_histories.py; backoff_M may be null.
// A walk goes down from the first to the last of k + 1 words. A thread has one: walks of neighbours that begin at the
// same place of a text, for its next histories, go step by step together and read the same words of the trie. Few walks
// have a warp each, LANES = 32, for which K is at most 32 and fanout a power of 2 up to 32.
extern "C" __global__ void find_histories(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                          const i64* sample_starts, i64 levels, i64 fanout, i64 M,
                                          const float* backoff_M, i64 K, const u32* codes_T, const i64* positions_H,
                                          i64 H, i64 begin, float neutral, CHILD* first_HK, CHILD* end_HK,
                                          float* backoff_HK) {
  Trie trie = {word_G, first_child_M, samples, sample_starts, levels, fanout, M};
#if LANES == 32
  int log2_fanout = 63 - __clzll(fanout);
  i64 level_start = lane_id() < levels ? sample_starts[lane_id()] : 0;
#define CODE(at) __shfl_sync(FULL_WARP, code_of_lane, (int)(t - 1 - (at)))
#define FIND(node, word) find_child_together(trie, log2_fanout, level_start, node, word)
#else
#define CODE(at) codes_T[at]
#define FIND(node, word) find_child(trie, node, word)
#endif
  GRID_STRIDE_LOOP(thread, H * K * LANES) {
    i64 i = thread / LANES, h = LANES == 32 ? (u32)i / (u32)K : i / K, t = positions_H[h];
    i64 at = t - 1 - (i - h * K), node = -1;
#if LANES == 32
    u32 code_of_lane = lane_id() < K && t > lane_id() ? codes_T[t - 1 - lane_id()] : 0;  // all at once
#endif
    if (at >= -1) {  // -1 is before the first sentence
      u32 code = at >= 0 ? CODE(at) : 0;
      node = code ? (i64)code - 1 : begin;
      while (node >= 0 && ++at < t) {
        code = CODE(at);
        node = code ? FIND(node, code - 1) : -1;
      }
    }
    if (thread % LANES) continue;
    first_HK[i] = node >= 0 ? first_child_M[node] : 0;
    end_HK[i] = node >= 0 ? first_child_M[node + 1] : 0;
    backoff_HK[i] = node >= 0 && backoff_M ? backoff_M[node] : neutral;
  }
}
