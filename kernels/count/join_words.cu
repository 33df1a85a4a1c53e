// The union of several vocabularies, from words sorted by hash: sums of counts, first occurrences, and a check by bytes
// that equal hashes mean equal words.
#include "grid.cuh"
__device__ __forceinline__ bool same_word(const i64* offsets_V, const u8* data, i64 a, i64 b) {
  i64 at = offsets_V[a], other = offsets_V[b], length = offsets_V[a + 1] - at, i = 0;
  if (offsets_V[b + 1] - other != length) return false;
  while (i < length && data[at + i] == data[other + i]) ++i;
  return i == length;
}

// Groups of words with equal hashes: group u is rows_R[starts_U[u]] on; starts_U (U,) i64, rows_R (R,) i64.
// Rows index the words of offsets_V (V + 1,) i64, data u8, counts_V (V,) i64, first_source_V (V,) i32,
// first_offset_V (V,) i64.
//   ->  rows_U (U,) i64: the row of each group that occurs first; counts_U (U,) i64: the group's sum;
//       *mismatches += rows whose bytes differ from their group's first row.
extern "C" __global__ void join_words(const i64* starts_U, i64 U, const i64* rows_R, i64 R, const i64* offsets_V,
                                      const u8* data, const i64* counts_V, const int* first_source_V,
                                      const i64* first_offset_V, i64* rows_U, i64* counts_U, u64* mismatches) {
  u64 bad = 0;
  GRID_STRIDE_LOOP(u, U) {
    i64 end = u + 1 < U ? starts_U[u + 1] : R, word = rows_R[starts_U[u]];
    i64 first = word, count = counts_V[word];
    for (i64 r = starts_U[u] + 1; r < end; ++r) {
      i64 row = rows_R[r];
      count += counts_V[row];
      int source = first_source_V[row], known = first_source_V[first];
      if (source < known || (source == known && first_offset_V[row] < first_offset_V[first])) first = row;
      bad += !same_word(offsets_V, data, word, row);
    }
    rows_U[u] = first;
    counts_U[u] = count;
  }
  if (bad) atomicAdd(mismatches, bad);
}
