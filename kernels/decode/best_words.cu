#include "common.cuh"
#include "floats.cuh"
#include "ranks.cuh"
#include "best.cuh"
#include "terms.cuh"
// Shapes as in best_words.py. Two kernels, with nothing between warps but what the first one writes:
// 1. `sum_chunks` reads the logits once. It writes the sum of exponentials of each chunk, chunks_MRC, and the greatest
//    mix of each part of a chunk, tops_RP. A part is what eight neighbouring lanes read of a group, LOADS times 128
//    bytes.
// 2. `best_words` has a warp for each row. The (k + F)-th greatest of the tops, F words being forbidden, is a bound: k
//    words are at least as great. So it reads parts with greater tops again, little more than k.
// Floor: bytes of the logits / 4.3 TB/s, 60 us for 1,280 rows of 50,000 float32, 30 us for float16; tops add 2 %.
// Instructions for a float32 logit: max 1, limit 1, split 3, power 5, scale and sum 2; for a float16 logit max 0.25,
// limit 0.5 (both in pairs), convert 1, split 3, power 4, scale and sum 2; 2 to 4 others. At the floor, an H200 issues
// 31 for each float32 and 15 for each float16.
// Rows are copied to shared memory, so that loads on their way hold no registers. More warps, or more groups on their
// way, were slower.
// CHILD (u32 or i64): the type of ranges of an n-gram model's children, in place of whole rows `ngrams`. Each lane
// knows the next child of a history of lane + 1 words; groups that have children are made in shared memory. Reads 4
// bytes of value_V for each word, from L2, and 8 for each child.
// M models with `weights_M`, strides in elements. `warps` of the grid have chunks.

#define THREADS 128
#define WARPS (THREADS / 32)
#ifdef HALF
#define PACKED (HALF[0] == 'f' && !MIX && !BIAS)
#else
#define PACKED false
#endif
#define BLOCKS 4  // of a multiprocessor; as in best_words.py
#define SLOTS 3   // groups of a warp in shared memory: one that is summed, the others on their way
#define SLOT_FLOATS (32 * LOADS * 4)
#define PARTS 16  // of a chunk: what eight neighbouring lanes read of a group
#define TOPS (CHUNK / GROUP * 32)  // of the groups and lanes of a chunk

#if MIX
// Add `weight` times four floats of shared memory to a mix.
__device__ __forceinline__ void add_four(const float* from, float weight, float* mix) {
  const float4 four = *(const float4*)from;
  mix[0] = multiply_add(weight, four.x, mix[0]);
  mix[1] = multiply_add(weight, four.y, mix[1]);
  mix[2] = multiply_add(weight, four.z, mix[2]);
  mix[3] = multiply_add(weight, four.w, mix[3]);
}
#endif

#ifdef CHILD
// Return the sum of the backoffs of all histories, the longest first; `rest`: of those longer than the lane's.
__device__ __forceinline__ float sum_backoffs(const float* backoff_K, i64 K, float& rest) {
  float all = 0;
  for (i64 n = K - 1; n >= 0; --n) {
    if (n == (int)lane_id()) rest = all;
    all = add(all, backoff_K[n]);
  }
  return all;
}
#endif

#ifdef CHILD
#define NGRAMS \
  const CHILD *first_RK, const CHILD *end_RK, const float *backoff_RK, const u32 *word_G, const float *value_G, \
      const float *value_V, i64 K
#else
#define NGRAMS const void *ngrams, i64 ngram_stride, i64 ngram_wide
#endif

