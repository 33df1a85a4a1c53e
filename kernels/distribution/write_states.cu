#include "common.cuh"
#define TILE 4096    // words of a block, as in write_states.py
#define THREADS 256  // of a block, as in write_states.py
#define MAX_K 96     // as in write_states.py

typedef int i32;

// Return the first child from `first` on, before `end`, whose word is `word` or more; `end` for none.
__device__ __forceinline__ i64 child_from(const u32* word_G, i64 first, i64 end, u32 word) {
  while (first < end) {
    const i64 middle = (first + end) / 2;
    if (__ldg(word_G + middle) < word) first = middle + 1;
    else end = middle;
  }
  return first;
}

// first_HK, end_HK (H, K) CHILD, word_G u32 and state_G i32 (G,)  ->  out_HV: see write_states.py. A block writes TILE words
// of a row: grid x counts tiles, y and z count histories.
// Floor: bytes of the rows over the rate of writes.
extern "C" __global__ void __launch_bounds__(THREADS) write_states(
    const CHILD* first_HK, const CHILD* end_HK, i64 H, i64 K, const u32* word_G, const i32* state_G, i64 V, i32* out_HV,
    i64 stride) {
  __shared__ i32 tile[TILE];
  __shared__ i64 begins[MAX_K], ends[MAX_K];
  const i64 h = (i64)blockIdx.z * gridDim.y + blockIdx.y, start = (i64)blockIdx.x * TILE;
  if (h >= H) return;
  const int words = (int)min((i64)TILE, V - start);
  for (int i = threadIdx.x; i < 2 * K; i += THREADS) {
    const i64 first = first_HK[h * K + i / 2], end = end_HK[h * K + i / 2];
    const i64 found = child_from(word_G, first, end, (u32)min(start + (i % 2 ? words : 0), (i64)0xFFFFFFFF));
    (i % 2 ? ends : begins)[i / 2] = found;
  }
  for (int i = threadIdx.x; i < words; i += THREADS) tile[i] = __ldg(state_G + start + i);
  __syncthreads();
  for (int k = 0; k < K; ++k) {
    for (i64 g = begins[k] + threadIdx.x; g < ends[k]; g += THREADS) {
      tile[__ldg(word_G + g) - (u32)start] = __ldg(state_G + g);
    }
    if (begins[k] < ends[k]) __syncthreads();  // the same for all threads; longer matches are written later
  }
  for (int i = threadIdx.x; i < words; i += THREADS) __stcs(out_HV + h * stride + start + i, tile[i]);
}
