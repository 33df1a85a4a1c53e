// The k words of greatest P(w | history), from children of a history and of its suffixes, without making the row.
#include "grid.cuh"
#include "floats.cuh"
#include "sorted_search.cuh"
#include "ranks.cuh"
// One row (a history and an order n) per block. Candidates come source by source: the children of the history of n - 1
// words, of n - 2, ..., of 1 word, then all unigrams (source 0), greatest first. The block keeps candidates as keys
// (ranks.cuh) in shared memory. When the keys fill it, the block prunes them; the k-th greatest key becomes a bound.
// Later candidates below the bound are dropped. Few pass it, and only those are looked up in the next longer source,
// whose value overrides theirs.

#define THREADS 256
#define WARPS (THREADS / 32)
#define PER_THREAD 4
#define TILE (THREADS * PER_THREAD)  // candidates between two checks of how many keys are kept
#define DIGIT 10
#define BINS (1 << DIGIT)

// Append the keys of the threads that have one. All threads of a warp must call it.
__device__ __forceinline__ void append(u64* keys, u32* count, u64 key, bool has_key) {
  u32 mask = __ballot_sync(FULL_WARP, has_key), at = 0;
  if (!mask) return;
  if (lane_id() == 0) at = atomicAdd(count, (u32)__popc(mask));
  at = __shfl_sync(FULL_WARP, at, 0) + __popc(mask & lanes_below());
  if (has_key) keys[at] = key;
}

// Of *count distinct keys (at least k), keep the k greatest and some more, at most `most` in all. Return a bound: every
// key at or above it is kept. A radix selection that reads only as many digits as it needs.
__device__ u64 prune(u64* keys, u32* count, u32 k, u32 most) {
  __shared__ u32 bins[BINS];
  __shared__ u32 sums[WARPS];
  __shared__ u32 digit;
  __shared__ u32 above;
  __shared__ u32 inside;
  u32 size = *count, wanted = k, warp = threadIdx.x / 32;
  u64 bound = 0;
  for (int high = 64;;) {  // the k-th greatest key is the wanted-th of bound .. bound + 2^high - 1
    int shift = max(high - DIGIT, 0);
    for (u32 i = threadIdx.x; i < BINS; i += THREADS) bins[i] = 0;
    __syncthreads();
    for (u32 i = threadIdx.x; i < size; i += THREADS) {
      u64 rest = keys[i] - bound;
      if (high == 64 || rest >> high == 0) atomicAdd(&bins[rest >> shift], 1u);
    }
    __syncthreads();
    u32 top = BINS - threadIdx.x * (BINS / THREADS), sum = 0;  // the first threads take the greatest digits
    for (u32 b = 1; b <= BINS / THREADS; ++b) sum += bins[top - b];
    u32 before = sum;
    for (int d = 1; d < 32; d *= 2) {
      u32 lower = __shfl_up_sync(FULL_WARP, before, d);
      if (lane_id() >= d) before += lower;
    }
    if (lane_id() == 31) sums[warp] = before;
    __syncthreads();
    before -= sum;
    for (u32 w = 0; w < warp; ++w) before += sums[w];
    if (before < wanted && wanted <= before + sum) {
      u32 b = top - 1;
      while (before + bins[b] < wanted) before += bins[b--];
      digit = b, above = before, inside = bins[b];
    }
    __syncthreads();
    bound += (u64)digit << shift;
    wanted -= above;
    if (k - wanted + inside <= most) break;
    high = shift;
  }
  if (threadIdx.x == 0) *count = 0;
  for (u32 base = 0; base < size; base += THREADS) {
    bool on = base + threadIdx.x < size;
    u64 key = on ? keys[base + threadIdx.x] : 0;
    __syncthreads();  // the writes below stay below base + THREADS
    append(keys, count, key, on && key >= bound);
  }
  __syncthreads();
  return bound;
}

// Sort `size` keys (a power of 2), greatest first (Batcher, 1968). Up to distance 32 a warp touches only its own keys.
__device__ void sort_keys(u64* keys, u32 size) {
  bool wide = true;
  for (u32 run = 2; run <= size; run *= 2) {
    for (u32 step = run / 2; step > 0; step /= 2) {
      if (wide || step > 32) __syncthreads(); else __syncwarp();
      wide = step > 32;
      for (u32 i = threadIdx.x; i < size / 2; i += THREADS) {
        u32 a = 2 * i - (i & (step - 1)), b = a + step;
        u64 left = keys[a], right = keys[b];
        if ((left < right) == ((a & run) == 0)) keys[a] = right, keys[b] = left;
      }
    }
  }
  __syncthreads();
}

