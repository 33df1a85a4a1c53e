#include "common.cuh"
#include "floats.cuh"

// Sum over the lanes, added in pairs as by the twin.
__device__ __forceinline__ float lanes_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value = add(value, __shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

#define THREADS 128  // of a block, as in fold_in.py
#define WORDS 2      // whose entries are loaded at once, which hides the latency of memory
#define AHEAD 8      // entries of a word that a lane loads at once

// This lane's entries of a word: every 32nd one from `first` on. Beyond the last one the share is 0.
struct Entries {
  u32 topics[AHEAD];
  float shares[AHEAD];
  __device__ __forceinline__ void load(const u16* topics_E, const float* shares_E, u32 first, u32 size) {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      u32 e = first + 32 * i;
      topics[i] = e < size ? topics_E[e] : 0;
      shares[i] = e < size ? shares_E[e] : 0;
    }
  }
  __device__ __forceinline__ float add_to(float sum, const float* theta_Z) const {
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) sum = add(sum, mul(shares[i], theta_Z[topics[i]]));
    return sum;
  }
  // Add rate times the shares to found_Z. A word has a topic once, so the lanes' topics differ.
  __device__ __forceinline__ void give(float rate, u32 first, u32 size, float* found_Z) const {
    float found[AHEAD];
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (first + 32 * i < size) found[i] = add(found_Z[topics[i]], mul(shares[i], rate));
    }
#pragma unroll
    for (int i = 0; i < AHEAD; ++i) {
      if (first + 32 * i < size) found_Z[topics[i]] = found[i];
    }
  }
};

// Shapes as in fold_in.py; one document per warp. A lane has every 32nd topic, and every 32nd entry of a word.
// Shared memory (or `scratch`): 2 Z floats for each warp.
extern "C" __global__ void __launch_bounds__(THREADS, IN_SHARED ? 5 : 4) fold_in(const i64* starts_D1, const u32* words_P, const u32* counts_P, i64 D,
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
      for (i64 p0 = first; p0 < end; p0 += 32) {
        u32 word_count = 0, word_size = 0;  // of word p0 + lane
        i64 word_first = 0;
        if (p0 + lane < end && counts_P[p0 + lane]) {
          word_count = counts_P[p0 + lane], word_first = starts_V1[words_P[p0 + lane]];
          word_size = starts_V1[words_P[p0 + lane] + 1] - word_first;
        }
        for (u32 j = 0; j < 32 && p0 + j < end; j += WORDS) {
          Entries some[WORDS];
          u32 size[WORDS];
          float sums[WORDS];
#pragma unroll
          for (int i = 0; i < WORDS; ++i) {
            i64 at = __shfl_sync(FULL_WARP, word_first, j + i);
            size[i] = __shfl_sync(FULL_WARP, word_size, j + i);
            some[i].load(topics_N + at, shares_N + at, lane, size[i]);
          }
#pragma unroll
          for (int i = 0; i < WORDS; ++i) {
            sums[i] = some[i].add_to(0, theta_Z);
            for (u32 e = lane + 32 * AHEAD; e - lane < size[i]; e += 32 * AHEAD) {
              Entries more;
              i64 at = __shfl_sync(FULL_WARP, word_first, j + i);
              more.load(topics_N + at, shares_N + at, e, size[i]);
              sums[i] = more.add_to(sums[i], theta_Z);
            }
          }
#pragma unroll
          for (int i = 0; i < WORDS; ++i) sums[i] = lanes_sum(sums[i]);
#pragma unroll
          for (int i = 0; i < WORDS; ++i) {
            u32 count = __shfl_sync(FULL_WARP, word_count, j + i);
            float rate = count ? divide(__uint2float_rn(count), add(floor, sums[i])) : 0;
            rates = add(rates, rate);
            some[i].give(rate, lane, size[i], found_Z);
            for (u32 e = lane + 32 * AHEAD; e - lane < size[i]; e += 32 * AHEAD) {
              Entries more;
              i64 at = __shfl_sync(FULL_WARP, word_first, j + i);
              more.load(topics_N + at, shares_N + at, e, size[i]);
              more.give(rate, e, size[i], found_Z);
            }
            __syncwarp();
          }
        }
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
