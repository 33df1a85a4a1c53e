// A word drawn from a row: P(w | history)^(1 / temperature), of all words, of the top k or of the top p, by a uniform
// number times the sum of the weights. Top k and top p refuse a drawn word of too low a rank and draw again among the
// words above it (FlashInfer: Ye et al., "Efficient and Customizable Attention Engine for LLM Inference Serving",
// 2025), so no row is sorted. `draw_words` reads less: this is for low temperatures, and for its failed draws.
#include "grid.cuh"
#include "integer_hash.cuh"
#include "draws.cuh"
#include "floats.cuh"
#include "ranks.cuh"
// One history per block. The block computes its row tile by tile in shared memory and never stores the whole row. One
// sweep finds the greatest value, a second one the sum of weights of each tile. Then the block recomputes the tile that
// the draw hit. With top_k or top_p, each draw takes one more sweep: it sums the words that rank above the drawn word.

#define THREADS 256
#define TILE 4096
#define PER_THREAD (TILE / THREADS)

struct Row {
  const u32* word_G;
  const float* value_G;
  const float* value_V;
  i64 V, K, left_out;
  i64* next;       // the next child of each range, shortest history first
  const i64* end;  // end of each range
  const float* backoff;
  float* tile;

  // Compute the tile that starts at word t0. `next` points at the tile's first children, afterwards at the next tile's.
  __device__ void make(i64 t0) {
    i64 t1 = min(t0 + TILE, V);
    __syncthreads();  // all threads are done with the tile before
#pragma unroll 4
    for (i64 v = t0 + threadIdx.x; v < t1; v += THREADS) tile[v - t0] = back_off(value_V[v], 0);
    __syncthreads();
    for (i64 m = 0; m < K; ++m) {
      i64 at = next[m];
      if (at == end[m]) continue;
      int taken = THREADS;
      while (taken == THREADS) {
        i64 i = at + threadIdx.x;
        u32 word = i < end[m] ? word_G[i] : 0;
        bool inside = i < end[m] && word < t1;
        if (inside) tile[word - t0] = back_off(value_G[i], m + 1);
        taken = __syncthreads_count(inside);
        at += taken;
      }
      if (threadIdx.x == 0) next[m] = at;
    }
    if (t0 <= left_out && left_out < t1) {
      if (threadIdx.x == 0) tile[left_out - t0] = 0;
      __syncthreads();
    }
  }

  __device__ float back_off(float value, i64 from) {
    for (i64 m = from; m < K; ++m) value = mul(value, backoff[m]);
    return value;
  }
};

struct Weights {
  double scale, unit, inverse, greatest;

  __device__ u64 of(float value) {
    if (inverse == 1) return (u64)(to_double(value) * scale);
    return (u64)(unit * pow(to_double(value) / greatest, inverse));
  }
};