// A chunk of a row. Chunks are in the order of rows; with a bias, in the order of columns, so that warps share it.
struct Place {
  int r, c;
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sum_chunks(
    const in_t* logits, i64 stride_M, i64 stride_R, i64 M, i64 R, i64 words, const double* weights_M,
    const float* bias_MV, NGRAMS,
    float ngram_weight, i64 warps, u64* chunks_MRC, float* tops_RP) {
  extern __shared__ float4 shared[];  // slots and tops of each warp; if MIX, n-gram values and sums of models
  const int V = (int)words, C = (V + CHUNK - 1) / CHUNK, lane = lane_id();
  const i64 chunks = R * C, w = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
  if (w >= warps) return;
#ifdef CHILD
  i64 left = chunks * (w + 1) / warps - chunks * w / warps;  // neighbouring chunks, to find children once
  const i64 begin = chunks * w / warps, step = 1;
#else
  i64 left = (chunks - w + warps - 1) / warps;  // the warps read neighbouring chunks at the same time
  const i64 begin = w, step = warps;
#endif
  const i64 wide = BIAS ? R : C;
  const int step_fast = (int)(step % wide), step_slow = (int)(step / wide);
  Place here = BIAS ? Place{(int)(begin % wide), (int)(begin / wide)} : Place{(int)(begin / wide), (int)(begin % wide)};
  auto go_on = [&](Place& place) {
    int &fast = BIAS ? place.r : place.c, &slow = BIAS ? place.c : place.r;
    slow += step_slow;
    fast += step_fast;
    if (fast < (int)wide) return;
    fast -= (int)wide;
    ++slow;
  };
  in_t* slots = (in_t*)(shared + threadIdx.x / 32 * (SLOTS * SLOT_FLOATS / 4)) + lane * PER;
  float4* my_tops = shared + WARPS * SLOTS * SLOT_FLOATS / 4 + threadIdx.x / 32 * (TOPS / 4);
#if MIX
  float* tile = (float*)(shared + WARPS * (SLOTS * SLOT_FLOATS + TOPS) / 4) + threadIdx.x / 32 * GROUP;
  float4* of_models = shared + WARPS * (SLOTS * SLOT_FLOATS + TOPS + GROUP) / 4;
  float4* my_sums = of_models + threadIdx.x / 32 * 8 * PER * M + lane;
  int* my_references = (int*)(of_models + THREADS / 4 * PER * M) + threadIdx.x;
  const float my_weight = lane < M ? to_float(weights_M[lane]) : 0;
#endif
#if MIX && !defined(CHILD)
  const int arrays = (int)M + (!ngrams ? 0 : ngram_wide ? 2 : 1);  // float32 rows beside float16 logits are two
#else
  const int arrays = (int)M;
#endif
  // The group that is copied next: its chunk, its first word and the end of its chunk (0 behind the last chunk), the
  // lane's words, and its array.
  Place next = here;
  i64 next_left = left;
  int next_start = next.c * CHUNK, next_end = min(next_start + CHUNK, V), next_array = 0;
  const in_t* next_at = logits + next.r * stride_R + next_start + lane * PER;
  auto copy_next = [&](in_t* to) {
#if MIX && !defined(CHILD)
    if (next_array >= M && next_end > 0) {
      if (ngram_wide) {
        const float* from = (const float*)ngrams + next.r * ngram_stride;
        const int half = (next_array - (int)M) * (LOADS / 2);
#pragma unroll 1
        for (int u = 0; u < LOADS / 2; ++u) {
#pragma unroll
          for (int q = 0; q < PER; q += 4) {  // a lane has the same bytes of a slot for all arrays
            const int i = next_start + (half + u) * RUN + lane * PER + q;
            copy_part((float*)(to - lane * PER) + u * RUN + q * 32 + lane * 4, from, i, V, MINUS_INFINITY);
          }
        }
      } else {
        copy_group(to, (const in_t*)ngrams + next.r * ngram_stride + next_start + lane * PER, next_start, V);
      }
    } else
#endif
    {
      copy_group(to, MIX ? next_at + next_array * stride_M : next_at, next_start, next_end > 0 ? V : 0);
    }
    end_set_of_copies();
    if (MIX && ++next_array < arrays) return;
    next_array = 0;
    next_start += GROUP;
    next_at += GROUP;
    if (next_start < next_end || next_end == 0) return;
    go_on(next);
    next_start = next.c * CHUNK;
    next_end = --next_left > 0 ? min(next_start + CHUNK, V) : 0;
    next_at = logits + next.r * stride_R + next_start + lane * PER;
  };
  u32 oldest = 0, free = (SLOTS - 1) * GROUP;  // slots, as offsets
  // Return the lane's part of the oldest array, and reuse the slot of the one before.
  auto take = [&]() {
    wait_for_copies<SLOTS - 2>();
    copy_next(slots + free);
    free = oldest;
    oldest = oldest + GROUP < SLOTS * GROUP ? oldest + GROUP : 0;
    return slots + free;
  };
  for (int i = 0; i < SLOTS - 1; ++i) copy_next(slots + i * GROUP);
#ifdef CHILD
  int r_of_children = -1;
  CHILD at_child = 0, end_child = 0;
  u32 next_child = 0xFFFFFFFFu;
  float all = 0, rest = 0;  // of `sum_backoffs`
#endif
  for (; left > 0; --left, go_on(here)) {
    const int r = here.r, c = here.c, first = c * CHUNK, to = min(first + CHUNK, V);
#ifdef CHILD
    if (r != r_of_children) {
      r_of_children = r;
      all = sum_backoffs(backoff_RK + r * K, K, rest);
      at_child = lane < K ? first_RK[r * K + lane] : 0;
      end_child = lane < K ? end_RK[r * K + lane] : 0;
      for (CHILD high = end_child; at_child < high;) {  // the first child from the chunk's first word on
        const CHILD middle = at_child + (high - at_child) / 2;
        if (word_G[middle] < (u32)first) at_child = middle + 1;
        else high = middle;
      }
      next_child = at_child < end_child ? word_G[at_child] : 0xFFFFFFFFu;
    }
#endif
    float sums[PER], *my_top = (float*)my_tops + lane;
    Scale scale;
#if !MIX
#pragma unroll
    for (int e = 0; e < PER; ++e) sums[e] = 0;
    scale.reference = FIRST;
#endif
    for (int start = first; start < to; start += GROUP) {
      float top;
#if MIX
      float mix[LOADS][PER];
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
#pragma unroll
        for (int e = 0; e < PER; ++e) mix[u][e] = start + u * RUN + lane * PER + e < V ? 0 : MINUS_INFINITY;
      }
#endif
      for (int m = 0; m < (MIX ? (int)M : 1); ++m) {
#if BIAS
        float of_bias[LOADS][PER];
        load_row(of_bias, bias_MV, start, V);  // on its way while the warp waits
#endif
        const in_t* taken = take();
#if MIX
        float4* at = my_sums + m * 8 * PER;
#pragma unroll
        for (int q = 0; q < PER; q += 4) {
          const float4 four = start > first ? at[q * 8] : make_float4(0, 0, 0, 0);
          sums[q] = four.x, sums[q + 1] = four.y, sums[q + 2] = four.z, sums[q + 3] = four.w;
        }
        scale = scale_of(start > first ? my_references[m * THREADS] : FIRST);
#endif
        Load<in_t> loads[LOADS];
#pragma unroll
        for (int u = 0; u < LOADS; ++u) loads[u].all = *(const uint4*)(taken + u * RUN);
#ifdef HALF
        if (PACKED) {
          u32 pair = loads[0].pair[0];
#pragma unroll
          for (int i = 1; i < 4 * LOADS; ++i) pair = greater_of_pairs(pair, loads[i / 4].pair[i % 4]);
          top = greater(to_single((u16)pair), to_single((u16)(pair >> 16)));
          raise_to(top, scale, sums);
          const u32 low = pair_of(scale.low);
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              const u32 both = pairs_not_below(loads[u].pair[i], low);
              add_term(to_single((u16)both), scale, sums[2 * i]);
              add_term(to_single((u16)(both >> 16)), scale, sums[2 * i + 1]);
            }
          }
        } else
#endif
        {
          float x[LOADS][PER], most[LOADS];
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
#pragma unroll
            for (int e = 0; e < PER; ++e) x[u][e] = to_single(loads[u].part[e]);
          }
#if BIAS
          add_all(x, of_bias);
#elif MIX
          if (bias_MV) {
            float of_bias[LOADS][PER];
            load_row(of_bias, bias_MV + m * words, start, V);
            add_all(x, of_bias);
          }
#endif
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
            most[u] = x[u][0];
#pragma unroll
            for (int e = 1; e < PER; ++e) most[u] = greater(most[u], x[u][e]);
          }
          top = greater(greater(most[0], most[1]), greater(most[2], most[3]));
          raise_to(top, scale, sums);
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
#pragma unroll
            for (int e = 0; e < PER; ++e) add_term(not_below(x[u][e], scale.low), scale, sums[e]);
          }
