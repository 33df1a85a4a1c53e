// The second of two kernels that find the k best words of rows and of sentences, greatest score first, ties by lower
// word.
// `sum_chunks` has read the logits and left the sums and the greatest logit of each part of 512 bytes; this kernel
// reads again only the parts that may hold the best words, little more than k of them.
// A single kernel was slower, as its last warp of a row needs fences; two warps for each row, or two kernels for rows
// and for sentences, were slower in most sizes: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "ranks.cuh"
#include "best_keys.cuh"
#include "natural_log.cuh"
#include "exponential_sums.cuh"
#include "logit_rows.cuh"
// Shapes as in best_words.py, chunks_MRC and tops_RP as in sum_chunks.py, P = 16 C. Sentence s has rows starts_S1[s] to
// starts_S1[s + 1] - 1, at most k; without starts_S1, row s alone. A warp chooses the words of a row. Then all warps of a
// sentence look for the place of each word in the sorted lists of the sentence's other rows. A block (x, y) has y
// sentences, and y is 1 if a sentence has several warps.
// Floor: latency of loads that depend on each other, and of code that no cache holds yet. So few loops are unrolled.
#include "best_of_row.cuh"

#define NO_NUMBER 1ull  // the first key of a row whose scores are NaN

// Store the k candidates of a row by falling score, ties by rising word; the keys of none are 0.
// best: in the order of mixes. number: of the row in its sentence. is_alone: scores of -inf stay.
__device__ __forceinline__ void store_row(
    const Best& best, double shift, int k, int number, bool is_alone, u64* key_K, int* word_K, float* score_K) {
  bool is_number = shift == shift;
  const int lane = lane_id();
  u64 ranked[2];
  float score[2];
  int count = 0;
#pragma unroll
  for (int q = 0; q < 2; ++q) {
    const u64 key = best.key[q];
    // The score itself, not the key's value: 0 may be -0.
    score[q] = to_float(__dadd_rn(to_double(key_value(key)), shift));
    const bool is_word =
        is_number && key && lane + 32 * q < k && (is_alone || __float_as_uint(score[q]) != 0xFF800000u);
    ranked[q] = is_word ? rank_key(score[q], key_word(key)) : 0;
    count += __popc(__ballot_sync(FULL_WARP, is_word));
    is_number &= is_alone || __all_sync(FULL_WARP, !is_word || score[q] == score[q]);
  }
  int place[2] = {lane, lane + 32};
#pragma unroll 1
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
    const int at = place[q];
    key_K[at] = ranked[q] ? (ranked[q] & ~0xFFFFFFFFull) | (u32)~(number * k + at) : 0;
    if (at == 0 && !is_number) key_K[at] = NO_NUMBER;
    word_K[at] = (int)key_word(ranked[q]);
    score_K[at] = score[q];
  }
}

extern "C" __global__ void __launch_bounds__(MAX_THREADS, BLOCKS) best_words(
    LOGIT_ROWS, i64 num_words, const float* costs_R, const int* forbidden_F, i64 F, const u64* chunks_MRC,
    const float* tops_RP, const i64* starts_S1, const int* sizes_S, i64 S, int* rows_SK, int* words_SK, float* scores_SK,
    double* log_sums_MR) {
  extern __shared__ uint4 shared[];
  const i64 s = (i64)blockIdx.x * blockDim.y + threadIdx.y;
  const int k = (int)num_words, lane = lane_id(), warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (s > S || (s == S && !starts_S1)) return;
  const i64 first = starts_S1 ? starts_S1[s] : s;
  if (s == S) {  // rows behind the last sentence
#pragma unroll 1
    for (i64 r = first + threadIdx.x; r < R; r += blockDim.x) {
#pragma unroll 1
      for (i64 m = 0; m < M; ++m) log_sums_MR[m * R + r] = __longlong_as_double(0x7FF8000000000000LL);
    }
    return;
  }
  const int rows = starts_S1 ? min((int)(starts_S1[s + 1] - first), k) : 1;
  const int size = sizes_S ? min(sizes_S[s], k) : k;
  const int most = starts_S1 ? k : 1;
  char* mine = (char*)shared + threadIdx.y * (warps * (HELD_BYTES + QUEUE * 8) + most * k * 16);
  u64* queues = (u64*)(mine + warps * HELD_BYTES);
  u64* keys = queues + warps * QUEUE;
  int* word_of = (int*)(keys + most * k);
  float* score_of = (float*)(word_of + most * k);
#pragma unroll 1
  for (int row = warp; row < rows; row += warps) {
    double shift;
    const Best best = best_of_row(
        logits, stride_M, stride_R, M, R, words, weights_M, bias_MV, NGRAM_ARGUMENTS, ngram_weight, k, costs_R,
        forbidden_F, F, chunks_MRC, tops_RP, log_sums_MR, first + row, mine + warp * HELD_BYTES, queues + warp * QUEUE,
        shift);
    store_row(best, shift, k, row, !starts_S1, keys + row * k, word_of + row * k, score_of + row * k);
  }
  if (warps > 1) __syncthreads();
  else __syncwarp();
  int count = 0;
  bool is_number = true;
#pragma unroll 1
  for (int base = 0; base < rows * k; base += 32) {
    const u64 key = base + lane < rows * k ? keys[base + lane] : 0;
    is_number &= key != NO_NUMBER;
    count += __popc(__ballot_sync(FULL_WARP, key != 0));
  }
  is_number = size <= 0 || __all_sync(FULL_WARP, is_number);
  count = is_number ? min(count, size) : 0;
  const int top = 1 << (31 - __clz(k));
#pragma unroll 1
  for (int row = warp; row < rows; row += warps) {
#pragma unroll 1
    for (int i = lane; i < count; i += 32) {
      const u64 key = keys[row * k + i];
      int place = key ? i : k;
#pragma unroll 1
      for (int other = 0; other < rows && place < size; ++other) {
        if (other == row) continue;
        const u64* key_K = keys + other * k;
        int before = 0;
#pragma unroll 1
        for (int step = top; step > 0; step /= 2) {
          if (before + step <= k && key_K[before + step - 1] > key) before += step;
        }
        place += before;
      }
      if (place >= size) continue;
      if (rows_SK) rows_SK[s * k + place] = (int)first + row;
      words_SK[s * k + place] = word_of[row * k + i];
      scores_SK[s * k + place] = score_of[row * k + i];
    }
  }
#pragma unroll 1
  for (int i = count + threadIdx.x; i < k; i += blockDim.x) {
    if (rows_SK) rows_SK[s * k + i] = -1;
    words_SK[s * k + i] = -1;
    scores_SK[s * k + i] = is_number ? MINUS_INFINITY : __int_as_float(0x7FC00000);
  }
}