// Ranges and backoffs (H, K) of the histories of 1 to K words, words and values as in draw_by_tiles.py, numbers_H (H,)
//   ->  id_H (H,). inverse: 1 / temperature, or 0 for temperature 0. unit: the weight of the most probable word.
// Shared memory: 8 bytes per tile and 20 bytes per range.
extern "C" __global__ void __launch_bounds__(THREADS, 4) draw_by_tiles(
    const CHILD* first_HK, const CHILD* end_HK, const float* backoff_HK, i64 H, i64 K, const u32* word_G,
    const float* value_G, const float* value_V, i64 V, const i64* numbers_H, u64 seed, double inverse, double unit,
    i64 top_k, double top_p, i64 left_out, int* id_H) {
  extern __shared__ u64 weight_S[];  // of each tile
  __shared__ float tile[TILE];
  __shared__ u64 warps[THREADS / 32];
  __shared__ u32 above;
  __shared__ int drawn;
  i64 tiles = (V + TILE - 1) / TILE;
  i64* next = (i64*)(weight_S + tiles);
  i64* end = next + K;
  float* backoff = (float*)(end + K);
  Row row = {word_G, value_G, value_V, V, K, left_out, next, end, backoff, tile};
  u32 lane = lane_id(), warp = threadIdx.x / 32;
  for (i64 h = blockIdx.x; h < H; h += gridDim.x) {
    __syncthreads();  // all threads are done with the history before
    for (i64 m = threadIdx.x; m < K; m += THREADS) {
      next[m] = first_HK[h * K + m];
      end[m] = end_HK[h * K + m];
      backoff[m] = backoff_HK[h * K + m];
    }
    u64 best = 0;
    for (i64 t = 0; t < tiles; ++t) {
      row.make(t * TILE);
      for (i64 v = t * TILE + threadIdx.x; v < min((t + 1) * TILE, V); v += THREADS)
        best = max(best, rank_key(tile[v - t * TILE], (u32)v));
    }
    for (int d = 16; d > 0; d /= 2) best = max(best, __shfl_xor_sync(FULL_WARP, best, d));
    if (lane == 0) warps[warp] = best;
    __syncthreads();
    for (int w = 0; w < THREADS / 32; ++w) best = max(best, warps[w]);
    double greatest = V ? to_double(key_value(best)) : 0;
    if (!(greatest > 0) || inverse == 0) {
      if (threadIdx.x == 0) id_H[h] = greatest > 0 ? (int)key_word(best) : -1;
      continue;
    }

    Weights weights = {unit / greatest, unit, inverse, greatest};
    u64 stream = stream_of(seed, (u64)numbers_H[h]);
    u64 pivot = 0, all = 0;  // only words whose key is above the pivot count
    int id = -1;
    for (u64 draw = 0;; ++draw) {
      __syncthreads();
      for (i64 m = threadIdx.x; m < K; m += THREADS) next[m] = first_HK[h * K + m];
      for (i64 t = threadIdx.x; t < tiles; t += THREADS) weight_S[t] = 0;
      if (threadIdx.x == 0) above = 0;
      u32 count = 0;
      for (i64 t = 0; t < tiles; ++t) {
        row.make(t * TILE);
        u64 sum = 0;
        for (i64 v = t * TILE + threadIdx.x; v < min((t + 1) * TILE, V); v += THREADS) {
          float value = tile[v - t * TILE];
          if (rank_key(value, (u32)v) > pivot) sum += weights.of(value), ++count;
        }
        for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(FULL_WARP, sum, d);
        if (lane == 0) atomicAdd(&weight_S[t], sum);
      }
      if (count) atomicAdd(&above, count);
      __syncthreads();
      u64 total = 0;
      for (i64 t = 0; t < tiles; ++t) total += weight_S[t];
      if (draw == 0) all = total;
      else if ((top_k == 0 || above < top_k) && (top_p == 1 || (double)total < top_p * (double)all)) break;

      u64 x = __umul64hi(random_of(stream, draw), total);  // 0 to total - 1
      i64 t = 0;
      while (x >= weight_S[t]) x -= weight_S[t++];
      for (i64 m = threadIdx.x; m < K; m += THREADS) {
        i64 low = first_HK[h * K + m], high = end[m];
        while (low < high) {
          i64 middle = (low + high) / 2;
          if (word_G[middle] < t * TILE) low = middle + 1; else high = middle;
        }
        next[m] = low;
      }
      row.make(t * TILE);
      i64 v0 = t * TILE + threadIdx.x * PER_THREAD, v1 = min(v0 + PER_THREAD, V);
      u64 sum = 0;
      for (i64 v = v0; v < v1; ++v) {
        float value = tile[v - t * TILE];
        if (rank_key(value, (u32)v) > pivot) sum += weights.of(value);
      }
      u64 before = sum;
      for (int d = 1; d < 32; d *= 2) {
        u64 lower = __shfl_up_sync(FULL_WARP, before, d);
        if (lane >= d) before += lower;
      }
      if (lane == 31) warps[warp] = before;
      __syncthreads();
      before -= sum;
      for (u32 w = 0; w < warp; ++w) before += warps[w];
      if (before <= x && x < before + sum) {
        for (i64 v = v0; v < v1; ++v) {
          float value = tile[v - t * TILE];
          u64 weight = rank_key(value, (u32)v) > pivot ? weights.of(value) : 0;
          if (x < before + weight) {
            drawn = (int)v;
            break;
          }
          before += weight;
        }
      }
      __syncthreads();
      id = drawn;
      if (top_k == 0 && top_p == 1) break;
      pivot = rank_key(tile[id - t * TILE], (u32)id);
    }
    if (threadIdx.x == 0) id_H[h] = id;
  }
}
