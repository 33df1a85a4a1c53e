// The step between two steps of a beam search: a hypothesis that ends leaves the beam, its score is divided as the
// length rule says, a sentence is done when its beam is empty or the stop rule says so, and the rows of all other
// hypotheses move together.
// A design with a thread for each hypothesis is faster for beams of 3 and 9, slower for beams of 1: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
// Shapes as in advance_beams.py. One block; each thread has a sentence, and the block adds up their rows.
// Floor: it moves some 25 bytes for each hypothesis, so it is bound by the latency of a few loads after each other.

#define THREADS 1024

typedef short i16;

// Return the sum of `mine` of this lane and those below.
__device__ __forceinline__ u64 sum_up_to(u64 mine) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const u64 lower = __shfl_up_sync(FULL_WARP, mine, d);
    if (lane_id() >= d) mine += lower;
  }
  return mine;
}

// Return the sum of `mine` of the threads before this one; `total` becomes that of all.
__device__ __forceinline__ u64 sum_before(u64 mine, u64* of_warps, u64& total) {
  const u64 sum = sum_up_to(mine), warp = threadIdx.x / 32;
  if (lane_id() == 31) of_warps[warp] = sum;
  __syncthreads();
  const u64 up_to = sum_up_to(of_warps[lane_id()]), below = __shfl_sync(FULL_WARP, up_to, (int)warp - 1);
  total = __shfl_sync(FULL_WARP, up_to, 31);
  __syncthreads();
  return (warp ? below : 0) + sum - mine;
}

extern "C" __global__ void __launch_bounds__(THREADS) advance_beams(
    const int* rows_SK, const int* words_SK, const float* scores_SK, const int* slots_S, const i16* places_R, i64 S,
    i64 K, i64 L, i64 B, int* words_NLK, i16* before_NLK, float* costs_NLK, int* steps_N, const int* longest_N,
    const int* most_N, int* sizes_N, double* finished_NB, int eos, int rule, double word_penalty,
    const double* lengths_L1, int* next_slots_S, i64* next_starts_S1, int* next_sizes_S, i16* next_places_R,
    int* parents_R, int* words_R, float* costs_R, int* done_S, i64* counts_4) {
  __shared__ u64 of_warps[THREADS / 32];
  i64 sentences = 0, rows = 0, done = 0;
  u64 my_places = 0, places;
  for (i64 base = 0; base < S; base += THREADS) {
    const i64 s = base + threadIdx.x;
    const i64 n = s < S ? slots_S[s] : -1;
    i64 length = 0, longest = 0;
    int kept = 0, size = 0;
    bool is_done = n >= 0;
    if (n >= 0) {
      const i64 step = steps_N[n], most = most_N[n];
      double* finished_B = finished_NB + n * B;
      length = step + 1;
      longest = longest_N[n];
      int ended = 0;
      bool finishes = false;
      double best = 0;
      for (i64 k = 0; k < K; ++k) {
        const i64 to = (n * L + step) * K + k;
        const int word = words_SK[s * K + k];
        const float cost = scores_SK[s * K + k];
        words_NLK[to] = word;
        costs_NLK[to] = cost;
        before_NLK[to] = word < 0 ? 0 : places_R[rows_SK[s * K + k]];
        if (word < 0) continue;
        if (word == eos || length == longest) {
          finishes = true;
          const double score = __ddiv_rn(__dsub_rn(to_double(cost), __dmul_rn(word_penalty, (double)length)),
                                         lengths_L1[length]);
          if (score > finished_B[B - 1]) {
            i64 at = B - 1;
            for (; at && finished_B[at - 1] < score; --at) finished_B[at] = finished_B[at - 1];
            finished_B[at] = score;
          }
        }
        if (word == eos || length > longest) {
          ++ended;
        } else if (kept++ == 0) {
          best = to_double(cost);
        }
      }
      steps_N[n] = (int)length;
      size = sizes_N[n] - ended;
      sizes_N[n] = size;
      is_done = kept == 0 || length >= most || (rule == 1 && finishes);
      if (rule == 2 && !is_done && finished_B[B - 1] > __longlong_as_double(0xFFF0000000000000LL)) {
        const i64 least = length + 1;
        const double reach = __dsub_rn(best, __dmul_rn(word_penalty, (double)(word_penalty >= 0 ? least : most)));
        is_done = finished_B[B - 1] >= fmax(__ddiv_rn(reach, lengths_L1[least]), __ddiv_rn(reach, lengths_L1[most]));
      }
      if (is_done) kept = size = 0;
    }
    u64 all;
    const u64 before = sum_before((u64)kept << 32 | (u64)(n >= 0 && !is_done) << 16 | (u64)(n >= 0 && is_done), of_warps, all);
    my_places += size;
    if (n >= 0 && is_done) done_S[done + (i64)(before & 0xFFFF)] = (int)n;
    if (n >= 0 && !is_done) {
      const i64 to = sentences + (i64)(before >> 16 & 0xFFFF);
      i64 row = rows + (i64)(before >> 32);
      next_slots_S[to] = (int)n;
      next_starts_S1[to] = row;
      next_sizes_S[to] = size;
      for (i64 k = 0; k < K; ++k) {
        const int word = words_SK[s * K + k];
        if (word < 0 || word == eos || length > longest) continue;
        next_places_R[row] = (i16)k;
        parents_R[row] = rows_SK[s * K + k];
        words_R[row] = word;
        costs_R[row] = scores_SK[s * K + k];
        ++row;
      }
    }
    rows += (i64)(all >> 32);
    sentences += (i64)(all >> 16 & 0xFFFF);
    done += (i64)(all & 0xFFFF);
  }
  sum_before(my_places, of_warps, places);
  for (i64 s = threadIdx.x; s <= S; s += THREADS) {
    if (s >= sentences) next_starts_S1[s] = rows;
    if (s < S && s >= sentences) {
      next_slots_S[s] = -1;
      next_sizes_S[s] = 0;
    }
    if (s < S && s >= done) done_S[s] = -1;
  }
  for (i64 r = rows + threadIdx.x; r < S * K; r += THREADS) {
    next_places_R[r] = 0;
    parents_R[r] = 0;
    words_R[r] = 0;
    costs_R[r] = 0;
  }
  if (threadIdx.x == 0) {
    counts_4[0] = sentences;
    counts_4[1] = rows;
    counts_4[2] = (i64)places;
    counts_4[3] = done;
  }
}
