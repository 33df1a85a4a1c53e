#include "common.cuh"
#include "floats.cuh"
// Two kernels: where the children of each tile, of TILE words, begin; and the rows: see write_rows.py.
#define AT_ONCE 4  // times 32 children are read before the first row is written

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

// What is written leaves the cache first, so that what is read stays there.
__device__ __forceinline__ u64 leaves_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

// The PER values of a lane, of which the first `left` lie within the row.
__device__ __forceinline__ void store(out_t* to, const float* value, int left, u64 policy) {
#if VECTOR
  if (left >= PER) {
#ifdef HALF
    u32 a = pair(value[0], value[1]), b = pair(value[2], value[3]), c = pair(value[4], value[5]),
        d = pair(value[6], value[7]);
#else
    u32 a = __float_as_uint(value[0]), b = __float_as_uint(value[1]), c = __float_as_uint(value[2]),
        d = __float_as_uint(value[3]);
#endif
    asm volatile("st.global.L1::no_allocate.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(a),
                 "r"(b), "r"(c), "r"(d), "l"(policy) : "memory");
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

// Words are different, so at most `word` children lie below it, and at most V - word do not.
__device__ __forceinline__ i64 least_from(i64 first, i64 end, i64 word, i64 V) {
  return word < V ? max(first, end - (V - word)) : end;
}
__device__ __forceinline__ i64 most_from(i64 first, i64 end, i64 word) { return min(end, first + word); }

// first_HK, end_HK (H, K), word_G (G,)  ->  start_HTK (H, tiles + 1, K): the first child whose word is in a tile or
// behind it; at last the end. The grid's x goes over tiles and orders of one history, its y over histories, in any
// number.
extern "C" __global__ void tile_starts(
    const CHILD* first_HK, const CHILD* end_HK, i64 H, i64 K, const u32* word_G, i64 V, i64 tiles, CHILD* start_HTK) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, k = i / (u32)(tiles + 1), t = i % (u32)(tiles + 1);
  if (k >= K) return;
  for (i64 h = blockIdx.y * blockDim.y + threadIdx.y; h < H; h += gridDim.y * blockDim.y) {
    i64 first = first_HK[h * K + k], end = end_HK[h * K + k], word = (i64)t * TILE;
    i64 low = least_from(first, end, word, V), high = most_from(first, end, word);
    while (low < high) {
      i64 middle = (low + high) / 2;
      if (__ldg(word_G + middle) < (u32)word) low = middle + 1; else high = middle;
    }
    start_HTK[(h * (tiles + 1) + t) * K + k] = (CHILD)low;
  }
}

// The same for one tile and its end, begin and stop of the first K <= 16 lanes, by the whole warp: a group of lanes for
// each, so that few reads wait for each other.
__device__ __forceinline__ void search(const u32* word_G, const CHILD* first_K, const CHILD* end_K, int K, i64 start,
                                       i64 V, i64& begin, i64& stop) {
  int log2_size = K ? __clz(2 * K - 1) - 27 : 0, size = 1 << log2_size;
  int group = lane_id() >> log2_size, place = lane_id() & (size - 1);
  i64 word = start + group % 2 * TILE, low = 0, high = 0;
  if (group / 2 < K) {
    i64 first = first_K[group / 2], end = end_K[group / 2];
    low = least_from(first, end, word, V);
    high = most_from(first, end, word);
  }
  while (__any_sync(FULL_WARP, low < high)) {
    i64 step = (high - low >> max(log2_size, 1)) + 1, probe = low + (place + 1) * step - 1;
    u32 below = __ballot_sync(FULL_WARP, probe < high && __ldg(word_G + probe) < (u32)word) >> (lane_id() - place);
    low += __popc(below & ((1u << size) - 1)) * step;
    high = min(high, low + step - 1);
  }
  begin = __shfl_sync(FULL_WARP, low, 2 * lane_id() << log2_size);
  stop = __shfl_sync(FULL_WARP, low, (2 * lane_id() + 1) << log2_size);
}

// Asks for nodes first .. end - 1 of an array, by lines of 128 bytes. The whole warp asks for the same. They stay in the
// cache while the rows pass through it: many histories have the same children.
__device__ __forceinline__ void prefetch(const void* array_G, i64 first, i64 end) {
  u64 line = ((u64)array_G + 4 * first) / 128 + lane_id(), last = ((u64)array_G + 4 * end + 127) / 128;
  for (; line < last; line += 32) asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(line * 128));
}