#if MIX
          const float weight = __shfl_sync(FULL_WARP, my_weight, m);
          if (weight > 0) {
#pragma unroll
            for (int u = 0; u < LOADS; ++u) {
#pragma unroll
              for (int e = 0; e < PER; ++e) mix[u][e] = multiply_add(weight, x[u][e], mix[u][e]);
            }
          }
#endif
        }
#if MIX
        if (start + GROUP < to) {
#pragma unroll
          for (int q = 0; q < PER; q += 4) at[q * 8] = make_float4(sums[q], sums[q + 1], sums[q + 2], sums[q + 3]);
          my_references[m * THREADS] = scale.reference;
        } else {
          store_chunk(sums, scale.reference, chunks_MRC + (m * R + r) * C + c);
        }
#endif
      }
#ifdef CHILD
      u32 levels = __ballot_sync(FULL_WARP, next_child < (u32)(start + GROUP));
      const bool is_made = levels;
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
#pragma unroll
        for (int q = 0; q < PER; q += 4) {
          const int i = u * RUN + lane * PER + q, at = start + i;
          Load<float> load;
          if (VECTOR && at + 4 <= V) load.all = __ldg((const uint4*)(value_V + at));
          else load_tail(load, value_V, at, V, MINUS_INFINITY);
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            load.part[e] = add(load.part[e], all);
            if (!is_made) mix[u][q + e] = multiply_add(ngram_weight, load.part[e], mix[u][q + e]);
          }
          if (is_made) *(float4*)(tile + i) = make_float4(load.part[0], load.part[1], load.part[2], load.part[3]);
        }
      }
      if (is_made) {
        __syncwarp();
        for (; levels; levels &= levels - 1) {  // longer histories later
          const int n = __ffs(levels) - 1;
          CHILD at = __shfl_sync(FULL_WARP, at_child, n);
          const CHILD end = __shfl_sync(FULL_WARP, end_child, n);
          const float rest_n = __shfl_sync(FULL_WARP, rest, n);
          while (true) {
            const u32 word = at + lane < end ? word_G[at + lane] : 0xFFFFFFFFu;
            const bool is_inside = word < (u32)(start + GROUP);
            if (is_inside) tile[word - start] = add(value_G[at + lane], rest_n);
            const int inside = __popc(__ballot_sync(FULL_WARP, is_inside));
            at += inside;
            if (inside == 32) continue;
            const u32 after = __shfl_sync(FULL_WARP, word, inside);
            if (lane == n) at_child = at, next_child = after;
            break;
          }
          __syncwarp();
        }
#pragma unroll
        for (int u = 0; u < LOADS; ++u) {
#pragma unroll
          for (int q = 0; q < PER; q += 4) {
            add_four(tile + u * RUN + lane * PER + q, ngram_weight, mix[u] + q);
          }
        }
      }
