// Sentences of word ids as the codes that scoring kernels read: id + 1, and 0 after each sentence.
// The checks of ids and offsets are in the same pass. The host waits for them alone, while the scoring kernel runs.
// Tiles of 2,048 to 8,192 codes and 4 or 8 loads take 36 to 52 us for 9 M ids: see engine/score/NOTES.md.
#include "grid.cuh"
// ids_T (T,) ID, offsets_S1 (S + 1,) i64  ->  codes_C (C,) u32, C = T + S; ends_S (S,) i64; wrong_2 (2,) int, 0 before,
// perhaps in host memory: see ids_to_codes.py. A block takes tiles of TILE codes. A warp finds the sentence of the
// tile's first code, another one that of the last; then a mask tells where sentences end in the tile. Each code is
// written once, from ids within bounds, so wrong offsets leave no code unwritten.

#define TILE 4096
#define WORDS (TILE / 32)
#define LOADS 4  // of a thread, before it writes
#define IDS 0  // places in wrong_2
#define OFFSETS 1

// The last sentence that begins at or before position c, found by a warp. Sentence s begins at offsets_S1[s] + s.
__device__ __forceinline__ i64 sentence_at(const i64* offsets_S1, i64 S, i64 c) {
  i64 first = 0, last = S - 1;
  while (first < last) {
    const i64 step = (last - first + 31) / 32, middle = min(first + (lane_id() + 1) * step, last);
    const int before = __popc(__ballot_sync(FULL_WARP, offsets_S1[middle] + middle <= c));
    const i64 from = first;
    if (before) first = min(from + before * step, last);
    if (before < 32) last = min(from + (before + 1) * step, last) - 1;
  }
  return first;
}

extern "C" __global__ void ids_to_codes(const ID* ids_T, i64 T, const i64* offsets_S1, i64 S, i64 num_words,
                                        u32* codes_C, i64* ends_S, int* wrong_2) {
  __shared__ i64 sentences[2];
  __shared__ u32 ends[WORDS], ends_before[WORDS];
  const int tid = threadIdx.x, warps = blockDim.x / 32;
  i64 C = T + S;
  bool bad_ids = false, bad_offsets = false;
  for (i64 base = blockIdx.x * (i64)TILE; base < C && S > 0; base += gridDim.x * (i64)TILE) {
    const i64 last = min(base + TILE, C) - 1;
    for (int w = tid / 32; w < 2; w += warps) {
      const i64 s = sentence_at(offsets_S1, S, w ? last : base);
      if (!lane_id()) sentences[w] = s;
    }
    for (int i = tid; i < WORDS; i += blockDim.x) ends[i] = 0;
    __syncthreads();
    const i64 first = sentences[0], s_last = min(sentences[1], first + TILE);
    for (i64 s = first + tid; s <= s_last; s += blockDim.x) {
      const i64 end = offsets_S1[s + 1] + s;
      if (end >= base && end <= last) atomicOr(&ends[(end - base) / 32], 1u << ((end - base) & 31));
    }
    __syncthreads();
    if (tid < 32) {
      u32 before = 0;
      for (int i = 0; i < WORDS; i += 32) {
        const u32 mine = __popc(ends[i + tid]);
        u32 through = mine;
        for (int d = 1; d < 32; d *= 2) {
          const u32 lower = __shfl_up_sync(FULL_WARP, through, d);
          if (tid >= d) through += lower;
        }
        ends_before[i + tid] = before + through - mine;
        before += __shfl_sync(FULL_WARP, through, 31);
      }
    }
    __syncthreads();
    const int codes = (int)(last - base) + 1;
    for (int tile = tid; tile < codes; tile += LOADS * blockDim.x) {
      u32 made[LOADS];
#pragma unroll
      for (int k = 0; k < LOADS; ++k) {
        const int i = min(tile + k * (int)blockDim.x, codes - 1);
        const u32 mask = ends[i / 32], bit = 1u << (i & 31);
        const i64 t = base + i - first - ends_before[i / 32] - __popc(mask & (bit - 1));
        const bool is_word = !(mask & bit) && t >= 0 && t < T;
        const i64 id = is_word ? (i64)ids_T[t] : 0;
        const bool known = id >= 0 && id < num_words;
        made[k] = !is_word ? 0 : known ? (u32)id + 1 : 1;
        bad_ids |= is_word && !known;
      }
#pragma unroll
      for (int k = 0; k < LOADS; ++k)
        if (tile + k * blockDim.x < codes) codes_C[base + tile + k * blockDim.x] = made[k];
    }
    __syncthreads();
  }
  GRID_STRIDE_LOOP(s, S) {
    i64 end = offsets_S1[s + 1];
    ends_S[s] = min(max(end, 0LL), T) + s + 1;
    bad_offsets |= end < offsets_S1[s];
  }
  bad_offsets |= blockIdx.x == 0 && threadIdx.x == 0 && (offsets_S1[0] != 0 || offsets_S1[S] != T);
  if (bad_ids) wrong_2[IDS] = 1;
  if (bad_offsets) wrong_2[OFFSETS] = 1;
}
