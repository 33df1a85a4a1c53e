// What the loss of a neural mixture needs (Neubig and Dyer, 2016, equation 4):
//   log_sum = ln(sum over all logits of exp(z)),  log_gold = ln(exp(z_gold) + sum over n of exp(z_n) P_n(gold)),
// and ln P(gold) is their difference.
// The words' part of log_sum comes from sum_chunks, which reads the logits once.
#include "grid.cuh"
#include "floats.cuh"
#define VECTOR 0  // the logits themselves are read by sum_chunks
#include "natural_log.cuh"
#include "exponential_sums.cuh"
#include "activations.cuh"
#include "mixture.cuh"
// A mixture of R rows, chunks_RC (R, C) u64 of its words  ->  log_sum_R, log_gold_R (R,) f64. A warp takes a row.
// Grid: any; blocks are whole warps. All lanes add the same N + 1 terms, which are few.

// Return the logarithm of the sum of exp(term(i)) for i = 0 .. n - 1; NaN if one is NaN or inf.
template <typename Term> __device__ __forceinline__ double log_of_terms(i64 n, Term term) {
  const double least = __longlong_as_double(0xFFF0000000000000LL);
  double top = least, total = 0;
  for (i64 i = 0; i < n; ++i) {
    const double x = term(i);
    top = x > top ? x : top;
  }
  for (i64 i = 0; i < n; ++i) {
    const double x = term(i);
    if (x != least) total = __dadd_rn(total, to_double(exponential(to_float(__dadd_rn(x, -top)))));
  }
  if (total != total) return total;
  return top == least ? top : __dadd_rn(top, log_of(total, 0));
}

extern "C" __global__ void mixture_sums(
    MIXTURE, i64 R, const u64* chunks_RC, i64 C, double* log_sum_R, double* log_gold_R) {
  const double least = __longlong_as_double(0xFFF0000000000000LL), nan = __longlong_as_double(0x7FF8000000000000LL);
  const i64 warps = (i64)gridDim.x * (blockDim.x / 32);
  for (i64 r = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; r < R; r += warps) {
    const real* z = logits + r * stride;
    const float* log_probs = log_probs_RN + r * N;
    const u8 dropped = dropped_R ? dropped_R[r] : 0;
    const i64 gold = gold_R[r];
    const double of_words = log_of_chunks(chunks_RC + r * C, C);
    double of_gold = gold >= 0 && gold < words ? to_double(single(z[gold])) : nan;
    if (dropped & WORDS && of_gold == of_gold) of_gold = least;
    const double log_sum = log_of_terms(N + 1, [&](i64 i) {
      if (i < N) return dropped & COUNTS ? least : to_double(single(z[words + i]));
      return dropped & WORDS ? least : of_words;
    });
    const double log_gold = log_of_terms(N + 1, [&](i64 i) {
      if (i == N) return of_gold;
      return dropped & COUNTS ? least : __dadd_rn(to_double(single(z[words + i])), to_double(log_probs[i]));
    });
    const bool is_sum = log_sum > least && log_gold == log_gold;
    if (lane_id() == 0) {
      log_sum_R[r] = is_sum ? log_sum : nan;
      log_gold_R[r] = is_sum ? log_gold : nan;
    }
  }
}
