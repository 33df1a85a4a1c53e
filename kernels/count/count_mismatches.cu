// text_B (B,) u8, positions_T (T,) u32, tokens_T (T,) u32 (id + 1, 0 for a newline), words of offsets_V (V + 1,) i64
// and data u8  ->  *mismatches u64, added to: tokens whose bytes are not those of their word.
// Words are numbered by 64-bit hashes alone, and this kernel compares them afterwards. If two words share a hash, it
// finds mismatches, and the words are hashed again with another seed, so counts are exact.
#include "grid.cuh"
#include "delimiters.cuh"
extern "C" __global__ void count_mismatches(const u8* text_B, i64 B, const u32* positions_T, const u32* tokens_T, i64 T,
                                            const i64* offsets_V, const u8* data, u64* mismatches) {
  u64 bad = 0;
  GRID_STRIDE_LOOP(t, T) {
    u32 token = tokens_T[t];
    if (token == 0) continue;
    i64 at = positions_T[t], from = offsets_V[token - 1], end = offsets_V[token];
    while (from < end && at < B && text_B[at] == data[from]) { ++at; ++from; }
    bad += from < end || (at < B && !is_delimiter(text_B[at]));
  }
  if (bad) atomicAdd(mismatches, bad);
}
