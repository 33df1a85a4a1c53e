// The nodes of the last 1 to K words before a position of a text, and their children and backoffs: what a row of
// values, a draw, or the best words of a history start from. A walk goes down the trie by one word after the other.
#include "grid.cuh"
#include "trie.cuh"
#include "histories.cuh"

// codes_T (T,) u32: word + 1, 0 between sentences; positions_H (H,) i64
//   ->  first_HK, end_HK (H, K) CHILD, backoff_HK (H, K) f32: see find_histories.py; backoff_M may be null.
// LANES = 1: one thread per walk. Neighbouring threads walk from the same text position in step and read the same words
// of the trie. LANES = 32: one warp per walk, if there are few.
extern "C" __global__ void find_histories(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                          const i64* sample_starts, i64 levels, i64 fanout, i64 M,
                                          const float* backoff_M, i64 K, const u32* codes_T, const i64* positions_H,
                                          i64 H, i64 begin, float neutral, CHILD* first_HK, CHILD* end_HK,
                                          float* backoff_HK) {
  Walker walker = {{word_G, first_child_M, samples, sample_starts, levels, fanout, M}, codes_T, begin};
  GRID_STRIDE_LOOP(thread, H * K * LANES) {
    i64 i = thread / LANES, h = LANES == 32 ? (u32)i / (u32)K : i / K;
    walker.stand_at(positions_H[h], K);
    i64 node = walker.walk(i - h * K);
    if (thread % LANES) continue;
    first_HK[i] = node >= 0 ? first_child_M[node] : 0;
    end_HK[i] = node >= 0 ? first_child_M[node + 1] : 0;
    backoff_HK[i] = node >= 0 && backoff_M ? backoff_M[node] : neutral;
  }
}
