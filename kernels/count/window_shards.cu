// The shard of the n-grams that end at each position of a text: found once, so that each pass over the text that selects
// shards compares 2 bytes a token instead of looking a word up.
#include "grid.cuh"

#define NO_SHARD 0xFFFF  // as in window_shards.py

// tokens_T (T,), shard_V (V,) by code - 1, split_N (num_split,) codes  ->  shard_T (T,) u16.
extern "C" __global__ void window_shards(const u32* tokens_T, i64 T, const u16* shard_V, const u32* split_N,
                                         int num_split, u16* shard_T) {
  GRID_STRIDE_LOOP(t, T) {
    u32 selects = t >= 1 ? tokens_T[t - 1] : 0;
    for (int n = 0; n < num_split; ++n) {
      if (selects == split_N[n]) {
        selects = t >= 2 ? tokens_T[t - 2] : 0;
        break;
      }
    }
    shard_T[t] = selects && tokens_T[t] ? __ldg(shard_V + selects - 1) : NO_SHARD;
  }
}
