// The k words of greatest P(w) = exp(z_w - log_sum) + sum over n of exp(z_n - log_sum) P_n(w), a neural mixture (Neubig
// and Dyer, 2016, equation 4), without making the row.
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
#include "sorted_search.cuh"
#include "ranks.cuh"
#include "best_keys.cuh"
// The best words of R rows of a mixture, in three kernels: threads find the children of each tile of TILE words, then a
// block finds the best words of a tile of a row, then a warp merges the tiles of a row. Arguments as in mixture_top.py;
// VECTOR: rows of the logits start at multiples of 16 bytes.
// Floor: bytes of the logits / 4.3 TB/s, and 4 bytes of L2 for each word and model.

#define THREADS 256   // as in mixture_top.py
#define WARPS (THREADS / 32)
#define OWN 8         // neighbouring words of a thread
#define TILE (THREADS * OWN)
#define MAX_MODELS 16  // as in mixture_top.py
#define MAX_RANGES 256
#define MAX_K 64
#define FEW 8  // keys that are inserted one by one

struct Model {
  const void *first_RK, *end_RK;  // u32 or, if wide, i64
  const float* backoff_RK;
  const u32* word_G;
  const float *value_G, *value_V;
  i64 K, is_wide, range;  // range: number of its first history among those of all models
};
struct Models {
  Model of[MAX_MODELS];
};

__device__ __forceinline__ i64 node_at(const void* nodes, i64 i, i64 is_wide) {
  return is_wide ? ((const i64*)nodes)[i] : (i64)((const u32*)nodes)[i];
}

// Load four neighbouring floats; from V on, 0. row: at a multiple of 16 bytes; v: of 4.
__device__ __forceinline__ void load_four(const float* row, i64 v, i64 V, float* x) {
  if (v + 4 <= V) {
    const float4 four = __ldg((const float4*)(row + v));
    x[0] = four.x, x[1] = four.y, x[2] = four.z, x[3] = four.w;
  } else {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[e] = v + e < V ? row[v + e] : 0;
  }
}

// Set starts (R, ranges, tiles + 1) to the first child of each history from a tile on. Grid: any.
extern "C" __global__ void find_tiles(const Models models, i64 N, i64 ranges, i64 R, i64 words, i64 tiles, i64* starts) {
  GRID_STRIDE_LOOP(i, R * ranges * (tiles + 1)) {
    const i64 tile = i % (tiles + 1), q = i / (tiles + 1), range = q % ranges, r = q / ranges;
    int n = 0;
    while (n + 1 < N && models.of[n + 1].range <= range) ++n;
    const Model& model = models.of[n];
    const i64 at = r * model.K + range - model.range;
    const i64 first = node_at(model.first_RK, at, model.is_wide), end = node_at(model.end_RK, at, model.is_wide);
    starts[i] = tile < tiles ? first_from(model.word_G, first, end, (u32)(tile * TILE)) : end;
  }
}

