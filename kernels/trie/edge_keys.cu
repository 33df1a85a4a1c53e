// The key of each edge (parent, word), by which a hash table finds the child. Keys are scrambled by a bijection, so a
// slot and the rest of a key tell the edge (quotienting: Knuth, "The Art of Computer Programming", volume 3, 6.4,
// exercise 13).
#include "grid.cuh"
#include "edges.cuh"

// word_G (G,) u32, first_child_M (M + 1,) CHILD  ->  keys_2E (2, E) u64: see edge_keys.py.
extern "C" __global__ void edge_keys(const u32* word_G, const CHILD* first_child_M, i64 M, i64 V, i64 E, i64 word_bits,
                                     i64 key_bits, u64* keys_2E) {
  GRID_STRIDE_LOOP(e, E) {
    i64 child = V + e, low = 0, high = M - 1;  // its parent: the last m with first_child_M[m] <= child
    while (low < high) {
      i64 middle = (low + high + 1) / 2;
      if ((i64)first_child_M[middle] <= child) low = middle; else high = middle - 1;
    }
    keys_2E[e] = scramble((u64)low << word_bits | word_G[child], key_bits) << (64 - key_bits);
    keys_2E[E + e] = child;
  }
}
