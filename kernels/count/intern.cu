// Numbers of words by order of first appearance, block of text by block, from their 64-bit hashes: the vocabulary of a
// chunk.
#include "grid.cuh"
// Open addressing, linear probing. keys_C 0 is an empty slot. first_C is the first token of the slot's
// word in this call, or 0 for words known before the call, which therefore cost no atomics.

__device__ __forceinline__ i64 find_or_insert(u64 hash, u64* keys_C, i64 mask, bool* inserted) {
  i64 slot = hash & mask;
  *inserted = false;
  while (true) {
    u64 key = ((volatile u64*)keys_C)[slot];
    if (key == 0) {
      key = atomicCAS(&keys_C[slot], 0ULL, hash);
      if (key == 0) { *inserted = true; return slot; }
    }
    if (key == hash) return slot;
    slot = (slot + 1) & mask;
  }
}

// *new_count counts insertions. Past `limit` the table is too full: the caller grows it and calls again.
extern "C" __global__ void insert_words(const u64* hash_T, i64 T, u64* keys_C, u32* first_C, i64 capacity,
                                        u32 limit, u32* new_count, u32* new_slots, u32* slot_T) {
  GRID_STRIDE_LOOP(t, T) {
    u64 hash = hash_T[t];
    if (hash == 0) continue;
    if (*(volatile u32*)new_count > limit) return;
    bool inserted;
    i64 slot = find_or_insert(hash, keys_C, capacity - 1, &inserted);
    if (inserted) {
      u32 n = atomicAdd(new_count, 1u);
      if (n < limit) new_slots[n] = (u32)slot;
    }
    if (((volatile u32*)first_C)[slot] > (u32)t) atomicMin(&first_C[slot], (u32)t);
    slot_T[t] = (u32)slot;
  }
}

// Give the words of N new slots the ids V..V+N-1, in order of appearance, and mark each as known. order_N sorts the
// slots by first_C. hash_V receives the hashes of the new words behind V others; new_N receives their first tokens.
extern "C" __global__ void number_words(const u32* slots_N, const i64* order_N, i64 N, i64 V, const u64* keys_C,
                                        u32* first_C, u32* ids_C, u64* hash_V, i64* new_N) {
  GRID_STRIDE_LOOP(n, N) {
    u32 slot = slots_N[order_N[n]];
    new_N[n] = first_C[slot];
    hash_V[V + n] = keys_C[slot];
    ids_C[slot] = (u32)(V + n);
    first_C[slot] = 0;
  }
}

// Insert the words of ids 0..V-1 into an empty table and mark each as known.
extern "C" __global__ void rebuild_table(const u64* hash_V, i64 V, u64* keys_C, u32* first_C, u32* ids_C, i64 capacity) {
  GRID_STRIDE_LOOP(v, V) {
    bool inserted;
    i64 slot = find_or_insert(hash_V[v], keys_C, capacity - 1, &inserted);
    first_C[slot] = 0;
    ids_C[slot] = (u32)v;
  }
}

// tokens_T: id + 1, or 0 for a newline. slot_T and tokens_T may be the same array.
extern "C" __global__ void slots_to_tokens(const u64* hash_T, const u32* slot_T, i64 T, const u32* ids_C, u32* tokens_T) {
  GRID_STRIDE_LOOP(t, T) tokens_T[t] = hash_T[t] ? ids_C[slot_T[t]] + 1 : 0;
}
