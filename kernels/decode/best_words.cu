#include "common.cuh"
#include "floats.cuh"
#include "ranks.cuh"
#include "best.cuh"
#include "terms.cuh"
#include "logit_rows.cuh"
// Shapes as in best_words.py. A warp for each row; chunks_MRC and tops_RP as `sum_chunks` returns them, and P = 16 C.
// The (k + F)-th greatest of the tops, F words being forbidden, is a bound: k words are at least as great. So the kernel
// reads parts with greater tops again, little more than k.

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
    LOGIT_ROWS, i64 k, const float* costs_R, const int* forbidden_F, i64 F, const u64* chunks_MRC, const float* tops_RP,
    int* words_RK, float* scores_RK, double* log_sums_MR) {
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
