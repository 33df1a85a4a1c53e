#include "common.cuh"
#include "floats.cuh"

// Sum over the lanes, added in pairs as by the twin.
__device__ __forceinline__ float lanes_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value = add(value, __shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

// Shapes as in fold_in.py; one document per warp. A lane has every 32nd topic, and every 32nd entry of a word.
// Shared memory (or `scratch`): 2 Z floats for each warp.
extern "C" __global__ void fold_in(const i64* starts_D1, const u32* words_P, const u32* counts_P, i64 D,
                                   const i64* starts_V1, const u16* topics_N, const float* shares_N,
                                   const float* floor_Z, const float* alpha_Z, i64 Z, i64 max_iter, float tol,
                                   float* scratch, float* theta_DZ) {
  extern __shared__ float shared[];
  i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32, warps = (i64)gridDim.x * blockDim.x / 32;
  u32 lane = lane_id();
  float* theta_Z = IN_SHARED ? shared + 2 * Z * (threadIdx.x / 32) : scratch + 2 * Z * warp;
  float* found_Z = theta_Z + Z;
  float sum = 0;
  for (i64 k = lane; k < Z; k += 32) sum = add(sum, alpha_Z[k]);
  float prior = lanes_sum(sum);
  for (i64 d = warp; d < D; d += warps) {
    i64 first = starts_D1[d], end = starts_D1[d + 1], tokens = 0;
    for (i64 p = first + lane; p < end; p += 32) tokens += counts_P[p];
    for (int step = 16; step > 0; step /= 2) tokens += __shfl_xor_sync(FULL_WARP, tokens, step);
    float scale = add(1.0f, divide(__ll2float_rn(tokens), prior));
    for (i64 k = lane; k < Z; k += 32) theta_Z[k] = mul(alpha_Z[k], scale);
    for (i64 iteration = 0; iteration < max_iter; ++iteration) {
      sum = 0;
      for (i64 k = lane; k < Z; k += 32) {
        sum = add(sum, mul(floor_Z[k], theta_Z[k]));
        found_Z[k] = 0;
      }
      float floor = lanes_sum(sum), rates = 0;
      __syncwarp();
      for (i64 p = first; p < end; ++p) {
        if (counts_P[p] == 0) continue;
        i64 w = words_P[p], stop = starts_V1[w + 1];
        sum = 0;
        for (i64 e = starts_V1[w] + lane; e < stop; e += 32) sum = add(sum, mul(shares_N[e], theta_Z[topics_N[e]]));
        float rate = divide(__uint2float_rn(counts_P[p]), add(floor, lanes_sum(sum)));
        rates = add(rates, rate);
        for (i64 e = starts_V1[w] + lane; e < stop; e += 32) {  // a word has a topic once
          u32 k = topics_N[e];
          found_Z[k] = add(found_Z[k], mul(shares_N[e], rate));
        }
        __syncwarp();
      }
      float change = 0;
      sum = 0;
      for (i64 k = lane; k < Z; k += 32) {
        float old = theta_Z[k];
        float value = add(alpha_Z[k], mul(old, add(found_Z[k], mul(floor_Z[k], rates))));
        change = add(change, fabsf(add(value, -old)));
        sum = add(sum, value);
        theta_Z[k] = value;
      }
      __syncwarp();
      if (lanes_sum(change) < mul(tol, lanes_sum(sum))) break;
    }
    for (i64 k = lane; k < Z; k += 32) theta_DZ[d * Z + k] = theta_Z[k];
    __syncwarp();
  }
}
