#include "common.cuh"
#include "floats.cuh"
#include "rows.cuh"

typedef int i32;

#define ROUNDS (TILE / THREADS / PER)
#define GROUP 4         // lanes that search for a bound together
#define MAX_RANGES 128  // of children, of the histories of a block; as in advance_states.py
#define AHEAD 4         // suffixes of a history, whose first children are loaded while the history before is written
#define NONE 0x7FC0DEADu  // a word that is no child: bits of a NaN, which no value is

// Load PER states; with VECTOR the address is a multiple of 16 bytes.
__device__ __forceinline__ void get_states(const i32* from, i32* state) {
#if VECTOR
#pragma unroll
  for (int e = 0; e < PER; e += 4) {
    const int4 four = *(const int4*)(from + e);
    state[e] = four.x; state[e + 1] = four.y; state[e + 2] = four.z; state[e + 3] = four.w;
  }
#else
  state[0] = from[0];
#endif
}

// Store the PER states of a lane; only the first `left` lie within the row.
__device__ __forceinline__ void store_states(i32* to, const i32* state, i64 left) {
#if VECTOR
  if (left >= PER) {
#pragma unroll
    for (int e = 0; e < PER; e += 4) {
      __stcs((int4*)(to + e), make_int4(state[e], state[e + 1], state[e + 2], state[e + 3]));
    }
    return;
  }
#endif
#pragma unroll
  for (int e = 0; e < PER; ++e) {
    if (e < left) __stcs(to + e, state[e]);
  }
}

