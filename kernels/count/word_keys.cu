// Sixteen bytes of each word as numbers that sort like the bytes, for a radix sort by them; words that are still equal
// are sorted again by the next sixteen.
#include "grid.cuh"
// offsets_V (V + 1,) i64, data u8, rows_R (R,) i64  ->  keys_R (2, R) u64: bytes first_byte to
// first_byte + 15 of each chosen word as two big-endian numbers; bytes past its end are 0.
extern "C" __global__ void word_keys(const i64* offsets_V, const u8* data, const i64* rows_R, i64 R, i64 first_byte,
                                     u64* keys_R) {
  GRID_STRIDE_LOOP(r, R) {
    i64 at = offsets_V[rows_R[r]] + first_byte, end = offsets_V[rows_R[r] + 1];
    for (int c = 0; c < 2; ++c) {
      u64 key = 0;
      for (int i = 0; i < 8; ++i, ++at) key = key << 8 | (at < end ? data[at] : 0);
      keys_R[c * R + r] = key;
    }
  }
}