// bound_R (R,) u64, 0 before: a key that k words of the row reach  ->  keys_RTK (R, T, k) u64, the best keys of each
// tile, the greatest first; 0 for none, and for words below the bound. Grid: (R, y, z), y z >= T: the first tiles of all
// rows make bounds that spare later ones the search.
extern "C" __global__ void __launch_bounds__(THREADS) mixture_top(
    const real* logits, i64 stride, i64 words, i64 N, i64 ranges, const Models models, i64 tiles, i64 num_words,
    const i64* starts, const double* log_sum_R, u64* bound_R, u64* keys_RTK) {
  alignas(16) __shared__ float tile[TILE];
  __shared__ u64 lists[WARPS * MAX_K];  // of warps; before, room to sort
  __shared__ i64 begins[MAX_RANGES], ends[MAX_RANGES];
  __shared__ float rests[MAX_RANGES], products[MAX_MODELS], weights[MAX_MODELS];
  const int tid = threadIdx.x, lane = lane_id(), warp = tid / 32, k = (int)num_words;
  const i64 r = blockIdx.x, number = (i64)blockIdx.z * gridDim.y + blockIdx.y, start = number * TILE;
  const i64 own = start + tid * OWN;
  if (number >= tiles) return;
  u64* keys = keys_RTK + (r * tiles + number) * k;
  for (int i = tid; i < k; i += THREADS) keys[i] = 0;
  const double log_sum = log_sum_R[r];
  if (log_sum != log_sum) return;
  const float high = to_float(log_sum), low = to_float(__dadd_rn(log_sum, -to_double(high)));
  const real* z = logits + r * stride;
  alignas(16) real logit[OWN];
  if (VECTOR && own + OWN <= words) {
#pragma unroll
    for (int u = 0; u < (int)(OWN * sizeof(real) / 16); ++u) {
      *(uint4*)((char*)logit + 16 * u) = __ldg((const uint4*)(z + own) + u);
    }
  } else {
#pragma unroll
    for (int e = 0; e < OWN; ++e) logit[e] = own + e < words ? z[own + e] : real(0);
  }
  for (int i = tid; i < ranges; i += THREADS) {
    const i64* at = starts + (r * ranges + i) * (tiles + 1) + number;
    begins[i] = at[0];
    ends[i] = at[1];
  }
  for (int n = tid; n < N; n += THREADS) {
    const Model& model = models.of[n];
    weights[n] = exponential(add(add(single(z[words + n]), -high), -low));
    float product = 1;
    for (i64 m = model.K - 1; m >= 0; --m) {
      rests[model.range + m] = product;
      product = mul(product, model.backoff_RK[r * model.K + m]);
    }
    products[n] = product;
  }
  float total[OWN];
#pragma unroll
  for (int e = 0; e < OWN; ++e) total[e] = exponential(add(add(single(logit[e]), -high), -low));
  __syncthreads();
  for (int n = 0; n < N; ++n) {
    const Model& model = models.of[n];
    const float weight = weights[n], product = products[n];
    float prob[OWN];
#pragma unroll
    for (int e = 0; e < OWN; e += 4) load_four(model.value_V, own + e, words, prob + e);
#pragma unroll
    for (int e = 0; e < OWN; ++e) prob[e] = mul(prob[e], product);
    const int range = (int)model.range, K = (int)model.K;
    bool has_children = false;
    for (int m = range; m < range + K; ++m) has_children |= begins[m] < ends[m];
    if (has_children) {  // the same for all threads
      float4* mine = (float4*)(tile + tid * OWN);
#pragma unroll
      for (int e = 0; e < OWN; e += 4) mine[e / 4] = make_float4(prob[e], prob[e + 1], prob[e + 2], prob[e + 3]);
      __syncthreads();
      for (int m = range; m < range + K; ++m) {  // longer histories later
        const i64 end = ends[m];
        if (begins[m] >= end) continue;
        const float rest = rests[m];
        for (i64 g = begins[m] + tid; g < end; g += THREADS) {
          tile[model.word_G[g] - (u32)start] = mul(model.value_G[g], rest);
        }
        __syncthreads();
      }
#pragma unroll
      for (int e = 0; e < OWN; e += 4) {
        const float4 four = mine[e / 4];
        prob[e] = four.x, prob[e + 1] = four.y, prob[e + 2] = four.z, prob[e + 3] = four.w;
      }
    }
#pragma unroll
    for (int e = 0; e < OWN; ++e) total[e] = multiply_add(weight, prob[e], total[e]);
  }
  const bool wide = k > 32;
  Best best = {{0, 0}};
  const u64 least = __ldcg(bound_R + r);
  u64 worst = 0;
#pragma unroll
  for (int e = 0; e < OWN; ++e) {
    u64 key = own + e < words ? rank_key(total[e], (u32)(own + e)) : 0;
    if (key < least) key = 0;
    u32 mask = __ballot_sync(FULL_WARP, key > worst);
    if (e == 0 && __popc(mask) > FEW) {
      sort_keys(best, key, lists + warp * MAX_K);
      worst = key_at(best, k - 1, wide);
      mask = 0;
    }
#pragma unroll 1
    for (; mask; mask &= mask - 1) {
      const u64 candidate = __shfl_sync(FULL_WARP, key, __ffs(mask) - 1);
      if (candidate <= worst) continue;
      insert(best, candidate, wide);
      worst = key_at(best, k - 1, wide);
    }
  }
  if (lane == 0 && worst > least) atomicMax(bound_R + r, worst);
  __syncwarp();
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if (lane + 32 * q < k) lists[warp * MAX_K + lane + 32 * q] = best.key[q];
  }
  __syncthreads();
  const int top = 1 << (31 - __clz(k));
  for (int i = tid; i < WARPS * k; i += THREADS) {
    const int list = i / k;
    const u64 key = lists[list * MAX_K + i % k];
    int place = key ? i % k : k;
    for (int other = 0; other < WARPS && place < k; ++other) {
      if (other == list) continue;
      int before = 0;
#pragma unroll 1
      for (int step = top; step > 0; step /= 2) {
        if (before + step <= k && lists[other * MAX_K + before + step - 1] > key) before += step;
      }
      place += before;
    }
    if (place < k) keys[place] = key;
  }
}

// keys_RTK (R, T, k)  ->  words_RK (R, k) i32, probs_RK (R, k) f32. A warp takes a row. Grid: any, of whole warps.
extern "C" __global__ void merge_tiles(
    const u64* keys_RTK, i64 R, i64 T, i64 num_words, const double* log_sum_R, int* words_RK, float* probs_RK) {
  const int lane = lane_id(), k = (int)num_words;
  const bool wide = k > 32;
  const i64 warps = (i64)gridDim.x * (blockDim.x / 32);
  for (i64 r = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; r < R; r += warps) {
    const bool is_number = log_sum_R[r] == log_sum_R[r];
    Best best = {{0, 0}};
    u64 worst = 0;
    for (i64 base = 0; base < T * k; base += 32) {
      const u64 key = base + lane < T * k ? keys_RTK[r * T * k + base + lane] : 0;
      for (u32 mask = __ballot_sync(FULL_WARP, key > worst); mask; mask &= mask - 1) {
        const u64 candidate = __shfl_sync(FULL_WARP, key, __ffs(mask) - 1);
        if (candidate <= worst) continue;
        insert(best, candidate, wide);
        worst = key_at(best, k - 1, wide);
      }
    }
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      if (lane + 32 * q >= k) continue;
      words_RK[r * k + lane + 32 * q] = is_number ? (int)key_word(best.key[q]) : -1;
      probs_RK[r * k + lane + 32 * q] = is_number ? key_value(best.key[q]) : __int_as_float(0x7FC00000);
    }
  }
}
