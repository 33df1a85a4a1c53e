#include "common.cuh"
#include "floats.cuh"
#include "ranks.cuh"
#include "best.cuh"
#include "terms.cuh"
// Shapes as in best_words.py. Each warp takes `share` neighbouring chunks of CHUNK logits, in the order of rows, and
// loads the next group while it adds the last one. It keeps the k best words of its part of a row; the last warp of a row
// merges the parts. `cut`, at most the k-th best value so far, drops most loads by one comparison. It starts well: among
// the greatest values of the 128 loads of a group, the (k + F)-th is a bound, since k of these words are not forbidden.
// Warps share the bounds of a row.
// Floor: bytes of the logits / 4.3 TB/s, 60 us for 1,280 rows of 50,000 float32, 30 us for float16. Instructions for a
// logit: max 1, limit 1, split 3, power 6 (float16: 5 and 1 to convert), sum 1, bias 1.3, others about 1. At the floor,
// an H200 issues 31 for each float32 and 15 for each float16.
// CHILD (u32 or i64): the type of ranges of an n-gram model's children, in place of whole rows `ngrams`. Each lane knows
// the next child of a history of lane + 1 words; groups that have children are made in shared memory. Reads 4 bytes of
// value_V for each word, from L2, and 8 for each child.
// M models with `weights_M`, strides in elements. scratch_2MRC: sums of chunks, then their references. scratch_WRk: keys,
// the part of warp w in row r at w + r. state_2R, all 0: parts that are done, then the rank bits of a bound.

#define THREADS 128
#ifdef HALF
#define BLOCKS (MIX ? 3 : 4)  // of a multiprocessor; as in best_words.py
#else
#define BLOCKS (MIX ? 4 : 5)
#endif

