// Counts of n-grams of one order by a hash table, without a sort.
#include "grid.cuh"
#include "integer_hash.cuh"
#include "token_codes.cuh"
// Open-addressing table of n-grams with atomic counts. An entry identifies its n-gram by a position
// where it occurs: high half a 32-bit fingerprint, low half position + 1. Equal fingerprints are
// compared word by word, so counts are exact, and a key takes 8 bytes for any order.

__device__ __forceinline__ bool same_window(const u16* lut, const token_t* tokens_T, i64 a, i64 b, int order) {
  for (int i = 0; i < order; ++i)
    if (CODE(lut, tokens_T[a + i]) != CODE(lut, tokens_T[b + i])) return false;
  return true;
}

extern "C" __global__ void hash_count(const token_t* tokens_T, i64 T, const u16* lut_table, int order, u64* entries_C,
                                      u32* counts_C, i64 capacity, u32 limit, u32* used) {
  LOAD_LUT(lut, lut_table)
  GRID_STRIDE_LOOP(t, T - order + 1) {
    if (*(volatile u32*)used > limit) return;
    u64 hash = 0;
    bool whole = true;
    for (int i = 0; i < order; ++i) {
      u32 code = CODE(lut, tokens_T[t + i]);
      whole &= code != 0;
      hash = (hash ^ code) * 0x9e3779b97f4a7c15ULL;
      hash ^= hash >> 29;
    }
    if (!whole) continue;
    hash = mix64(hash);
    u64 entry = (hash & 0xffffffff00000000ULL) | (u32)(t + 1);
    i64 slot = hash & (capacity - 1);
    while (true) {
      u64 e = ((volatile u64*)entries_C)[slot];
      if (e == 0) {
        e = atomicCAS(&entries_C[slot], 0ULL, entry);
        if (e == 0) { atomicAdd(used, 1u); break; }
      }
      if ((e ^ entry) >> 32 == 0 && same_window(lut, tokens_T, (i64)(u32)e - 1, t, order)) break;
      slot = (slot + 1) & (capacity - 1);
    }
    atomicAdd(&counts_C[slot], 1u);
  }
}
