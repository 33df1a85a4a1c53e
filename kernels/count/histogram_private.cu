// The same counts as histogram_global.cu's, with fewer adds to device memory: frequent n-grams are added in shared
// memory.
#include "grid.cuh"
#include "token_codes.cuh"
#include "histogram_bins.cuh"
// V2 of Bianco's "Ngrams with CUDA": private histograms, then a reduction. A block keeps its own
// histogram in shared memory: all bins if they fit, else the bins that the block meets first.

#if TOKEN_BYTES == 1
// Order 1 of bytes: each lane has its own column of the block's histogram, so the 32 adds of a warp
// never conflict in a bank.
extern "C" __global__ void histogram_bytes(const u8* text_T, i64 T, u64* bins) {
  __shared__ u32 local[256 * 32];
  for (int i = threadIdx.x; i < 256 * 32; i += blockDim.x) local[i] = 0;
  __syncthreads();
  u32* mine = local + lane_id();
#define ADD4(w) \
  atomicAdd(mine + ((w & 255) << 5), 1u); atomicAdd(mine + ((w >> 8 & 255) << 5), 1u); \
  atomicAdd(mine + ((w >> 16 & 255) << 5), 1u); atomicAdd(mine + ((w >> 24) << 5), 1u);
  GRID_STRIDE_LOOP(i, T / RUN) {
    uint4 v = ((const uint4*)text_T)[i];
    ADD4(v.x) ADD4(v.y) ADD4(v.z) ADD4(v.w)
  }
  if (blockIdx.x == 0)
    for (i64 t = T / RUN * RUN + threadIdx.x; t < T; t += blockDim.x) atomicAdd(mine + (text_T[t] << 5), 1u);
  __syncthreads();
  for (int b = threadIdx.x; b < 256; b += blockDim.x) {
    u64 sum = 0;
    for (int i = 0; i < 32; ++i) sum += local[b * 32 + (i + b) % 32];
    if (sum) atomicAdd(&bins[b], sum);
  }
}
#endif

extern "C" __global__ void __launch_bounds__(1024) histogram_shared(const token_t* tokens_T, i64 T, const u16* lut_table,
                                                                     u32 symbols, u32 num_bins, u32* bins) {
  extern __shared__ u32 local[];
  LOAD_LUT(lut, lut_table)
  for (u32 i = threadIdx.x; i < num_bins; i += blockDim.x) local[i] = 0;
  __syncthreads();
  GRID_STRIDE_LOOP(i, (T + RUN - 1) / RUN) {
    u32 code[RUN + ORDER - 1];
    load_codes(lut, tokens_T, T, i * RUN, code);
#pragma unroll
    for (int k = 0; k < RUN; ++k) {
      u32 bin;
      if (window_bin<u32>(code + k, symbols, &bin)) atomicAdd(&local[bin], 1u);
    }
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < num_bins; i += blockDim.x)
    if (local[i]) atomicAdd(&bins[i], local[i]);
}

// Each block keeps `slots` bins in shared memory, direct mapped; the first bin to claim a slot keeps
// it. Adds to other bins go to one of `copies` global histograms.
#define EMPTY 0xffffffffu
extern "C" __global__ void __launch_bounds__(1024) histogram_cached(const token_t* tokens_T, i64 T, const u16* lut_table,
                                                                     u64 symbols, u64 num_bins, int copies, u32 slots,
                                                                     u32* bins_KB) {
  extern __shared__ u32 tags[];
  u32* counts = tags + slots;
  LOAD_LUT(lut, lut_table)
  for (u32 i = threadIdx.x; i < slots; i += blockDim.x) { tags[i] = EMPTY; counts[i] = 0; }
  __syncthreads();
  u32* bins = bins_KB + (blockIdx.x % copies) * num_bins;
  GRID_STRIDE_LOOP(i, (T + RUN - 1) / RUN) {
    u32 code[RUN + ORDER - 1];
    load_codes(lut, tokens_T, T, i * RUN, code);
#pragma unroll
    for (int k = 0; k < RUN; ++k) {
      u64 bin;
      if (!window_bin<u64>(code + k, symbols, &bin)) continue;
      if (bin < EMPTY) {
        u32 b = (u32)bin, slot = __umulhi(b * 2654435769u, slots);
        u32 tag = ((volatile u32*)tags)[slot];
        if (tag == EMPTY) {
          tag = atomicCAS(&tags[slot], EMPTY, b);
          if (tag == EMPTY) tag = b;
        }
        if (tag == b) { atomicAdd(&counts[slot], 1u); continue; }
      }
      atomicAdd(&bins[bin], 1u);
    }
  }
  __syncthreads();
  for (u32 i = threadIdx.x; i < slots; i += blockDim.x)
    if (counts[i]) atomicAdd(&bins[tags[i]], counts[i]);
}

extern "C" __global__ void sum_copies(u32* bins_KB, i64 num_bins, int copies) {
  GRID_STRIDE_LOOP(b, num_bins) {
    u32 sum = bins_KB[b];
    for (int k = 1; k < copies; ++k) sum += bins_KB[k * num_bins + b];
    bins_KB[b] = sum;
  }
}