// first, end, backoff_HK (H, K), word_G, value_G (G,), value_V (V,)  ->  out: for every history h and every order n
// whose bit n - 1 is set in `orders` a row of V values, the i-th of them from out[h * stride_H + i * stride_N] on, and
// behind it anything up to `width` values. K <= 32. Children of tile t are the nodes from first[(h * ranges + t) * K + k]
// to end[(h * ranges + t) * K + k]; with `ranges` 1 those of the whole history, among which each warp searches, K <= 16.
// A block, of one warp, writes a tile of the rows of one history; the grid's x are the tiles, its y and z histories.
// Blocks start in the order of their numbers, so at any time they write next to each other, in few rows: the memory
// reaches its full rate for nothing else. Reading between writes costs it far more than the bytes, so the children of
// `together` histories are asked for at once, while the histories before these are written; with 0 nothing is asked for.
// A tile's values stay in registers from order 1 to the highest; shared memory is touched only where an order has
// children in the tile. Lane k looks after order k + 2.
extern "C" __global__ void __launch_bounds__(32) write_rows(
    const CHILD* first, const CHILD* end, i64 ranges, const float* backoff_HK, i64 H, i64 K, const u32* word_G,
    const float* value_G, const float* value_V, i64 V, i64 width, i64 together, u64 orders, i64 multiply, i64 stored,
    float nothing, out_t* out, i64 stride_H, i64 stride_N) {
  __shared__ float4 shared[TILE / 4];
  float* tile = (float*)shared;
  u32 lane = lane_id();
  int used = 63 - __clzll(orders);  // orders above the first
  u64 policy = leaves_first();
  i64 h = (i64)blockIdx.z * gridDim.y + blockIdx.y, tiles = gridDim.x, t = blockIdx.x, start = t * TILE;
  if (h >= H) return;
  int words = (int)min((i64)TILE, V - start), size = (int)min((i64)TILE, width - start);
  float value[CHUNKS][PER];
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    int w = (c * 32 + lane) * PER;
    if (w + PER <= words) {
      get(value_V + start + w, value[c]);
    } else {
#pragma unroll
      for (int i = 0; i < PER; ++i) value[c][i] = w + i < words ? value_V[start + w + i] : 0;
    }
  }
  float factor = 1, term = -0.0f;  // x * backoff - 0 and x * 1 + backoff are the product and the sum, bit for bit
  if (lane < used) {
    float backoff = backoff_HK[h * K + lane];
    if (multiply) factor = backoff; else term = backoff;
  }
  i64 begin = 0, stop = 0;
  if (ranges == 1) {
    search(word_G, first + h * K, end + h * K, used, start, V, begin, stop);
  } else if (lane < used) {
    i64 range = (h * ranges + t) * K + lane;
    begin = first[range];
    stop = end[range];
  }
  u32 upto = 0;  // children of this order and of all below, in the tile
  // Of what is stored, other orders are needed for nothing.
  if (lane < used && (!stored || orders >> (lane + 1) & 1)) upto = (u32)(stop - begin);
  if (t < together) {  // else this block need not ask
    i64 in_group = h % together, asked = in_group * tiles + t;
    i64 range = (h - in_group + together + asked) * ranges * K;
    if (asked < together && range < H * ranges * K) {
      for (int k = 0; k < used; ++k) {
        prefetch(word_G, first[range + k], end[range + (tiles - 1) * K + k]);
        prefetch(value_G, first[range + k], end[range + (tiles - 1) * K + k]);
      }
    }
  }
  u32 before = upto;
  for (int d = 1; d < used; d *= 2) {
    u32 lower = __shfl_up_sync(FULL_WARP, upto, d);
    if (lane >= d) upto += lower;
  }
  before = upto - before;
  begin -= before;  // of all orders' children one after the other, number p of this order is node begin + p
  u32 total = used ? __shfl_sync(FULL_WARP, upto, used - 1) : 0;

  u32 word[AT_ONCE];
  float child_value[AT_ONCE];
#pragma unroll
  for (int r = 0; r < AT_ONCE; ++r) {
    if (total <= r * 32) break;
    u32 p = r * 32 + lane;
    int k = 0;
    for (int below = 0; below < used; ++below) k += p >= __shfl_sync(FULL_WARP, upto, below);
    i64 child = __shfl_sync(FULL_WARP, begin, k) + p;
    if (k < used) {
      word[r] = __ldg(word_G + child) - (u32)start;
      child_value[r] = __ldg(value_G + child);
    }
  }

  out_t* row = out + h * stride_H + start;
  for (int k = -1; k < used; ++k) {
    if (k >= 0) {
      if (stored) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
          for (int i = 0; i < PER; ++i) value[c][i] = nothing;
        }
      } else {
        float f = __shfl_sync(FULL_WARP, factor, k), t = __shfl_sync(FULL_WARP, term, k);
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
          for (int i = 0; i < PER; ++i) value[c][i] = multiply_add(value[c][i], f, t);
        }
      }
      u32 from = __shfl_sync(FULL_WARP, before, k), to = __shfl_sync(FULL_WARP, upto, k);
      if (from < to) {
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) put(tile + (c * 32 + lane) * PER, value[c]);
        __syncwarp();
#pragma unroll
        for (int r = 0; r < AT_ONCE; ++r) {
          if (total <= r * 32) break;
          u32 p = r * 32 + lane;
          if (from <= p && p < to) tile[word[r]] = child_value[r];
        }
        if (to > AT_ONCE * 32) {
          i64 first = __shfl_sync(FULL_WARP, begin, k);
          for (u32 p = max(from, AT_ONCE * 32) + lane; p < to; p += 32) {
            tile[__ldg(word_G + first + p) - (u32)start] = __ldg(value_G + first + p);
          }
        }
        __syncwarp();
#pragma unroll
        for (int c = 0; c < CHUNKS; ++c) get(tile + (c * 32 + lane) * PER, value[c]);
      }
    }
    if (orders >> (k + 1) & 1) {
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
        int w = (c * 32 + lane) * PER;
        store(row + w, value[c], size - w, policy);
      }
      row += stride_N;
    }
  }
}
