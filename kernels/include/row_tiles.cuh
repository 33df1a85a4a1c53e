// Rows of distributions in tiles of TILE words, held in a warp's registers. Include after grid.cuh and floats.cuh.
#ifndef AT_ONCE
#define AT_ONCE 4  // a warp reads 32 * AT_ONCE children before it writes the first row
#endif

#ifdef HALF  // "f16" or "bf16"
typedef u16 out_t;
// Round two values to the nearest, ties to even; `low` becomes the lower half.
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

#if VECTOR  // rows start at multiples of 16 bytes; a lane stores neighbouring words with one instruction
#define PER ((int)(16 / sizeof(out_t)))
#else
#define PER 1
#endif
#define CHUNKS (TILE / 32 / PER)  // each of 32 * PER neighbouring words

// L2 evicts written rows first, so the data that kernels read stays cached.
__device__ __forceinline__ u64 leaves_first() {
  u64 policy;
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}

__device__ __forceinline__ void store_16_bytes(void* to, u32 a, u32 b, u32 c, u32 d, u64 policy) {
  asm volatile("st.global.L1::no_allocate.L2::cache_hint.v4.b32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "r"(a), "r"(b),
               "r"(c), "r"(d), "l"(policy) : "memory");
}

// Store the PER values of a lane; only the first `left` lie within the row.
__device__ __forceinline__ void store(out_t* to, const float* value, int left, u64 policy) {
#if VECTOR
  if (left >= PER) {
#ifdef HALF
    store_16_bytes(to, pair(value[0], value[1]), pair(value[2], value[3]), pair(value[4], value[5]),
                   pair(value[6], value[7]), policy);
#else
    store_16_bytes(to, __float_as_uint(value[0]), __float_as_uint(value[1]), __float_as_uint(value[2]),
                   __float_as_uint(value[3]), policy);
#endif
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    if (i < left) __stcs(to + i, rounded(value[i]));
  }
}

// The same for the bits of values, 4 bytes each.
__device__ __forceinline__ void store_bits(u32* to, const float* value, int left, u64 policy) {
#if VECTOR
  if (left >= PER) {
#pragma unroll
    for (int i = 0; i < PER; i += 4) {
      store_16_bytes(to + i, __float_as_uint(value[i]), __float_as_uint(value[i + 1]), __float_as_uint(value[i + 2]),
                     __float_as_uint(value[i + 3]), policy);
    }
    return;
  }
#endif
#pragma unroll
  for (int i = 0; i < PER; ++i) {
    if (i < left) __stcs(to + i, __float_as_uint(value[i]));
  }
}

// Load PER values; with VECTOR the address is a multiple of 16 bytes.
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

// Words are distinct, so at most `word` children have smaller words, and at most V - word have greater or equal ones.
__device__ __forceinline__ i64 least_from(i64 first, i64 end, i64 word, i64 V) {
  return word < V ? max(first, end - (V - word)) : end;
}
__device__ __forceinline__ i64 most_from(i64 first, i64 end, i64 word) { return min(end, first + word); }

// Load the unigram values of a tile that has `words` words; values past them are 0.
__device__ __forceinline__ void get_words(const float* value_V, i64 start, int words, float (&value)[CHUNKS][PER]) {
  int lane = lane_id();
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
}

#ifdef MULTIPLY
// Store the values of a tile; only the first `size` lie within the row.
__device__ __forceinline__ void store_tile(out_t* row, const float (&value)[CHUNKS][PER], int size) {
  const u64 policy = leaves_first();
#pragma unroll
  for (int c = 0; c < CHUNKS; ++c) {
    const int w = (c * 32 + lane_id()) * PER;
    store(row + w, value[c], size - w, policy);
  }
}

// Return the value of the next order for a word that is not a child: probabilities are multiplied, logarithms added.
__device__ __forceinline__ float backed_off(float value, float backoff) {
  return MULTIPLY ? mul(value, backoff) : add(value, backoff);
}

// The children of one history in one tile of a row of the highest order: lane k of a warp knows those of order k + 2, for
// k < used: `number` nodes from `begin` on, and the backoff of its history. With IS_STATE, values are bits that nothing is
// added to.
template <bool IS_STATE>
struct TileChildren {
  int used;
  CHILD begin;
  u32 number;
  float backoff;
  const u32* word_G;
  const float* value_G;
  u32 start;
  float* tile;  // shared memory for TILE floats of the warp, used only if there are children

