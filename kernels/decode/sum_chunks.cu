// The first of two kernels that find the best words of rows of logits z: for each chunk of a row, the greatest z, and
//   sum over x of exp(z_x - reference)
// with a reference that is raised as greater logits come (Milakov and Gimelshein, "Online normalizer calculation for
// softmax", 2018), so one read suffices; and the greatest logit of each part, by which `best_words` finds the words.
// Inserting candidates in this loop made it larger than the instruction cache. Two passes over shared memory were up to
// 6 % slower. ex2.approx is faster on an H100, but a CPU cannot repeat its bits: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "natural_log.cuh"
#include "exponential_sums.cuh"
#include "logit_rows.cuh"
// Shapes as in sum_chunks.py. Reads the logits once.
// Floor: bytes of the logits / 4.3 TB/s, 60 us for 1,280 rows of 50,000 float32, 30 us for float16; tops add 2 %.
// Instructions for a float32 logit: max 1, limit 1, split 3, power 5, scale and sum 2; for a float16 logit max 0.25,
// limit 0.5 (both in pairs), convert 1, split 3, power 4, scale and sum 2; 2 to 4 others. At the floor, an H200 issues
// 31 for each float32 and 15 for each float16.
// Rows are copied to shared memory, so that loads on their way hold no registers. More warps, or more groups on their
// way, were slower.
// CHILD: each lane knows the next child of a history of lane + 1 words; groups that have children are made in shared
// memory. Reads 4 bytes of value_V for each word, from L2, and 8 for each child.
// `warps` of the grid have chunks.
// SCRATCH: sums of models lie in `scratch`, 4 M THREADS (PER + 1) bytes of each block, for models that are more than
// lanes or too many for shared memory. It is written and read again for each group, so it should fit L2.

#define THREADS 128
#define WARPS (THREADS / 32)
#ifdef HALF
#define PACKED (HALF[0] == 'f' && !MIX && !BIAS)
#define TOPS_FIRST (!MIX)  // tops come while terms are computed: 10 % faster in float16, which waits for instructions
#else
#define PACKED false
#define TOPS_FIRST BIAS
#endif
#define BLOCKS 4  // of a multiprocessor; as in sum_chunks.py
#define SLOTS 3   // groups of a warp in shared memory: one that is summed, the others on their way
#define SLOT_FLOATS (32 * LOADS * 4)
#ifdef SCRATCH
#define SCRATCH_ARGUMENT , float4 *scratch
#else
#define SCRATCH_ARGUMENT
#endif

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

// A chunk of a row. Chunks are in the order of rows; with a bias, in the order of columns, so that warps share it.
struct Place {
  int r, c;
};

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS) sum_chunks(
    LOGIT_ROWS, i64 warps, u64* chunks_MRC, float* tops_RP SCRATCH_ARGUMENT) {
  extern __shared__ float4 shared[];  // slots of each warp; if MIX, n-gram values and sums of models
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
#if MIX
  float* tile = (float*)(shared + WARPS * SLOTS * SLOT_FLOATS / 4) + threadIdx.x / 32 * GROUP;
#ifdef SCRATCH
  float4* of_models = scratch + blockIdx.x * (M * (THREADS / 4 * (PER + 1)));
#else
  float4* of_models = shared + WARPS * (SLOTS * SLOT_FLOATS + GROUP) / 4;
  const float my_weight = lane < M ? to_float(weights_M[lane]) : 0;
#endif
  float4* my_sums = of_models + threadIdx.x / 32 * 8 * PER * M + lane;
  int* my_references = (int*)(of_models + THREADS / 4 * PER * M) + threadIdx.x;
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
    float sums[PER], my_top = MINUS_INFINITY;  // of lane 8 p + g: the greatest of part 4 g + p
    int group = 0;
    auto keep_top = [&](float top, int group) {  // of the lane
#pragma unroll
      for (int step = 1; step < 8; step *= 2) top = greater(top, __shfl_xor_sync(FULL_WARP, top, step));
      if (lane % 8 == group) my_top = greater(top, MINUS_INFINITY);
    };
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
          keep_top(top, group);
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
          if (TOPS_FIRST) keep_top(top, group);
#pragma unroll
          for (int u = 0; u < LOADS; ++u) {
#pragma unroll
            for (int e = 0; e < PER; ++e) add_term(not_below(x[u][e], scale.low), scale, sums[e]);
          }
#if MIX
#ifdef SCRATCH
          const float weight = to_float(weights_M[m]);
#else
          const float weight = __shfl_sync(FULL_WARP, my_weight, m);
#endif
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
      if (!TOPS_FIRST) keep_top(top, group);
      ++group;
    }
#if !MIX
    store_chunk(sums, scale.reference, chunks_MRC + ((i64)r * C + c));
#endif
    if (lane % 8 < 4) tops_RP[((i64)r * C + c) * PARTS + lane % 8 * 4 + lane / 8] = add(my_top, 0);  // no -0
  }
}
