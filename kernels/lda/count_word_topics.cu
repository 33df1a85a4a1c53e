// n_wk, the tokens of topic k of word w, dense. A block has the tokens of one word, so its adds fall into one row.
#include "grid.cuh"

// Pairs of a slot, their first tokens and numbers of tokens, topics_T (T,)  ->  counts_VZ (V, Z), added to.
// One slot per block.
extern "C" __global__ void count_word_topics(const i64* slots_S3, i64 S, const u32* token_P, const u8* count_P,
                                             const u16* topics_T, i64 Z, u32* counts_VZ) {
  for (i64 s = blockIdx.x; s < S; s += gridDim.x) {
    u32* count_Z = counts_VZ + slots_S3[3 * s] * Z;
    for (i64 p = slots_S3[3 * s + 1] + threadIdx.x; p < slots_S3[3 * s + 2]; p += blockDim.x)
      for (u32 i = 0; i < count_P[p]; ++i) atomicAdd(&count_Z[topics_T[(i64)token_P[p] + i]], 1u);
  }
}