__device__ __forceinline__ float back_off(float value, const float* backoff, int source, int n, i64 multiply) {
  for (int m = source + 1; m < n; ++m) value = multiply ? mul(value, backoff[m]) : add(value, backoff[m]);
  return value;
}

// Ranges and backoffs (H, K) of the histories of 1 to K words, orders_N (N,), words and values as in top_words.py
//   ->  id_HNk and value_HNk (H, N, k). `most`: k to capacity - TILE. `capacity`: keys in shared memory, a power of 2.
extern "C" __global__ void __launch_bounds__(THREADS, 6) top_words(
    i64 k, i64 capacity, i64 most, const int* orders_N, i64 N, const CHILD* first_HK, const CHILD* end_HK,
    const float* backoff_HK, i64 H, i64 K, const u32* word_G, const float* value_G, const float* value_V,
    const u32* ranked_V, i64 V, i64 multiply, i64 stored, float nothing, i64 left_out, int* id_HNk, float* value_HNk) {
  extern __shared__ u64 keys[];
  i64* first = (i64*)(keys + capacity);  // the range of each source, from source 1 on
  i64* end = first + K + 1;
  i64* reach = end + K + 1;   // where each source ends among all candidates of the row
  i64* start = reach + K + 1;  // node of the source for candidate 0, so start + candidate is the node
  float* backoff = (float*)(start + K + 1);
  __shared__ u32 count;
  for (i64 row = blockIdx.x; row < H * N; row += gridDim.x) {
    i64 h = row / N;
    int n = orders_N[row % N];
    __syncthreads();  // the row before is written
    for (int m = 1 + threadIdx.x; m < n; m += THREADS) {
      first[m] = first_HK[h * K + m - 1];
      end[m] = end_HK[h * K + m - 1];
      backoff[m] = backoff_HK[h * K + m - 1];
    }
    if (threadIdx.x == 0) count = 0;
    __syncthreads();
    if (threadIdx.x == 0) {
      i64 sum = 0;
      for (int m = n - 1; m >= 0; --m) {
        start[m] = (m ? first[m] : 0) - sum;
        if (!stored || m == n - 1) sum += m ? end[m] - first[m] : V;
        reach[m] = sum;
      }
    }
    __syncthreads();
    i64 total = reach[0], children = n > 1 ? reach[1] : 0;
    u64 bound = 0;
    int source = n - 1;
    for (i64 base = 0; base < total; base += TILE) {
      __syncthreads();
      i64 kept = count;
      __syncthreads();
      bool singles = base >= children;
      if (singles ? kept >= k : kept + TILE > capacity) bound = prune(keys, &count, (u32)k, (u32)most);
      // Later unigrams are not greater, before or after backing off. An equal one still wins if its id is lower.
      if (singles && rank_bits(back_off(value_V[ranked_V[base + start[0]]], backoff, 0, n, multiply)) < bound >> 32)
        break;
      float value[PER_THREAD];
      i64 at[PER_THREAD];
      int from[PER_THREAD];
#pragma unroll
      for (int j = 0; j < PER_THREAD; ++j) {
        i64 i = base + j * THREADS + threadIdx.x;
        if (i < total) {
          while (i >= reach[source]) --source;
          at[j] = i + start[source];
          value[j] = source ? value_G[at[j]] : value_V[ranked_V[at[j]]];
        }
        from[j] = i < total ? source : -1;
      }
#pragma unroll
      for (int j = 0; j < PER_THREAD; ++j) {
        bool passes = false;
        u64 key = 0;
        if (from[j] >= 0) {
          float backed_off = back_off(value[j], backoff, from[j], n, multiply);
          if (rank_bits(backed_off) >= bound >> 32) {
            u32 word = from[j] ? word_G[at[j]] : ranked_V[at[j]];
            key = rank_key(backed_off, word);
            passes = key >= bound && (i64)word != left_out &&
                     (from[j] == n - 1 || !contains(word_G, first[from[j] + 1], end[from[j] + 1], word));
          }
        }
        append(keys, &count, key, passes);
      }
    }
    __syncthreads();
    i64 kept = count;
    __syncthreads();
    if (kept > most) prune(keys, &count, (u32)k, (u32)most);
    kept = count;
    u32 size = 1;
    while (size < kept) size *= 2;
    for (i64 i = kept + threadIdx.x; i < size; i += THREADS) keys[i] = 0;
    sort_keys(keys, size);
    for (i64 i = threadIdx.x; i < k; i += THREADS) {
      id_HNk[row * k + i] = i < kept ? (int)key_word(keys[i]) : -1;
      value_HNk[row * k + i] = i < kept ? key_value(keys[i]) : nothing;
    }
  }
}
