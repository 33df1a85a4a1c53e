// The k words of a row with the greatest mixes, chosen by a warp. Include after logit_rows.cuh. Shapes as in
// decode/best_words.py and decode/sum_chunks.py.
// The (k + F)-th greatest of the tops, F words being forbidden, is a bound: k words are at least as great. So a warp
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
#pragma unroll 1
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

#define BATCH (16 / PER)  // parts of a row that a mix is computed for together
#define N (BATCH * PER)
#define HELD (MIX ? 8 : 10)  // parts of a row that a warp holds in shared memory; of a mix, whole batches
#define HELD_BYTES (HELD * 512 * (MIX ? PER / 4 : BIAS ? 1 + PER / 4 : 1))
#define MAX_THREADS 512  // of a block; as in best_words.py
#define BLOCKS (MIX ? 1 : 2)  // of so many threads, of a multiprocessor: 64 registers without a mix
#define QUEUE 64  // keys of a warp that wait

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

// Store the logarithms of a row's sums; return what they add to its scores.
__device__ __forceinline__ double shift_of(
    const double* weights_M, i64 M, i64 R, i64 C, const float* costs_R, const u64* chunks_MRC, i64 r,
    double* log_sums_MR) {
  double shift = to_double(costs_R[r]);
#pragma unroll 1
  for (i64 m = 0; m < M; ++m) {
    const double log = log_of_chunks(chunks_MRC + (m * R + r) * C, C);
    if (lane_id() == 0) log_sums_MR[m * R + r] = log;
    shift = __dadd_rn(shift, -__dmul_rn(weights_M[m], log));
  }
  return shift;
}

// Return the k words of a row with the greatest mixes, chosen by a warp, in order. `shift`: of `shift_of`.
// held: HELD_BYTES; queue: QUEUE keys.
__device__ __forceinline__ Best best_of_row(
    LOGIT_ROWS, i64 k, const float* costs_R, const int* forbidden_F, i64 F, const u64* chunks_MRC, const float* tops_RP,
    double* log_sums_MR, i64 r, void* held, u64* queue, double& shift) {
  const int V = (int)words, lane = lane_id();
  const bool wide = k > 32;
  const int P = (V + CHUNK - 1) / CHUNK * PARTS;
  const float* tops_P = tops_RP + r * P;
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
#pragma unroll 1
    for (int first = lane; first < P; first += 32 * 4 * LOADS) {
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
    return ((const float*)held)[(n * 32 + lane) * PER + e];
#else
    const float x = to_single(((const in_t*)held)[(n * 32 + lane) * PER + e]);
#if BIAS
    return add(x, ((const float*)((const char*)held + HELD * 512))[(n * 32 + lane) * PER + e]);
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
      const int filled = min(waiting, 32);
      int place = 0;
#pragma unroll 2
      for (int other = 0; other < filled; ++other) place += queue[other] > key;
      __syncwarp();
      if (key) queue[place] = key;
      __syncwarp();
      best.key[0] = lane < filled ? queue[lane] : 0;
      is_empty = false;
      __syncwarp();
    } else {
#pragma unroll 1
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
  int base = -32 * 32, c = 0;
  u32 above = 0, some = 0, hits = 0;  // of 32 parts of the lane; of all lanes; of part c of all lanes
#pragma unroll 1
  for (bool is_first = true, is_last = false; !is_last; is_first = false) {
    u32 part = 0;  // of lane n: the n-th that is held
    int parts = 0;
#pragma unroll 1
    while (parts < HELD) {
      if (!some && !hits) {
        base += 32 * 32;
        is_last = base >= P;
        if (is_last) break;
        above = 0;
#pragma unroll 8
        for (int i = 0; i < 32; ++i) {
          if (base + i * 32 + lane < P) above |= (u32)at_least(__ldg(tops_P + base + i * 32 + lane), cut) << i;
        }
        some = __reduce_or_sync(FULL_WARP, above);
        continue;
      }
      if (!hits) {
        c = __ffs(some) - 1;
        some &= some - 1;
        hits = __ballot_sync(FULL_WARP, above >> c & 1);
      }
      const u32 found = base + c * 32 + __ffs(hits) - 1;
      hits &= hits - 1;
      if (lane == parts) part = found;
#if !MIX
      const int first = first_of(found);
      copy_part((in_t*)held + (parts * 32 + lane) * PER, logits + r * stride_R, first, V, (in_t)0);
#endif
#if BIAS
#pragma unroll
      for (int q = 0; q < PER; q += 4) {
        float* to = (float*)((char*)held + HELD * 512) + (parts * 32 + lane) * PER + q;
        copy_part(to, bias_MV, first + q, V, 0.0f);
      }
#endif
      ++parts;
    }
    end_set_of_copies();
    if (is_first) shift = shift_of(weights_M, M, R, P / PARTS, costs_R, chunks_MRC, r, log_sums_MR);  // meanwhile
#if MIX
    float* my_held = (float*)held;
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
    wait_for_copies<0>();
#endif
#pragma unroll 1
    for (int n = 0; n < parts; ++n) {
      const int first = first_of(__shfl_sync(FULL_WARP, part, n));
      u32 mine = 0;
#pragma unroll
      for (int e = 0; e < PER; ++e) mine |= (u32)(first + e < V && at_least(value_at(n, e), cut)) << e;
#pragma unroll 1
      for (u32 any = __reduce_or_sync(FULL_WARP, mine); any; any &= any - 1) {
        const int e = __ffs(any) - 1;
        const u64 key = rank_key(value_at(n, e), first + e);
        bool is_good = (mine >> e & 1) && key > least;
#pragma unroll 1
        for (i64 f = 0; is_good && f < F; ++f) is_good = __ldg(forbidden_F + f) != first + e;
        const u32 mask = __ballot_sync(FULL_WARP, is_good);
        if (is_good) queue[waiting + __popc(mask & lanes_below())] = key;
        waiting += __popc(mask);
        if (waiting > 32) merge();
      }
    }
  }
  if (waiting > 0) merge();
  return best;
}
