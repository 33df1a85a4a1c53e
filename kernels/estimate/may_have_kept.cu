// Which n-grams have contexts with n-grams that are not pruned: a Bloom filter with one hash (Bloom, 1970). A context is
// the first word of an n-gram and the context of its suffix. N-grams with one suffix are neighbours, so contexts of
// suffixes are read in order; the table of bits mostly fits the L2 cache. To sort all n-grams instead, of which nine of
// ten are often pruned, moves ten times as many bytes.
#include "grid.cuh"
#include "integer_hash.cuh"

#define NO_CONTEXT 0xFFFFFFFFu

__device__ __forceinline__ u64 place_of(u64 first, u32 context, u64 mask) {
  return mix64((first << 32) ^ context) & mask;
}

// first_R, suffix_R, marked_R (R,), context_M  ->  sets bits of table: see may_have_kept.py.
extern "C" __global__ void set_contexts(const u64* first_R, const SUFFIX* suffix_R, const u32* context_M,
                                        const bool* marked_R, i64 R, u64 mask, u32* table) {
  GRID_STRIDE_LOOP(r, R) {
    if (marked_R[r]) continue;
    u64 place = place_of(first_R[r], context_M[suffix_R[r]], mask);
    atomicOr(table + (place >> 5), 1u << (place & 31));
  }
}

extern "C" __global__ void find_contexts(const u64* first_R, const SUFFIX* suffix_R, const u32* context_M,
                                         const bool* marked_R, i64 R, u64 mask, const u32* table, bool* found_R) {
  GRID_STRIDE_LOOP(r, R) {
    u32 context = context_M[suffix_R[r]];
    u64 place = place_of(first_R[r], context, mask);
    found_R[r] = context != NO_CONTEXT && (table[place >> 5] >> (place & 31) & 1);
  }
}