#elif MIX
      if (ngrams) {
#ifdef HALF
        if (ngram_wide) {
#pragma unroll
          for (int half = 0; half < LOADS; half += LOADS / 2) {
            const float* part = (const float*)(take() - lane * PER) + lane * 4;
#pragma unroll
            for (int u = 0; u < LOADS / 2; ++u) {
#pragma unroll
              for (int q = 0; q < PER; q += 4) add_four(part + u * RUN + q * 32, ngram_weight, mix[half + u] + q);
            }
          }
        } else
#endif
        {
          const in_t* taken = take();
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
            Load<in_t> load;
            load.all = *(const uint4*)(taken + u * RUN);
#pragma unroll
            for (int e = 0; e < PER; ++e) mix[u][e] = multiply_add(ngram_weight, to_single(load.part[e]), mix[u][e]);
          }
        }
      }
#endif
#if MIX
      top = MINUS_INFINITY;
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
#pragma unroll
        for (int e = 0; e < PER; ++e) top = greater(top, mix[u][e]);
      }
#endif
      *my_top = top;
      my_top += 32;
    }
#if !MIX
    store_chunk(sums, scale.reference, chunks_MRC + ((i64)r * C + c));
#endif
    for (; my_top < (float*)my_tops + TOPS; my_top += 32) *my_top = MINUS_INFINITY;
    __syncwarp();
    const float4 four = my_tops[lane];
    float most = greater(greater(greater(four.x, four.y), greater(four.z, four.w)), MINUS_INFINITY);
    most = greater(most, __shfl_xor_sync(FULL_WARP, most, 1));
    if (lane % 2 == 0) tops_RP[((i64)r * C + c) * PARTS + lane / 2] = most;
    __syncwarp();
  }
}

