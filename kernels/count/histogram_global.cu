// Counts of n-grams as a dense histogram with alphabet^order bins; the bin of an n-gram is its codes read as a number.
#include "grid.cuh"
#include "token_codes.cuh"
#include "histogram_bins.cuh"
// V1 of Bianco's "Ngrams with CUDA": one atomic add per n-gram to one histogram in device memory.
// histogram_private.cu repeats this loop with bins of another type in shared memory; the compiler must see both.
extern "C" __global__ void histogram_global(const token_t* tokens_T, i64 T, const u16* lut_table, u64 symbols, u32* bins) {
  LOAD_LUT(lut, lut_table)
  GRID_STRIDE_LOOP(i, (T + RUN - 1) / RUN) {
    u32 code[RUN + ORDER - 1];
    load_codes(lut, tokens_T, T, i * RUN, code);
#pragma unroll
    for (int k = 0; k < RUN; ++k) {
      u64 bin;
      if (window_bin<u64>(code + k, symbols, &bin)) atomicAdd(&bins[bin], 1u);
    }
  }
}
