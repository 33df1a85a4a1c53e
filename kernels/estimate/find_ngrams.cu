// The row of each query in a sorted table of n-grams: a binary search, in keys of COLUMNS 64-bit numbers.
// Where the links of a trie are known, `find_suffixes` searches only the few children of a node instead.
#include "grid.cuh"

// Return column c of the `used` bits of a query that follow its first `skipped` bits.
__device__ __forceinline__ u64 part_of(const u64* queries, int D, i64 stride, i64 q, int skipped, int used, int c) {
  int at = c + skipped / 64, by = skipped % 64, left = used - 64 * c;
  u64 value = queries[at * stride + q] << by;
  if (by && at + 1 < D) value |= queries[(at + 1) * stride + q] >> (64 - by);
  return left < 64 ? value & ~(~0ull >> left) : value;
}

// columns (COLUMNS, G) u64, queries (D, Q) u64  ->  rows_Q (Q,) i64: the row of the n-gram within each query, or -1.
extern "C" __global__ void find_ngrams(const u64* columns, i64 stride_columns, i64 G, int used,
                                       const u64* queries, i64 stride_queries, int D, i64 Q, int skipped,
                                       i64* rows_Q) {
  GRID_STRIDE_LOOP(q, Q) {
    u64 key[COLUMNS];
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) key[c] = part_of(queries, D, stride_queries, q, skipped, used, c);
    i64 low = 0, high = G;
    bool found = false;
    while (low < high) {
      i64 middle = (low + high) / 2;
      bool below = false, same = true;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) {  // reads later columns only if the earlier ones are equal
        if (same) {
          u64 stored = __ldg(columns + c * stride_columns + middle);
          below = stored < key[c];
          same = stored == key[c];
        }
      }
      if (same) found = true;
      if (below) low = middle + 1; else high = middle;
    }
    rows_Q[q] = found ? low : -1;
  }
}
