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