__device__ __forceinline__ u32 least_of(const Best& best, i64 k) { return (u32)(key_at(best, (int)k - 1, k > 32) >> 32); }

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

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) best_words(
    const in_t* logits, i64 stride_M, i64 stride_R, i64 M, i64 R, i64 words, i64 k, const float* costs_R,
    const double* weights_M, const float* bias_MV,
#ifdef CHILD
    const CHILD* first_RK, const CHILD* end_RK, const float* backoff_RK, const u32* word_G, const float* value_G,
    const float* value_V, i64 K,
#else
    const void* ngrams, i64 ngram_stride, i64 ngram_wide,
#endif
    float ngram_weight, const int* forbidden_F, i64 F, i64 share, float* scratch_2MRC, u64* scratch_WRk, u32* state_2R,
    int* words_RK, float* scores_RK, double* log_sums_MR) {
  const int V = (int)words;
  const bool wide = k > 32;
  const int lane = lane_id();
  const i64 C = (words + CHUNK - 1) / CHUNK, w = ((i64)blockIdx.x * THREADS + threadIdx.x) / 32;
  const i64 begin = w * share, end = min(begin + share, R * C);
  int* references = (int*)(scratch_2MRC + M * R * C);
  if (begin >= end) return;
#if MIX
  extern __shared__ float4 shared[];  // sums of each model and lane, then references of each model
  float4* my_sums = shared + (threadIdx.x / 32) * 8 * PER * M + lane;
  int* my_references = (int*)(shared + THREADS / 4 * PER * M) + threadIdx.x;
#endif
#ifdef CHILD
  float* tile = (float*)(shared + THREADS / 4 * (PER + 1) * M) + threadIdx.x / 32 * GROUP;
#endif
  i64 r = begin / C, c = begin % C;
  const in_t* row = logits + r * stride_R;
  Load<in_t> loads[LOADS];
  load_group(loads, row, (int)c * CHUNK, V);
  for (i64 chunk = begin; chunk < end; ++r, c = 0, row += stride_R) {
    const i64 stop = min(C, c + end - chunk);
    const bool is_part = c > 0 || stop < C;
    const int to = (int)min(words, stop * CHUNK);
    chunk += stop - c;
    u32* bound_R = state_2R + R + r;
    Best best = {{0, 0}};
    float cut = cut_at(0);
#ifdef CHILD
    float all = 0, rest = 0;  // backoffs of all histories, and of those that are longer than the lane's
    for (i64 n = K - 1; n >= 0; --n) {
      if (n == lane) rest = all;
      all = add(all, backoff_RK[r * K + n]);
    }
    CHILD at_child = lane < K ? first_RK[r * K + lane] : 0;
    const CHILD end_child = lane < K ? end_RK[r * K + lane] : 0;
    for (CHILD high = end_child; at_child < high;) {  // the first child from the part's first word on
      const CHILD middle = at_child + (high - at_child) / 2;
      if (word_G[middle] < (u32)c * CHUNK) at_child = middle + 1;
      else high = middle;
    }
    u32 next_child = at_child < end_child ? word_G[at_child] : 0xFFFFFFFFu;
#endif
    float sums[PER];
    int reference = FIRST;
    for (int start = (int)c * CHUNK; start < to; start += GROUP) {
      const bool is_first = start % CHUNK == 0, is_last = (start + GROUP) % CHUNK == 0 || start + GROUP >= to;
      float x[LOADS][PER], most[LOADS];
#if MIX
      float mix[LOADS][PER];
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
#pragma unroll
        for (int e = 0; e < PER; ++e) mix[u][e] = start + u * RUN + lane * PER + e < V ? 0 : MINUS_INFINITY;
      }
      for (i64 m = 0; m < M; ++m) {
        const in_t* next = row + (m + 1) * stride_M;
        int next_start = start;
        const bool is_done = m + 1 == M;
        float4* at = my_sums + m * 8 * PER;
#pragma unroll
        for (int q = 0; q < PER; q += 4) {
          float4 four = is_first ? make_float4(0, 0, 0, 0) : at[q * 8];
          sums[q] = four.x, sums[q + 1] = four.y, sums[q + 2] = four.z, sums[q + 3] = four.w;
        }
        reference = is_first ? FIRST : my_references[m * THREADS];
#else
      {
        const i64 m = 0;
        const in_t* next = row;
        int next_start = start;
        const bool is_done = true;
        if (is_first) {
#pragma unroll
          for (int e = 0; e < PER; ++e) sums[e] = 0;
          reference = FIRST;
        }
#endif
#pragma unroll
        for (int u = 0; u < LOADS; ++u) {
#pragma unroll
          for (int e = 0; e < PER; ++e) x[u][e] = to_single(loads[u].part[e]);
        }
        if (is_done) {
          next = start + GROUP < to ? row : row + stride_R;
          next_start = start + GROUP < to ? start + GROUP : 0;
        }
        if (!is_done || start + GROUP < to || chunk < end) load_group(loads, next, next_start, V);
        if (bias_MV) add_row(x, bias_MV + m * V, start, V);
        float top = MINUS_INFINITY;
#pragma unroll
        for (int u = 0; u < LOADS; ++u) {
          most[u] = greater(x[u][0], MINUS_INFINITY);
#pragma unroll
          for (int e = 1; e < PER; ++e) most[u] = greater(most[u], x[u][e]);
          top = greater(top, most[u]);
        }
        add_terms(x, top, reference, sums);
        if (is_last) {
          float sum = sum_chunk(sums);
          if (lane == 0) {
            scratch_2MRC[(m * R + r) * C + start / CHUNK] = sum;
            references[(m * R + r) * C + start / CHUNK] = reference;
          }
        }
#if MIX
#pragma unroll
        for (int q = 0; q < PER; q += 4) at[q * 8] = make_float4(sums[q], sums[q + 1], sums[q + 2], sums[q + 3]);
        my_references[m * THREADS] = reference;
        const float weight = to_float(weights_M[m]);
        if (weight > 0) {
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
#pragma unroll
            for (int e = 0; e < PER; ++e) mix[u][e] = multiply_add(weight, x[u][e], mix[u][e]);
          }
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
            const float4 four = *(const float4*)(tile + u * RUN + lane * PER + q);
            mix[u][q] = multiply_add(ngram_weight, four.x, mix[u][q]);
            mix[u][q + 1] = multiply_add(ngram_weight, four.y, mix[u][q + 1]);
            mix[u][q + 2] = multiply_add(ngram_weight, four.z, mix[u][q + 2]);
            mix[u][q + 3] = multiply_add(ngram_weight, four.w, mix[u][q + 3]);
          }
        }
      }
#elif MIX
      if (ngrams) {
#pragma unroll
        for (int u = 0; u < LOADS; ++u) {
          const int i = start + u * RUN + lane * PER;
#ifdef HALF
          if (ngram_wide) {
#pragma unroll
            for (int q = 0; q < PER; q += 4) {
              Load<float> load;
              const float* from = (const float*)ngrams + r * ngram_stride;
              if (VECTOR && i + q + 4 <= V) load.all = load_once(from + i + q);
              else load_tail(load, from, i + q, V, MINUS_INFINITY);
#pragma unroll
              for (int e = 0; e < 4; ++e) mix[u][q + e] = multiply_add(ngram_weight, load.part[e], mix[u][q + e]);
            }
            continue;
          }
#endif
          Load<in_t> load;
          const in_t* from = (const in_t*)ngrams + r * ngram_stride;
          if (VECTOR && i + PER <= V) load.all = load_once(from + i);
          else load_tail(load, from, i, V, (in_t)0);
#pragma unroll
          for (int e = 0; e < PER; ++e) {
            mix[u][e] = multiply_add(ngram_weight, to_single(load.part[e]), mix[u][e]);
          }
        }
      }
#endif
#if MIX
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
        most[u] = greater(mix[u][0], MINUS_INFINITY);
#pragma unroll
        for (int e = 1; e < PER; ++e) most[u] = greater(most[u], mix[u][e]);
      }
      const float(&value)[LOADS][PER] = mix;
