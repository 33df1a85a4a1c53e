#include "common.cuh"
// first_HK, end_HK, backoff_HK (H, K), word_G, value_G (G,), value_V (V,)  ->  out: for every history h and every
// order n whose bit n - 1 is set in `orders` a row of V values, the i-th of them from out[h * stride_H + i * stride_N]
// on: see write_rows.py. K <= 32; `strip` is a multiple of TILE.
// A warp writes `strip` words of the rows of one history, tile by tile, and waits for no other warp: many of them on a
// multiprocessor hide each other's searches. A tile's values stay in registers from order 1 to the highest; shared
// memory is touched only where an order has children in the tile. Lane k looks after order k + 2. The warps of a block
// take the same words of different histories, so that value_V comes from the L1 cache.
#define WARPS (THREADS / 32)
#define NO_WORD 0xffffffffu  // above all words

#ifdef HALF  // "f16" or "bf16"
typedef u16 out_t;
// Two values, each rounded to the nearest, ties to even; the first one in the lower half.
__device__ __forceinline__ u32 pair(float low, float high) {
  u32 both;
  asm("cvt.rn." HALF "x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
}
__device__ __forceinline__ out_t rounded(float value) { return (u16)pair(value, 0); }
#else
typedef float out_t;
__device__ __forceinline__ out_t rounded(float value) { return value; }
#endif

#if VECTOR  // rows lie at multiples of 16 bytes: a lane has neighbouring words, stored in one go
#define PER ((int)(16 / sizeof(out_t)))
#else
#define PER 1
#endif
#define CHUNKS (TILE / 32 / PER)  // of 32 * PER neighbouring words

// The PER values of a lane, of which the first `left` lie within the row.
__device__ __forceinline__ void store(out_t* to, const float* value, int left) {
#if VECTOR
  if (left >= PER) {
#ifdef HALF
    __stcs((uint4*)to, make_uint4(pair(value[0], value[1]), pair(value[2], value[3]), pair(value[4], value[5]),
                                  pair(value[6], value[7])));
#else
    __stcs((float4*)to, make_float4(value[0], value[1], value[2], value[3]));
#endif
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    if (i < left) __stcs(to + i, rounded(value[i]));
  }
}

// PER values, from a multiple of 16 bytes on where there is more than one.
__device__ __forceinline__ void get(const float* from, float* value) {
#if VECTOR
#pragma unroll
  for (int i = 0; i < PER; i += 4) {
    float4 v = *(const float4*)(from + i);
    value[i] = v.x; value[i + 1] = v.y; value[i + 2] = v.z; value[i + 3] = v.w;
  }
#else
  value[0] = from[0];
#endif
}
__device__ __forceinline__ void put(float* to, const float* value) {
#if VECTOR
#pragma unroll
  for (int i = 0; i < PER; i += 4) {
    *(float4*)(to + i) = make_float4(value[i], value[i + 1], value[i + 2], value[i + 3]);
  }
#else
  to[0] = value[0];
#endif
}

// The first of nodes begin .. end - 1 whose word is not below `word`, else end. The whole warp asks for the same.
__device__ __forceinline__ i64 lower_bound(const u32* word_G, i64 begin, i64 end, u32 word) {
  while (begin < end) {
    i64 step = (end - begin + 31) / 32, at = begin + lane_id() * step;
    int below = __popc(__ballot_sync(FULL_WARP, at < end && __ldg(word_G + min(at, end - 1)) < word));
    if (below == 0) break;  // of the 32 nodes that are `step` apart
    end = min(begin + below * step, end);
    begin += (below - 1) * step + 1;
  }
  return begin;
}

extern "C" __global__ void __launch_bounds__(THREADS) write_rows(
    const CHILD* first_HK, const CHILD* end_HK, const float* backoff_HK, i64 H, i64 K, const u32* word_G,
    const float* value_G, const float* value_V, i64 V, u64 orders, i64 multiply, i64 stored, float nothing, i64 strip,
    out_t* out, i64 stride_H, i64 stride_N) {
  __shared__ float4 tiles[WARPS][TILE / 4];
  float* tile = (float*)tiles[threadIdx.x / 32];
  int lane = lane_id(), used = 63 - __clzll(orders);  // orders above the first
  i64 strips = (V + strip - 1) / strip, items = (H + WARPS - 1) / WARPS * strips;
  for (i64 item = blockIdx.x; item < items; item += gridDim.x) {
    i64 h = item / strips * WARPS + threadIdx.x / 32;
    if (h >= H) continue;
    i64 begin = item % strips * strip, last = min(begin + strip, V);

    i64 at = 0, end = 0;             // the children of this lane's order from `begin` on
    float factor = 1, term = -0.0f;  // x * backoff - 0 and x * 1 + backoff are the product and the sum, bit for bit
    if (lane < used) {
      at = first_HK[h * K + lane];
      end = end_HK[h * K + lane];
      if (stored && !(orders >> (lane + 1) & 1)) at = end;  // no row of this order, and no other needs it
      float backoff = backoff_HK[h * K + lane];
      if (multiply) factor = backoff; else term = backoff;
    }
    for (int k = 0; begin > 0 && k < used; ++k) {
      i64 found = lower_bound(word_G, __shfl_sync(FULL_WARP, at, k), __shfl_sync(FULL_WARP, end, k), (u32)begin);
      if (lane == k) at = found;
    }

    for (i64 start = begin; start < last; start += TILE) {
      int size = (int)min((i64)TILE, V - start);
      u32 first = (u32)start, next = at < end ? __ldg(word_G + at) : NO_WORD;
      float value[CHUNKS][PER];
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        int w = (c * 32 + lane) * PER;
        if (w + PER <= size) {
          get(value_V + start + w, value[c]);
        } else {
#pragma unroll
          for (int i = 0; i < PER; ++i) value[c][i] = w + i < size ? value_V[start + w + i] : 0;
        }
      }
      u32 with_children = __ballot_sync(FULL_WARP, next < first + size);  // bit k: order k + 2 has some in the tile
      out_t* row = out + h * stride_H + start;
      for (int k = -1; k < used; ++k) {
        if (k >= 0) {
          float f = __shfl_sync(FULL_WARP, factor, k), t = __shfl_sync(FULL_WARP, term, k);
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
            for (int i = 0; i < PER; ++i) value[c][i] = stored ? nothing : __fmaf_rn(value[c][i], f, t);
          }
        }
        if (k >= 0 && (with_children >> k & 1)) {
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c) put(tile + (c * 32 + lane) * PER, value[c]);
          __syncwarp();
          i64 child = __shfl_sync(FULL_WARP, at, k) + lane, stop = __shfl_sync(FULL_WARP, end, k);
          int inside;
          do {
            u32 word = child < stop ? __ldg(word_G + child) : NO_WORD;
            bool is_inside = word < first + size;
            if (is_inside) tile[word - first] = __ldg(value_G + child);
            inside = __popc(__ballot_sync(FULL_WARP, is_inside));
            child += inside;
          } while (inside == 32);
          if (lane == k) at = child - lane;
          __syncwarp();
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c) get(tile + (c * 32 + lane) * PER, value[c]);
        }
        if (orders >> (k + 1) & 1) {
#pragma unroll
          for (int c = 0; c < CHUNKS; ++c) {
            int w = (c * 32 + lane) * PER;
            store(row + w, value[c], size - w);
          }
          row += stride_N;
        }
      }
    }
  }
}
