// The n-grams of a KenLM probing model, which stores hashes and no words: all pairs (history, suffix) of known n-grams
// whose combined key, base ^ term, is in the table. A bitmap of key prefixes on the device refuses nearly all pairs
// before the table is searched.
#include "grid.cuh"

// keys_C (C,) u64  ->  filter u32, zeros before: bit key >> shift of every key but 0 is set.
extern "C" __global__ void fill_filter(const u64* keys_C, i64 C, i64 shift, u32* filter) {
  GRID_STRIDE_LOOP(c, C) {
    u64 bit = keys_C[c] >> shift;
    if (keys_C[c]) atomicOr(filter + (bit >> 5), 1u << (bit & 31));
  }
}

// base_S (S,) u64, begin_S, end_S (S,) i64, term_H (H,) u64, keys_C (C,) u64, filter of `fill_filter`
//   ->  columns_3G (3, room) i64: slots, suffixes and histories of pairs in any order, at most `room`; count: all pairs.
// See find_key_pairs.py. One warp per suffix; any grid.
extern "C" __global__ void find_key_pairs(const u64* base_S, const i64* begin_S, const i64* end_S, i64 S,
                                          const u64* term_H, const u64* keys_C, i64 C, i64 shift, const u32* filter,
                                          u64* count, i64 room, i64* columns_3G) {
  i64 warps = gridDim.x * (i64)blockDim.x / 32;
  for (i64 s = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; s < S; s += warps) {
    u64 base = base_S[s];
    i64 end = end_S[s];
#pragma unroll 4
    for (i64 h = begin_S[s] + lane_id(); h < end; h += 32) {
      u64 key = base ^ term_H[h], bit = key >> shift;
      if (!(filter[bit >> 5] >> (bit & 31) & 1)) continue;
      i64 slot = (i64)(key % (u64)C);
      while (keys_C[slot] && keys_C[slot] != key) slot = slot + 1 < C ? slot + 1 : 0;
      if (!keys_C[slot]) continue;
      i64 g = (i64)atomicAdd(count, 1ULL);
      if (g >= room) continue;
      columns_3G[g] = slot;
      columns_3G[room + g] = s;
      columns_3G[2 * room + g] = h;
    }
  }
}