  template <int ROUNDS>
  __device__ __forceinline__ void load(int k, u32 from, u32 (&word)[ROUNDS], float (&child)[ROUNDS]) {
    const CHILD first = __shfl_sync(FULL_WARP, begin, k);
    const u32 n = __shfl_sync(FULL_WARP, number, k);
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      const u32 p = from + r * 32 + lane_id();
      word[r] = 0xFFFFFFFFu;
      if (p < n) {
        word[r] = __ldg(word_G + first + p);
        child[r] = __ldg(value_G + first + p);
      }
    }
  }

  template <int ROUNDS>
  __device__ __forceinline__ void place(int k, u32 (&word)[ROUNDS], float (&child)[ROUNDS]) {
#pragma unroll 1
    for (int longer = k + 1; longer < (IS_STATE ? 0 : used); ++longer) {
      const float b = __shfl_sync(FULL_WARP, backoff, longer);
#pragma unroll
      for (int r = 0; r < ROUNDS; ++r) child[r] = backed_off(child[r], b);
    }
#pragma unroll
    for (int r = 0; r < ROUNDS; ++r) {
      if (word[r] != 0xFFFFFFFFu) tile[word[r] - start] = child[r];
    }
  }

  __device__ __forceinline__ void place_from(int k, u32 from) {  // from child number `from` on
    const u32 n = __shfl_sync(FULL_WARP, number, k);
#pragma unroll 1
    for (; from < n; from += 32 * AT_ONCE) {
      u32 word[AT_ONCE];
      float child[AT_ONCE];
      load(k, from, word, child);
      place(k, word, child);
    }
    __syncwarp();  // longer matches are placed later
  }

  // `value` holds the values of single words and receives those of the row.
  __device__ __forceinline__ void merge(float (&value)[CHUNKS][PER]) {
    const u32 lane = lane_id();
#pragma unroll 1
    for (int k = 0; k < (IS_STATE ? 0 : used); ++k) {
      const float b = __shfl_sync(FULL_WARP, backoff, k);
#pragma unroll
      for (int c = 0; c < CHUNKS; ++c) {
#pragma unroll
        for (int i = 0; i < PER; ++i) value[c][i] = backed_off(value[c][i], b);
      }
    }
    const u32 orders = __ballot_sync(FULL_WARP, number);  // that have children
    if (!orders) return;
    u32 word2[AT_ONCE], word3[1], word4[1];  // of orders 2 to 4, on their way together
    float child2[AT_ONCE], child3[1], child4[1];
    load(0, 0, word2, child2);
    load(1, 0, word3, child3);
    load(2, 0, word4, child4);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) put(tile + (c * 32 + lane) * PER, value[c]);
    __syncwarp();
    if (orders & 1) {
      place(0, word2, child2);
      place_from(0, 32 * AT_ONCE);
    }
    if (orders & 2) {
      place(1, word3, child3);
      place_from(1, 32);
    }
    if (orders & 4) {
      place(2, word4, child4);
      place_from(2, 32);
    }
#pragma unroll 1
    for (int k = 3; k < used; ++k) {
      if (orders >> k & 1) place_from(k, 0);
    }
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) get(tile + (c * 32 + lane) * PER, value[c]);
  }
};
#endif

// One warp writes one tile of all rows of one history: `size` values for each order n whose bit n - 1 is set in
// `orders`, from `row` on. Lane k handles order k + 2, for k < used; its children in the tile are nodes begin to
// stop - 1. `value` holds the order-1 values. Values stay in registers up to the highest order; the warp uses shared
// memory (TILE floats) only for orders that have children.
__device__ __forceinline__ void write_tile(
    float (&value)[CHUNKS][PER], float* tile, int used, i64 begin, i64 stop, float backoff, const u32* word_G,
    const float* value_G, i64 start, int size, u64 orders, i64 multiply, i64 stored, float nothing, out_t* row,
    i64 stride_N) {
  u32 lane = lane_id();
  u64 policy = leaves_first();
  float factor = 1, term = -0.0f;  // x * backoff + (-0) equals the product and x * 1 + backoff the sum, to the bit
  if (multiply) factor = backoff; else term = backoff;
  u32 upto = 0;  // children of this and all lower orders in the tile
  // Rows of stored values need no children of orders that are not asked for.
  if (lane < used && (!stored || orders >> (lane + 1) & 1)) upto = (u32)(stop - begin);
  u32 before = upto;
  for (int d = 1; d < used; d *= 2) {
    u32 lower = __shfl_up_sync(FULL_WARP, upto, d);
    if (lane >= d) upto += lower;
  }
  before = upto - before;
  begin -= before;  // concatenate all orders' children: number p of this order is node begin + p
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
