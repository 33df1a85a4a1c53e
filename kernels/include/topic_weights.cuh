// Integer weights of topics, the same as in kernels/lda/weights.py: sums do not depend on their order.
#define GROUP 16      // topics whose prior weights are summed together
#define PRIOR_BITS 8  // a prior weight counts 2^-8 of a document's weight
#define ALIGN 16      // documents start at multiples of this
#define GREATEST 2147483520.0f  // weight

// Weight of a topic for a word: (tokens + word prior) / (tokens of the topic + sum of word priors), scaled.
__device__ __forceinline__ u32 word_weight(float share, float scale) {
  return max(1, __float2int_rz(fminf(mul(share, scale), GREATEST)));
}

__device__ __forceinline__ float word_share(u32 count, float beta, float inverse) {
  return mul(add(__uint2float_rn(count), beta), inverse);
}

__device__ __forceinline__ u64 prior_weight(u32 weight, float alpha) {
  return max(1ull, __float2ull_rz(mul(__uint2float_rn(weight), alpha)));
}

// The power of 2 that brings `greatest` to 2^30 and more, below 2^31.
__device__ __forceinline__ float scale_of(float greatest) {
  int bits;
  frexpf(greatest, &bits);
  return ldexpf(1.0f, 31 - bits);
}

// Fill weight_Z and before_G for the word whose counts are count_Z; returns the scale. All threads of the block call it.
//   before_G (G + 1,): sum of the prior weights of all groups before a group
__device__ float weigh_word(const u32* count_Z, const float* inverse_Z, const float* alpha_Z, float beta,
                            const float* beta_Z, i64 Z, u32* weight_Z, u64* before_G) {
  __shared__ float greatest_W[THREADS / 32];
  __shared__ u64 prior_W[THREADS / 32];
  u32 warp = threadIdx.x / 32, lane = lane_id();
  float greatest = 0;
  for (i64 k = threadIdx.x; k < Z; k += THREADS) {
    float share = word_share(count_Z[k], beta_Z ? beta_Z[k] : beta, inverse_Z[k]);
    weight_Z[k] = __float_as_uint(share);
    greatest = fmaxf(greatest, share);
  }
  for (int d = 16; d > 0; d /= 2) greatest = fmaxf(greatest, __shfl_xor_sync(FULL_WARP, greatest, d));
  if (lane == 0) greatest_W[warp] = greatest;
  __syncthreads();
  for (int w = 0; w < THREADS / 32; ++w) greatest = fmaxf(greatest, greatest_W[w]);
  float scale = scale_of(greatest);
  // A warp has consecutive topics. It sums their priors, then adds those of the warps before.
  i64 per = (Z + THREADS - 1) / THREADS * 32, from = warp * per, to = min(Z, from + per);
  u64 sum = 0;
  for (i64 k = from + lane; k - lane < to; k += 32) {
    u64 prior = 0;
    if (k < to) {
      u32 weight = word_weight(__uint_as_float(weight_Z[k]), scale);
      weight_Z[k] = weight;
      prior = prior_weight(weight, alpha_Z[k]);
    }
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      u64 lower = __shfl_up_sync(FULL_WARP, prior, d);
      if (lane >= d) prior += lower;
    }
    prior += sum;
    if (lane % GROUP == GROUP - 1 && k - lane + lane / GROUP * GROUP < to) before_G[k / GROUP + 1] = prior;
    sum = __shfl_sync(FULL_WARP, prior, 31);
  }
  if (lane == 0) prior_W[warp] = sum;
  __syncthreads();
  u64 before = 0;
  for (u32 w = 0; w < warp; ++w) before += prior_W[w];
  for (i64 g = from / GROUP + lane; g * GROUP < to; g += 32) before_G[g + 1] += before;
  if (threadIdx.x == 0) before_G[0] = 0;
  __syncthreads();
  return scale;
}
