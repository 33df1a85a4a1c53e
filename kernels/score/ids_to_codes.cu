#include "common.cuh"
// ids_T (T,) ID, offsets_S1 (S + 1,) i64  ->  codes_C (C,) u32, C = T + S; ends_S (S,) i64; status (1,) int, 0 before:
// see ids_to_codes.py. A block takes tiles of TILE codes. Two threads find the sentences of the tile's first and last
// code; then every thread searches between these two. Each code is written once, from ids within bounds, so wrong
// offsets leave no code unwritten.

#define TILE 8192
#define BAD_IDS 1
#define BAD_OFFSETS 2

// The last sentence of first to last that begins at or before position c. Sentence s begins at offsets_S1[s] + s.
__device__ __forceinline__ i64 sentence_at(const i64* offsets_S1, i64 first, i64 last, i64 c) {
  while (first < last) {
    i64 middle = first + (last - first + 1) / 2;
    if (offsets_S1[middle] + middle <= c) first = middle;
    else last = middle - 1;
  }
  return first;
}

extern "C" __global__ void ids_to_codes(const ID* ids_T, i64 T, const i64* offsets_S1, i64 S, i64 num_words,
                                        u32* codes_C, i64* ends_S, int* status) {
  __shared__ i64 sentences[2];
  i64 C = T + S;
  int wrong = 0;
  for (i64 base = blockIdx.x * (i64)TILE; base < C && S > 0; base += gridDim.x * (i64)TILE) {
    i64 last = min(base + TILE, C) - 1;
    if (threadIdx.x < 2) sentences[threadIdx.x] = sentence_at(offsets_S1, 0, S - 1, threadIdx.x ? last : base);
    __syncthreads();
    i64 s = sentences[0], s_last = max(sentences[1], s);
    for (i64 c = base + threadIdx.x; c <= last; c += blockDim.x) {
      s = sentence_at(offsets_S1, s, s_last, c);
      i64 t = c - s;
      u32 code = 0;
      if (t >= 0 && t < T && t < offsets_S1[s + 1]) {
        i64 id = (i64)ids_T[t];
        bool known = id >= 0 && id < num_words;
        code = known ? (u32)id + 1 : 1;
        if (!known) wrong |= BAD_IDS;
      }
      codes_C[c] = code;
    }
    __syncthreads();
  }
  GRID_STRIDE_LOOP(s, S) {
    i64 end = offsets_S1[s + 1];
    ends_S[s] = min(max(end, 0LL), T) + s + 1;
    if (end < offsets_S1[s]) wrong |= BAD_OFFSETS;
  }
  if (blockIdx.x == 0 && threadIdx.x == 0 && (offsets_S1[0] != 0 || offsets_S1[S] != T)) wrong |= BAD_OFFSETS;
  if (wrong) atomicOr(status, wrong);
}