// Return the smallest float whose rank bits are `rank` or more; none is -inf.
__device__ __forceinline__ float cut_at(u32 rank) { return key_value((u64)max(rank, 0x00800000u) << 32); }

// Return the rank bits of the n-th greatest of the `most` of all lanes, n <= 32 * LOADS.
__device__ __forceinline__ u32 rank_of_nth(const float (&most)[LOADS], int n) {
  u32 rank[LOADS], found = 0;
#pragma unroll
  for (int u = 0; u < LOADS; ++u) rank[u] = rank_bits(most[u]);
#pragma unroll
  for (int i = 0; i < LOADS; ++i) {
#pragma unroll
    for (int u = 0; u + 1 < LOADS - i; ++u) {
      u32 high = max(rank[u], rank[u + 1]);
      rank[u + 1] = min(rank[u], rank[u + 1]);
      rank[u] = high;
    }
  }
  while (n > 0) {
    found = __reduce_max_sync(FULL_WARP, rank[0]);
    n -= __popc(__ballot_sync(FULL_WARP, rank[0] == found));
    if (rank[0] == found) {
#pragma unroll
      for (int u = 0; u + 1 < LOADS; ++u) rank[u] = rank[u + 1];
      rank[LOADS - 1] = 0;
    }
  }
  return found;
}

#define ROW_THREADS 64
#define BATCH (16 / PER)  // parts of a row that a mix is computed for together
#define N (BATCH * PER)
#define HELD (MIX ? 8 : 10)  // parts of a row that a warp holds in shared memory

// Load neighbouring words from `first` on; none from V on.
template <typename T>
__device__ __forceinline__ void load_words(const T* row, const int (&first)[BATCH], int V, float (&x)[N]) {
  constexpr int parts = 16 / sizeof(T);
#pragma unroll
  for (int n = 0; n < BATCH; ++n) {
#pragma unroll
    for (int q = 0; q < PER; q += parts) {
      Load<T> load;
      if (VECTOR && first[n] + q + parts <= V) load.all = __ldg((const uint4*)(row + first[n] + q));
      else load_tail(load, row, first[n] + q, V, (T)0);
#pragma unroll
      for (int e = 0; e < parts; ++e) x[n * PER + q + e] = to_single(load.part[e]);
    }
  }
}

