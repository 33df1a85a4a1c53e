#include "common.cuh"
#include "floats.cuh"
#include "philox.cuh"
#include "topics.cuh"
// One slot (a word and a range of its pairs) per block, one pair per LANES lanes. A lane sums the weights of a contiguous
// part of the document's topics, so that the order of topics is that of the twin for any LANES.

#define PER_LOAD (16 / sizeof(ENTRY))  // entries of one 16-byte load

struct Entries {
  const ENTRY* entries;
  u32 bits, mask;
  __device__ __forceinline__ u32 topic(i64 e) const { return (u32)entries[e] >> bits; }
  __device__ __forceinline__ u32 count(i64 e) const { return (u32)entries[e] & mask; }
  // First entry in [low, high) of topic z or a later one.
  __device__ __forceinline__ i64 find(i64 low, i64 high, u32 z) const {
    while (low < high) {
      i64 middle = (low + high) / 2;
      if (topic(middle) < z) low = middle + 1; else high = middle;
    }
    return low;
  }
};

// Shapes as in sample_topics.py. `first` is the number of document 0.
//   topics_T, new_VZ  in and out;  changed (1,): number of tokens whose topic changes, is added to
// Shared memory (or `scratch`, for each block): 4 Z bytes; and 8 bytes for each group of topics and 8 more.
extern "C" __global__ void __launch_bounds__(THREADS) sample_topics(
    const u32* rows_D2, u16* topics_T, const ENTRY* entries_T, u64 first, u32 bits, const i64* slots_S3, i64 S,
    const u32* document_P, const u32* token_P, const u8* count_P, const u32* counts_VZ, const float* inverse_Z,
    const float* less_Z, const float* alpha_Z, float beta, const int* seeds_V, const float* beta_KZ, i64 Z, u32* new_VZ,
    u64 seed, u32 sweep, u32 exclude_self, u32* scratch, u64* changed) {
  extern __shared__ u64 shared[];
  u64* before_G = shared;
  i64 G = (Z + GROUP - 1) / GROUP;
  u32* weight_Z = WEIGHTS_IN_SHARED ? (u32*)(before_G + G + 1) : scratch + blockIdx.x * Z;
  Entries row = {entries_T, bits, (1u << bits) - 1};
  u32 lane = threadIdx.x % LANES;
  u32 group_mask = LANES == 32 ? FULL_WARP : ((1u << LANES) - 1) << (lane_id() / LANES * LANES);
  u64 moved = 0;
  for (i64 s = blockIdx.x; s < S; s += gridDim.x) {
    __syncthreads();  // all threads are done with the slot before
    i64 w = slots_S3[3 * s], end_pair = slots_S3[3 * s + 2];
    const u32* count_Z = counts_VZ + w * Z;
    const float* beta_Z = seeds_V && seeds_V[w] >= 0 ? beta_KZ + seeds_V[w] * Z : nullptr;
    float scale = weigh_word(count_Z, inverse_Z, alpha_Z, beta, beta_Z, Z, weight_Z, before_G);
    u64 all_prior = before_G[G];
    for (i64 p = slots_S3[3 * s + 1] + threadIdx.x / LANES; p < end_pair; p += THREADS / LANES) {
      u32 d = document_P[p];
      u32 token = token_P[p], count = count_P[p];
      uint2 found = ((const uint2*)rows_D2)[d];
      i64 begin = (i64)found.x * ALIGN, size = found.y;
      // This lane's part of the row: whole loads.
      i64 per = (size + PER_LOAD * LANES - 1) / (PER_LOAD * LANES) * PER_LOAD;
      i64 from = begin + min(size, lane * per), to = begin + min(size, (lane + 1) * per);
      u64 sum = 0;
      for (i64 e = from; e < to; e += PER_LOAD) {
        uint4 load = *(const uint4*)(entries_T + e);
        const u32 words[4] = {load.x, load.y, load.z, load.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          if (sizeof(ENTRY) == 2) {
            u32 low = words[i] & 0xffff, high = words[i] >> 16;
            sum += (u64)(low & row.mask) * weight_Z[low >> bits];
            sum += (u64)(high & row.mask) * weight_Z[high >> bits];
          } else {
            sum += (u64)(words[i] & row.mask) * weight_Z[words[i] >> bits];
          }
        }
      }
      u32 z_before = ~0u;
      u64 others = 0, through = 0;  // weights of topics but z: of all lanes, and of lanes up to this one
      u32 theta = 0;
      for (u32 i = 0; i < count; ++i) {
        u32 z = topics_T[token + i];
        __syncwarp(group_mask);  // all lanes have read the topic before one of them changes it
        u32 weight = weight_Z[z];
        if (z != z_before) {
          u32 mine = 0;
          for (i64 e = row.find(from, to, z); e < to && row.topic(e) == z; ++e) mine += row.count(e);
          theta = mine;
          through = sum - (u64)mine * weight;
#pragma unroll
          for (int d = 1; d < LANES; d *= 2) {
            u64 lower = __shfl_up_sync(group_mask, through, d, LANES);
            if (lane >= d) through += lower;
            theta += __shfl_xor_sync(group_mask, theta, d, LANES);
          }
          others = __shfl_sync(group_mask, through, LANES - 1, LANES);
          z_before = z;
        }
        u64 prior = prior_weight(weight, alpha_Z[z]), own;
        if (exclude_self) {
          float b = beta_Z ? beta_Z[z] : beta;
          u32 less = word_weight(word_share(count_Z[z] - 1, b, less_Z[z]), scale);
          own = ((u64)(theta - 1) * less << PRIOR_BITS) + prior_weight(less, alpha_Z[z]);
        } else {
          own = ((u64)theta * weight << PRIOR_BITS) + prior;
        }
        u64 other_priors = all_prior - prior;
        u64 total = own + (others << PRIOR_BITS) + other_priors;
        u32 position = token + i - (u32)begin;
        u64 x = __umul64hi(random_bits(seed, DRAWS, sweep, first + d, position), total);
        if (x < own) continue;
        x -= own;
        u32 topic = ~0u;
        if (x < others << PRIOR_BITS) {
          x >>= PRIOR_BITS;
          // The lane whose part holds x walks it.
          u64 before = __shfl_up_sync(group_mask, through, 1, LANES);
          if (lane == 0) before = 0;
          if (before <= x && x < through) {
            x -= before;
            for (i64 e = from; e < to; ++e) {
              u32 k = row.topic(e);
              u64 here = k == z ? 0 : (u64)row.count(e) * weight_Z[k];
              if (x < here) {
                topic = k;
                break;
              }
              x -= here;
            }
          }
        } else {
          x -= others << PRIOR_BITS;
          // Leave out z: numbers from its place on are moved up by its weight.
          i64 low = 0, high = G - 1;  // the last group that begins at or below x
          i64 own_group = z / GROUP;
          while (low < high) {
            i64 middle = (low + high + 1) / 2;
            u64 start = before_G[middle] - (middle > own_group ? prior : 0);
            if (start <= x) low = middle; else high = middle - 1;
          }
          x -= before_G[low] - (low > own_group ? prior : 0);
          if (lane == 0) {
            for (u32 k = low * GROUP; k < Z; ++k) {
              u64 here = k == z ? 0 : prior_weight(weight_Z[k], alpha_Z[k]);
              if (x < here) {
                topic = k;
                break;
              }
              x -= here;
            }
          }
        }
        if (topic != ~0u) {  // one lane
          topics_T[token + i] = topic;
          atomicSub(&new_VZ[w * Z + z], 1u);
          atomicAdd(&new_VZ[w * Z + topic], 1u);
          ++moved;
        }
      }
    }
  }
  for (int d = 16; d > 0; d /= 2) moved += __shfl_xor_sync(FULL_WARP, moved, d);
  if (lane_id() == 0 && moved) atomicAdd(changed, moved);
}
