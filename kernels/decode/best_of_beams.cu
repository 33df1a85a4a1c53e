// The K best candidates of a sentence among the best words of its rows: the choice of a step of beam search.
// A warp keeps the best keys in registers. The first 32 are sorted at once; of the others, only those above the least
// key kept are inserted, one by one. As rows give their words best first, these are few.
#include "grid.cuh"
#include "ranks.cuh"
#include "best_keys.cuh"
// words_RK and scores_RK (R, K), starts_S1 (S + 1,), sizes_S (S,)  ->  rows_SK, words_SK, scores_SK (S, K).
// One sentence per warp. A key is a score and the candidate's number in its sentence, so equal scores stay in order.
// Floor: 8 bytes for each candidate / 4.3 TB/s, 0.02 us for 1,280 rows of 8 and 0.2 us of 64, less than a launch.

#define THREADS 64

extern "C" __global__ void __launch_bounds__(THREADS) best_of_beams(
    const int* words_RK, const float* scores_RK, const i64* starts_S1, const int* sizes_S, i64 S, i64 K, int* rows_SK,
    int* words_SK, float* scores_SK) {
  const i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = (i64)gridDim.x * blockDim.x / 32;
  const int lane = lane_id();
  __shared__ u64 rooms[THREADS / 32][32];
  for (i64 s = warp; s < S; s += warps) {
    const i64 first = starts_S1[s] * K, count = starts_S1[s + 1] * K - first;
    const int size = min(sizes_S[s], (int)K);
    const bool wide = size > 32;
    Best best = {{0, 0}};
    u64 least = 0;
    bool is_number = true;
    for (i64 base = 0; base < count && size > 0; base += 32) {
      const i64 i = base + lane;
      u64 key = 0;
      if (i < count) {
        const u32 bits = __float_as_uint(scores_RK[first + i]);
        is_number &= (bits & 0x7FFFFFFFu) <= 0x7F800000u;
        if (words_RK[first + i] >= 0 && bits != 0xFF800000u) key = rank_key(__uint_as_float(bits), (u32)i);
      }
      if (base == 0) {  // sorted at once
        sort_keys(best, key, rooms[threadIdx.x / 32]);
        least = key_at(best, size - 1, wide);
        continue;
      }
      u32 mask = __ballot_sync(FULL_WARP, key > least);
      while (mask) {
        const u64 candidate = __shfl_sync(FULL_WARP, key, __ffs(mask) - 1);
        mask &= mask - 1;
        if (candidate < least) continue;
        insert(best, candidate, wide);
        least = key_at(best, size - 1, wide);
      }
    }
    const bool is_good = __all_sync(FULL_WARP, is_number);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int p = lane + 32 * q;
      if (p >= K) continue;
      const i64 to = s * K + p, i = key_word(best.key[q]);
      const bool is_word = is_good && p < size && best.key[q];
      rows_SK[to] = is_word ? (int)(starts_S1[s] + i / K) : -1;
      words_SK[to] = is_word ? words_RK[first + i] : -1;
      scores_SK[to] = is_word ? scores_RK[first + i] : __uint_as_float(is_good ? 0xFF800000u : 0x7FC00000u);
    }
  }
}