extern "C" __global__ void __launch_bounds__(ROW_THREADS) best_words(
    const in_t* logits, i64 stride_M, i64 stride_R, i64 M, i64 R, i64 words, const double* weights_M,
    const float* bias_MV, NGRAMS,
    float ngram_weight, i64 k, const float* costs_R, const int* forbidden_F, i64 F, const u64* chunks_MRC,
    const float* tops_RP, int* words_RK, float* scores_RK, double* log_sums_MR) {
#if MIX
  __shared__ float held[ROW_THREADS / 32][HELD * 32 * PER];
#else
  __shared__ float4 held[ROW_THREADS / 32][HELD * 32];
#endif
#if BIAS
  __shared__ float4 held_bias[ROW_THREADS / 32][HELD * 32 * PER / 4];
#endif
  __shared__ u64 queues[ROW_THREADS / 32][64];
  const int V = (int)words, lane = lane_id();
  const bool wide = k > 32;
  const i64 C = (words + CHUNK - 1) / CHUNK, r = ((i64)blockIdx.x * ROW_THREADS + threadIdx.x) / 32;
  if (r >= R) return;
  u64* queue = queues[threadIdx.x / 32];
  const float* tops_P = tops_RP + r * C * PARTS;
  const i64 P = C * PARTS;
  if (lane < C) prefetch(chunks_MRC + r * C + lane);
#ifdef CHILD
  float rest = 0;
  const float all = sum_backoffs(backoff_RK + r * K, K, rest);
  // Write the n-gram model's values of the words from `first` on.
  auto write_ngrams = [&](const int (&first)[HELD], float* to) {
#pragma unroll
    for (int n = 0; n < HELD; ++n) {
#pragma unroll
      for (int e = 0; e < PER; ++e) {
        if (first[n] + e < V) to[(n * 32 + lane) * PER + e] = add(__ldg(value_V + first[n] + e), all);
      }
    }
    for (int level = 0; level < (int)K; ++level) {  // longer histories later
      const CHILD begin = first_RK[r * K + level], end = end_RK[r * K + level];
      const float rest_n = __shfl_sync(FULL_WARP, rest, level);
      CHILD low[HELD], high[HELD];
#pragma unroll
      for (int n = 0; n < HELD; ++n) low[n] = begin, high[n] = first[n] < V ? end : begin;
      for (bool is_open = true; is_open;) {  // the first child from `first` on
        is_open = false;
#pragma unroll
        for (int n = 0; n < HELD; ++n) {
          if (low[n] >= high[n]) continue;
          const CHILD middle = low[n] + (high[n] - low[n]) / 2;
          if (__ldg(word_G + middle) < (u32)first[n]) low[n] = middle + 1;
          else high[n] = middle;
          is_open = true;
        }
      }
#pragma unroll
      for (int n = 0; n < HELD; ++n) {
        if (first[n] >= V) continue;
        for (; low[n] < end; ++low[n]) {
          const u32 e = __ldg(word_G + low[n]) - first[n];
          if (e >= PER) break;
          to[(n * 32 + lane) * PER + e] = add(__ldg(value_G + low[n]), rest_n);
        }
      }
    }
  };
#endif
#if MIX
  // Set `value` to what the words from `first` on add to their scores; of words past V, to anything. of_ngrams: of
  // `write_ngrams`, if CHILD.
  auto values_of = [&](const int (&first)[BATCH], const float* of_ngrams, float (&value)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = 0;
    for (i64 m = 0; m < M; ++m) {
      const float weight = to_float(weights_M[m]);
      if (!(weight > 0)) continue;
      float x[N], of_bias[N];
      load_words(logits + m * stride_M + r * stride_R, first, V, x);
      if (bias_MV) load_words(bias_MV + m * words, first, V, of_bias);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (bias_MV) x[i] = add(x[i], of_bias[i]);
        value[i] = multiply_add(weight, x[i], value[i]);
      }
    }
#ifdef CHILD
#pragma unroll
    for (int i = 0; i < N; ++i) {
      value[i] = multiply_add(ngram_weight, of_ngrams[(i / PER * 32 + lane) * PER + i % PER], value[i]);
    }
#else
    if (ngrams) {
      float x[N];
      if (ngram_wide) load_words((const float*)ngrams + r * ngram_stride, first, V, x);
      else load_words((const in_t*)ngrams + r * ngram_stride, first, V, x);
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = multiply_add(ngram_weight, x[i], value[i]);
    }
#endif
  };
