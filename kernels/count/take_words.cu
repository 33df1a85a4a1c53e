// Chosen words of a vocabulary, one behind the other: a gather of texts of any length. A prefix sum of their lengths,
// before this kernel, gives each word its place, so threads need not wait for each other. Eight threads share a word:
// they read neighbouring bytes.
#include "grid.cuh"
#define LANES 8  // threads per word: most words have fewer than 16 bytes

// offsets_V (V + 1,) i64, data u8, rows_R (R,) i64, offsets_R (R + 1,) i64
//   ->  data_R (offsets_R[R],) u8: word rows_R[r] at offsets_R[r].
extern "C" __global__ void take_words(const i64* offsets_V, const u8* __restrict__ data, const i64* rows_R, i64 R,
                                      const i64* offsets_R, u8* __restrict__ data_R) {
  GRID_STRIDE_LOOP(t, R * LANES) {
    i64 r = t / LANES, from = offsets_V[rows_R[r]], to = offsets_R[r], length = offsets_R[r + 1] - to;
    for (i64 i = t % LANES; i < length; i += LANES) data_R[to + i] = data[from + i];
  }
}
