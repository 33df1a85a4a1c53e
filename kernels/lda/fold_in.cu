#include "common.cuh"
#include "floats.cuh"

// Sum over the lanes, added in pairs as by the twin.
__device__ __forceinline__ float lanes_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value = add(value, __shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

// Shapes as in fold_in.py; one document per warp, and Z floats of scratch for each warp. A lane has every 32nd topic.
extern "C" __global__ void fold_in(const i64* starts_D1, const u32* words_P, const u32* counts_P, i64 D,
                                   const u32* counts_VZ, const float* inverse_Z, const float* prior_Z, float beta,
                                   const int* seeds_V, const float* beta_KZ, i64 Z, i64 max_iter, float tol,
                                   float* scratch, float* theta_DZ) {
  i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = (i64)gridDim.x * blockDim.x / 32;
  u32 lane = lane_id();
  float* new_Z = scratch + warp * Z;
  float sum = 0;
  for (i64 k = lane; k < Z; k += 32) sum = add(sum, prior_Z[k]);
  float prior = lanes_sum(sum);
  for (i64 d = warp; d < D; d += warps) {
    float* theta_Z = theta_DZ + d * Z;
    i64 first = starts_D1[d], end = starts_D1[d + 1], tokens = 0;
    for (i64 p = first + lane; p < end; p += 32) tokens += counts_P[p];
    for (int step = 16; step > 0; step /= 2) tokens += __shfl_xor_sync(FULL_WARP, tokens, step);
    float scale = add(1.0f, divide(__ll2float_rn(tokens), prior));
    for (i64 k = lane; k < Z; k += 32) theta_Z[k] = mul(prior_Z[k], scale);
    for (i64 iteration = 0; iteration < max_iter; ++iteration) {
      for (i64 k = lane; k < Z; k += 32) new_Z[k] = prior_Z[k];
      for (i64 p = first; p < end; ++p) {
        if (counts_P[p] == 0) continue;
        i64 w = words_P[p];
        const u32* count_Z = counts_VZ + w * Z;
        const float* beta_Z = seeds_V && seeds_V[w] >= 0 ? beta_KZ + seeds_V[w] * Z : nullptr;
        sum = 0;
        for (i64 k = lane; k < Z; k += 32) {
          float phi = mul(add(__uint2float_rn(count_Z[k]), beta_Z ? beta_Z[k] : beta), inverse_Z[k]);
          sum = add(sum, mul(phi, theta_Z[k]));
        }
        float share = divide(__uint2float_rn(counts_P[p]), lanes_sum(sum));
        for (i64 k = lane; k < Z; k += 32) {
          float phi = mul(add(__uint2float_rn(count_Z[k]), beta_Z ? beta_Z[k] : beta), inverse_Z[k]);
          new_Z[k] = add(new_Z[k], mul(mul(phi, theta_Z[k]), share));
        }
      }
      float change = 0;
      sum = 0;
      for (i64 k = lane; k < Z; k += 32) {
        change = add(change, fabsf(add(new_Z[k], -theta_Z[k])));
        sum = add(sum, new_Z[k]);
        theta_Z[k] = new_Z[k];
      }
      if (lanes_sum(change) < mul(tol, lanes_sum(sum))) break;
    }
  }
}