// states_H (H,) i32, nodes_M (M,) and state_G (G,) i32 of a StateTable, first_child_M (M + 1,) CHILD, backoff_M (M,) f32 or
// null, word_G u32 and value_G f32 (G,), value_V (V,) f32  ->  rows and, if STATES, next: see advance_states.py.
// A block makes TILE words of the rows of `most` neighbouring histories: grid x counts tiles, y and z such groups. It holds the
// values of single words in registers; children go to shared memory.
// Floor: bytes of the rows over the rate of writes. For few words, reads that depend on each other: K for the suffixes of
// a state, then a search of its children.
extern "C" __global__ void __launch_bounds__(THREADS) advance_states(
    const i32* states_H, i64 H, i64 K, i64 most, const ulonglong2* nodes_M, i64 M, const CHILD* first_child_M,
    const float* backoff_M, i64 multiply, const u32* word_G, const float* value_G, const float* value_V,
    const i32* state_G, i64 V, out_t* rows, i64 width, i64 stride, i32* next, i64 next_width, i64 next_stride) {
  alignas(16) __shared__ float values[TILE];  // of children, and NONE
#if STATES
  __shared__ i32 nexts[TILE];
#endif
  __shared__ i64 nodes[MAX_RANGES], begins[MAX_RANGES], ends[MAX_RANGES];  // of suffix k of history i: number i * K + k
  __shared__ float factors[MAX_RANGES], terms[MAX_RANGES];                // that back off from it
  __shared__ int lengths[MAX_RANGES];                                     // suffixes of a history
  const int tid = threadIdx.x, lane = lane_id();
  const i64 start = (i64)blockIdx.x * TILE, from = ((i64)blockIdx.z * gridDim.y + blockIdx.y) * most;
  if (from >= H) return;
  const int histories = (int)min(most, H - from);
  for (int i = tid; i < histories; i += THREADS) {
    int length = 0;
    for (i64 node = states_H[from + i]; node >= 0 && node < M;) {
      nodes[i * K + length++] = node;  // the longest first
      const u32 suffix = (u32)(nodes_M[node].y >> 32);
      node = suffix == 0xFFFFFFFFu ? -1 : (i64)suffix;
    }
    lengths[i] = length;
  }
  float value[ROUNDS][PER];
#if STATES
  i32 state[ROUNDS][PER];
#endif
#pragma unroll
  for (int c = 0; c < ROUNDS; ++c) {
    const i64 w = start + (c * THREADS + tid) * PER;
    if (w + PER <= V) {
      get(value_V + w, value[c]);
#if STATES
      get_states(state_G + w, state[c]);
#endif
    } else {
#pragma unroll
      for (int e = 0; e < PER; ++e) {
        value[c][e] = w + e < V ? value_V[w + e] : 0;
#if STATES
        state[c][e] = w + e < V ? state_G[w + e] : 0;
#endif
      }
    }
  }
  for (int i = tid; i < TILE; i += THREADS) values[i] = __uint_as_float(NONE);
  __syncthreads();
  const int bounds = 2 * histories * (int)K;  // of each suffix, where its children in the tile begin and end
  for (int base = 0; base < bounds; base += THREADS / GROUP) {
    const int bound = base + tid / GROUP, range = bound / 2;
    const int i = bound < bounds ? range / (int)K : 0, k = range - i * (int)K;
    const bool is_there = bound < bounds && k < lengths[i];
    const i64 word = min(start + (bound % 2 ? TILE : 0), V);
    i64 low = 0, high = 0;
    if (is_there) {
      const i64 node = nodes[i * K + lengths[i] - 1 - k], first = first_child_M[node], end = first_child_M[node + 1];
      if (lane % GROUP == 0 && bound % 2 == 0) {
        const float backoff = backoff_M ? backoff_M[node] : multiply ? 1.0f : -0.0f;
        factors[range] = multiply ? backoff : 1.0f;
        terms[range] = multiply ? -0.0f : backoff;  // x * backoff + (-0) and x * 1 + backoff are exact, to the bit
      }
      low = least_from(first, end, word, V);
      high = most_from(first, end, word);
    }
    while (__any_sync(FULL_WARP, low < high)) {
      const i64 step = (high - low) / (GROUP + 1) + 1, probe = low + (lane % GROUP + 1) * step - 1;
      const u32 below = __ballot_sync(FULL_WARP, probe < high && __ldg(word_G + probe) < (u32)word);
      low += __popc(below >> lane / GROUP * GROUP & ((1u << GROUP) - 1)) * step;
      high = min(high, low + step - 1);
    }
    if (is_there && lane % GROUP == 0) (bound % 2 ? ends : begins)[range] = low;
  }
  __syncthreads();
  const u64 policy = leaves_first();
  u32 ahead_word[AHEAD];
  float ahead_value[AHEAD];
#if STATES
  i32 ahead_state[AHEAD];
#endif
  auto load_ahead = [&](int i) {
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) {
      const int range = i * (int)K + n;
      if (i >= histories || n >= lengths[i] || begins[range] + tid >= ends[range]) continue;
      const i64 child = begins[range] + tid;
      ahead_word[n] = __ldg(word_G + child);
      ahead_value[n] = __ldg(value_G + child);
#if STATES
      ahead_state[n] = __ldg(state_G + child);
#endif
    }
  };
  load_ahead(0);
  for (int i = 0; i < histories; ++i) {
    const int first = i * (int)K, last = first + lengths[i];  // ranges
    auto put_child = [&](int range, u32 word, float child, i32 after) {
      for (int longer = range + 1; longer < last; ++longer) child = multiply_add(child, factors[longer], terms[longer]);
      values[word - (u32)start] = child;
#if STATES
      nexts[word - (u32)start] = after;
#endif
    };
    auto put_others = [&](int range, i64 child) {  // from `child` on
#pragma unroll 4
      for (; child < ends[range]; child += THREADS) {
#if STATES
        const i32 after = __ldg(state_G + child);
#else
        const i32 after = 0;
#endif
        put_child(range, __ldg(word_G + child), __ldg(value_G + child), after);
      }
    };
    // A child of a history is one of its suffix, too: longer histories come later, and none follows an empty range.
    const bool any = first < last && begins[first] < ends[first];
#pragma unroll
    for (int n = 0; n < AHEAD; ++n) {
      const int range = first + n;
      if (range >= last || begins[range] >= ends[range]) break;
      if (begins[range] + tid < ends[range]) {
#if STATES
        put_child(range, ahead_word[n], ahead_value[n], ahead_state[n]);
#else
        put_child(range, ahead_word[n], ahead_value[n], 0);
#endif
      }
      put_others(range, begins[range] + THREADS + tid);
      __syncthreads();
    }
    for (int range = first + AHEAD; range < last && begins[range] < ends[range]; ++range) {
      put_others(range, begins[range] + tid);
      __syncthreads();
    }
    load_ahead(i + 1);
#pragma unroll
    for (int c = 0; c < ROUNDS; ++c) {
      const int at = (c * THREADS + tid) * PER;
      float out[PER], child[PER];
#pragma unroll
      for (int e = 0; e < PER; ++e) out[e] = value[c][e];
      for (int range = first; range < last; ++range) {
#pragma unroll
        for (int e = 0; e < PER; ++e) out[e] = multiply_add(out[e], factors[range], terms[range]);
      }
#if STATES
      i32 after[PER];
#pragma unroll
      for (int e = 0; e < PER; ++e) after[e] = state[c][e];
#endif
      if (any) {
        get(values + at, child);
        bool found = false;
#pragma unroll
        for (int e = 0; e < PER; ++e) {
          if (__float_as_uint(child[e]) == NONE) continue;
          out[e] = child[e];
          child[e] = __uint_as_float(NONE);
          found = true;
#if STATES
          after[e] = nexts[at + e];
#endif
        }
        if (found) put(values + at, child);
      }
      const i64 left = width - start - at;
      if (left > 0) store(rows + (from + i) * stride + start + at, out, (int)min(left, (i64)PER), policy);
#if STATES
      if (next_width > start + at) {
        store_states(next + (from + i) * next_stride + start + at, after, next_width - start - at);
      }
#endif
    }
    if (any) __syncthreads();
  }
}