#else
      const float(&value)[LOADS][PER] = x;
#endif
      const float top = greater(greater(most[0], most[1]), greater(most[2], most[3]));
      if (!__any_sync(FULL_WARP, at_least(top, cut))) continue;
      // Lane 0 reads the bound for all lanes, because other warps raise it meanwhile.
      u32 least = least_of(best, k), bound = is_part ? __shfl_sync(FULL_WARP, __ldcg(bound_R), 0) : 0;
      if (least == 0 && k + F <= 32 * LOADS) bound = max(bound, rank_of_nth(most, (int)(k + F)));
      const u32 shared_bound = bound;
      cut = cut_at(max(least + 1, bound));
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
        if (!__any_sync(FULL_WARP, at_least(most[u], cut))) continue;
#pragma unroll
        for (int e = 0; e < PER; ++e) {
          u32 mask = __ballot_sync(FULL_WARP, at_least(value[u][e], cut));
          while (mask) {
            const int from = __ffs(mask) - 1;
            mask &= mask - 1;
            const u32 word = start + u * RUN + from * PER + e;
            const u64 key = rank_key(__shfl_sync(FULL_WARP, value[u][e], from), word);
            if (key >> 32 < bound) continue;
            bool is_forbidden = false;
            for (i64 f = lane; f < F; f += 32) is_forbidden |= forbidden_F[f] == (int)word;
            if (__any_sync(FULL_WARP, is_forbidden)) continue;
            insert(best, key, wide);
            least = least_of(best, k);  // an equal value may still win by a lower word of the same group
            bound = max(bound, least);
          }
          cut = cut_at(bound);
        }
      }
      cut = cut_at(max(least + 1, shared_bound));  // of equal values, the first group has the lower words
      if (is_part && least > shared_bound && lane == 0) atomicMax(bound_R, least);
    }

    if (is_part) {
      const i64 first_warp = r * C / share, last_warp = ((r + 1) * C - 1) / share;
#pragma unroll
      for (int q = 0; q < 2; ++q) {
        if (lane + 32 * q < k) scratch_WRk[(w + r) * k + lane + 32 * q] = best.key[q];
      }
      __threadfence();
      __syncwarp();
      u32 done = 0;
      if (lane == 0) done = atomicAdd(state_2R + r, 1u);
      if (__shfl_sync(FULL_WARP, done, 0) != last_warp - first_warp) continue;
      __threadfence();
      for (i64 other = first_warp; other <= last_warp; ++other) {
        if (other == w) continue;
        for (int i = 0; i < k; i += 32) {
          const u64 key = i + lane < k ? __ldcg(scratch_WRk + (other + r) * k + i + lane) : 0;
          u32 mask = __ballot_sync(FULL_WARP, key > 0);
          while (mask) {
            const u64 candidate = __shfl_sync(FULL_WARP, key, __ffs(mask) - 1);
            if (candidate < key_at(best, (int)k - 1, wide)) break;  // the others are less
            insert(best, candidate, wide);
            mask &= mask - 1;
          }
        }
      }
    }
    __syncwarp();
    double shift = to_double(costs_R[r]);
    for (i64 m = 0; m < M; ++m) {
      const double log = log_of_chunks(scratch_2MRC + (m * R + r) * C, references + (m * R + r) * C, C);
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
}