#endif
  float cut = cut_at(0);
  if (k + F <= 32 * LOADS) {
    float most[LOADS] = {MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY, MINUS_INFINITY};
    for (i64 first = lane; first < P; first += 32 * 4 * LOADS) {
#pragma unroll
      for (int i = 0; i < 4 * LOADS; ++i) {
        if (first + i * 32 < P) most[i % LOADS] = greater(most[i % LOADS], __ldg(tops_P + first + i * 32));
      }
    }
    cut = cut_at(rank_of_nth(most, (int)(k + F)));
  }
  Best best = {{0, 0}};
  u64 least = 0;
  // The word of a lane in a part of the row, and those behind it.
  auto first_of = [&](u32 part) {
    const u32 of_part = part / PARTS * CHUNK + part % PARTS / 4 * GROUP + part % 4 * 8 * PER;
    return (int)of_part + lane / 8 * RUN + lane % 8 * PER;
  };
  auto value_at = [&](int n, int e) {
#if MIX
    return held[threadIdx.x / 32][(n * 32 + lane) * PER + e];
#else
    const float x = to_single(((const in_t*)held[threadIdx.x / 32])[(n * 32 + lane) * PER + e]);
#if BIAS
    return add(x, ((const float*)held_bias[threadIdx.x / 32])[(n * 32 + lane) * PER + e]);
#else
    return x;
#endif
#endif
  };
  bool is_empty = true;
  int waiting = 0;  // keys in the queue, at most 64
  // Merge the first 32 keys of the queue.
  auto merge = [&]() {
    __syncwarp();
    const u64 key = lane < waiting ? queue[lane] : 0, behind = lane + 32 < waiting ? queue[lane + 32] : 0;
    if (is_empty) {
      sort_keys(best, key, queue);
      is_empty = false;
    } else {
      for (u32 mask = __ballot_sync(FULL_WARP, key > least); mask; mask &= mask - 1) {
        const u64 candidate = __shfl_sync(FULL_WARP, key, __ffs(mask) - 1);
        if (candidate < least) continue;
        insert(best, candidate, wide);
        least = key_at(best, (int)k - 1, wide);
      }
    }
    least = key_at(best, (int)k - 1, wide);
    cut = greater(cut, cut_at((u32)(least >> 32)));
    waiting = max(waiting - 32, 0);
    __syncwarp();
    queue[lane] = behind;
    __syncwarp();
  };
  for (i64 base = 0; base < P; base += 32 * 32) {
    u32 above = 0, hits = 0;  // of 32 parts of the lane; of part c of all lanes
#pragma unroll 8
    for (int i = 0; i < 32; ++i) {
      if (base + i * 32 + lane < P) above |= (u32)at_least(__ldg(tops_P + base + i * 32 + lane), cut) << i;
    }
    int c = 0;
    for (u32 some = __reduce_or_sync(FULL_WARP, above); some || hits;) {
      u32 part = 0;  // of lane n: the n-th that is held
      int parts = 0;
      for (; parts < HELD && (some || hits); ++parts) {
        if (!hits) {
          c = __ffs(some) - 1;
          some &= some - 1;
          hits = __ballot_sync(FULL_WARP, above >> c & 1);
        }
        const u32 found = (u32)base + c * 32 + __ffs(hits) - 1;
        hits &= hits - 1;
        if (lane == parts) part = found;
#if !MIX
        const int first = first_of(found);
        copy_part((in_t*)held[threadIdx.x / 32] + (parts * 32 + lane) * PER, logits + r * stride_R, first, V, (in_t)0);
#endif
#if BIAS
#pragma unroll
        for (int q = 0; q < PER; q += 4) {
          float* to = (float*)held_bias[threadIdx.x / 32] + (parts * 32 + lane) * PER + q;
          copy_part(to, bias_MV, first + q, V, 0.0f);
        }
#endif
      }
#if MIX
      float* my_held = held[threadIdx.x / 32];
#ifdef CHILD
      int firsts[HELD];
#pragma unroll
      for (int n = 0; n < HELD; ++n) firsts[n] = n < parts ? first_of(__shfl_sync(FULL_WARP, part, n)) : V;
      write_ngrams(firsts, my_held);
#endif
      for (int from = 0; from < parts; from += BATCH) {
        int first[BATCH];
        float value[N];
#pragma unroll
        for (int n = 0; n < BATCH; ++n) {
          first[n] = first_of(__shfl_sync(FULL_WARP, part, from + n));
          if (from + n >= parts) first[n] = V;
        }
        values_of(first, my_held + from * 32 * PER, value);
#pragma unroll
        for (int i = 0; i < N; ++i) my_held[((from + i / PER) * 32 + lane) * PER + i % PER] = value[i];
      }
#else
      end_set_of_copies();
      wait_for_copies<0>();
#endif
      for (int n = 0; n < parts; ++n) {
        const int first = first_of(__shfl_sync(FULL_WARP, part, n));
        u32 mine = 0;
#pragma unroll
        for (int e = 0; e < PER; ++e) mine |= (u32)(first + e < V && at_least(value_at(n, e), cut)) << e;
        for (u32 any = __reduce_or_sync(FULL_WARP, mine); any; any &= any - 1) {
          const int e = __ffs(any) - 1;
          const u64 key = rank_key(value_at(n, e), first + e);
          bool is_good = (mine >> e & 1) && key > least;
          for (i64 f = 0; is_good && f < F; ++f) is_good = __ldg(forbidden_F + f) != first + e;
          const u32 mask = __ballot_sync(FULL_WARP, is_good);
          if (is_good) queue[waiting + __popc(mask & lanes_below())] = key;
          waiting += __popc(mask);
          if (waiting > 32) merge();
        }
      }
    }
  }
  if (waiting > 0) merge();
  double shift = to_double(costs_R[r]);
  for (i64 m = 0; m < M; ++m) {
    const double log = log_of_chunks(chunks_MRC + (m * R + r) * C, C);
    if (lane == 0) log_sums_MR[m * R + r] = log;
    shift = __dadd_rn(shift, -__dmul_rn(weights_M[m], log));
  }
  const bool is_number = shift == shift;
  u64 ranked[2];
  int count = 0;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const u64 key = best.key[q];
    const bool is_word = is_number && key && lane + 32 * q < k;
    ranked[q] = is_word ? rank_key(to_float(__dadd_rn(to_double(key_value(key)), shift)), key_word(key)) : 0;
    count += __popc(__ballot_sync(FULL_WARP, is_word));
  }
  int place[2] = {lane, lane + 32};
  for (int i = 0; i < count; ++i) {  // words of equal scores may be of different mixes
    const u64 other = __shfl_sync(FULL_WARP, i < 32 ? ranked[0] : ranked[1], i & 31);
#pragma unroll
    for (int q = 0; q < 2; ++q) {
      const int mine = lane + 32 * q;
      if (mine < count) place[q] += (other > ranked[q] && i > mine) - (other < ranked[q] && i < mine);
    }
  }
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    if (lane + 32 * q >= k) continue;
    const i64 to_place = r * k + place[q];
    words_RK[to_place] = ranked[q] ? (int)key_word(ranked[q]) : -1;
    const float nothing = is_number ? MINUS_INFINITY : __int_as_float(0x7FC00000);
    // The score itself, not the key's value: 0 may be -0.
    scores_RK[to_place] = ranked[q] ? to_float(__dadd_rn(to_double(key_value(best.key[q])), shift)) : nothing;
  }
}
