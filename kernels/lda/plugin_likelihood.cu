// Sum over tokens of ln p(w | d), p = sum over k of theta_dk phi_wk, with
//   theta_dk = (n_dk + alpha_k) / (tokens of d + sum of alpha),  phi_wk = (n_wk + beta_w) / (n_k + sum of beta),
// the figure that CuLDA_CGS prints (Xie et al., 2018). As integers, so the sum does not depend on its order.
#include "grid.cuh"
#include "floats.cuh"
#include "topic_weights.cuh"
// One slot (a word and a range of its pairs) per block, one pair per LANES lanes.

// Shapes as in plugin_likelihood.py  ->  total (1,), added to.
extern "C" __global__ void __launch_bounds__(THREADS) plugin_likelihood(
    const u32* rows_D2, const u32* lengths_D, const ENTRY* entries_T, u32 bits, const i64* slots_S3, i64 S,
    const u32* document_P, const u8* count_P, const u32* counts_VZ, const float* inverse_Z, const float* alpha_Z,
    float beta, const int* seeds_V, const float* beta_KZ, i64 Z, double alpha_sum, u32* scratch, u64* total) {
  extern __shared__ u64 shared[];
  u64* before_G = shared;
  i64 G = (Z + GROUP - 1) / GROUP;
  u32* weight_Z = WEIGHTS_IN_SHARED ? (u32*)(before_G + G + 1) : scratch + blockIdx.x * Z;
  u32 lane = threadIdx.x % LANES, mask = (1u << bits) - 1;
  u32 group_mask = LANES == 32 ? FULL_WARP : ((1u << LANES) - 1) << (lane_id() / LANES * LANES);
  i64 units = 0;
  for (i64 s = blockIdx.x; s < S; s += gridDim.x) {
    __syncthreads();  // all threads are done with the slot before
    i64 w = slots_S3[3 * s], end_pair = slots_S3[3 * s + 2];
    const float* beta_Z = seeds_V && seeds_V[w] >= 0 ? beta_KZ + seeds_V[w] * Z : nullptr;
    float scale = weigh_word(counts_VZ + w * Z, inverse_Z, alpha_Z, beta, beta_Z, Z, weight_Z, before_G);
    double unit = 1 / (to_double(scale) * (1 << PRIOR_BITS));
    for (i64 p = slots_S3[3 * s + 1] + threadIdx.x / LANES; p < end_pair; p += THREADS / LANES) {
      u32 d = document_P[p];
      i64 begin = (i64)rows_D2[2 * d] * ALIGN, size = rows_D2[2 * d + 1];
      u64 sum = 0;
      for (i64 e = begin + lane; e < begin + size; e += LANES)
        sum += (u64)((u32)entries_T[e] & mask) * weight_Z[(u32)entries_T[e] >> bits];
#pragma unroll
      for (int step = LANES / 2; step > 0; step /= 2) sum += __shfl_xor_sync(group_mask, sum, step, LANES);
      if (lane == 0) {
        double weight = (double)((sum << PRIOR_BITS) + before_G[G]) * unit;
        units += count_P[p] * llrint(log(weight / ((double)lengths_D[d] + alpha_sum)) * (1 << 20));
      }
    }
  }
  for (int step = 16; step > 0; step /= 2) units += __shfl_xor_sync(FULL_WARP, units, step);
  if (lane_id() == 0 && units) atomicAdd(total, (u64)units);
}
