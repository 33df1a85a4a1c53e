// Smoothing of plain counts c: P(w | context) = mass(c) / Z + gamma * P(w | shorter context); see smooth_contexts.py.
// The backoff of a context, as SRILM computes it (Stolcke, "SRILM - An Extensible Language Modeling Toolkit", 2002), is
//   (1 - sum of P(w | context)) / (1 - sum of P(w | shorter context)), both over the words that follow the context.
// Both sums take the float32 log10 values that the model stores, so that the model's rows sum to 1: see
// engine/estimate/NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "natural_log.cuh"
#include "powers.cuh"
#define MIN_MASS 3e-6  // as in smooth_contexts.py
#define NO_MASS -37.92977945366162f
#define LOG10_E 0.4342944819032518

__device__ __forceinline__ double mass_of(i64 count, const double* masses_K, int K, double shift) {
  return count <= K ? masses_K[count - 1] : __dadd_rn((double)count, shift);
}

__device__ __forceinline__ float log10_of(double value) { return to_float(__dmul_rn(log_of(value, 0), LOG10_E)); }

// See smooth_contexts.py; marked_R (R,) or null. One warp for each context: lanes read 32 n-grams at once and add their
// values one after the other. Each product and sum is rounded, as on a CPU.
extern "C" __global__ void smooth_contexts(const bool* marked_R, const COUNT* count_R, const SUFFIX* suffix_R,
                                           const float* lower_L, const i64* first_C1, i64 C, const double* masses_K,
                                           int K, double shift, double per_word, double added, double lower,
                                           int reserves, i64 words, float* prob_R, float* backoff_C) {
  int lane = lane_id();
  GRID_STRIDE_LOOP(thread, 32 * C) {
    i64 c = thread / 32, begin = first_C1[c], end = first_C1[c + 1], size = end - begin, total = 0;
    double mass = 0, share = 0, stored = 0, scale = 1;
    for (i64 base = begin; base < end; base += 32) {
      i64 r = base + lane;
      bool kept = r < end && !(marked_R && marked_R[r]);
      i64 count = r < end ? (i64)count_R[r] : 0;
      total += count;
      double my_mass = kept ? mass_of(count, masses_K, K, shift) : 0;
      double my_share = kept ? power10(to_double(__ldg(lower_L + suffix_R[r]))) : 0;
      int rows = (int)min((i64)32, end - base);
      for (int i = 0; i < rows; ++i) {
        mass = __dadd_rn(mass, __shfl_sync(FULL_WARP, my_mass, i));
        share = __dadd_rn(share, __shfl_sync(FULL_WARP, my_share, i));
      }
    }
    if (!size) {
      if (lane == 0) backoff_C[c] = 0;
      continue;
    }
#pragma unroll
    for (int d = 16; d; d /= 2) total += __shfl_xor_sync(FULL_WARP, total, d);
    double Z = __dadd_rn(__dadd_rn((double)total, __dmul_rn(per_word, (double)size)), added);
    double gamma = __ddiv_rn(__dmul_rn(lower, (double)size), Z), limit = 1 - MIN_MASS;
    if (reserves && size < words) {
      if (__dadd_rn(__ddiv_rn(mass, Z), __dmul_rn(gamma, share)) > limit) gamma = 0;
      if (gamma == 0 && __ddiv_rn(mass, Z) > limit) {
        Z = __dadd_rn(Z, fmax(1.0, ceil(__dadd_rn(__ddiv_rn(mass, limit), -Z))));
      }
    }
    double lower_left = __dadd_rn(1, -share);
    if (lower_left < MIN_MASS && mass > 0) {
      scale = __ddiv_rn(1, __dadd_rn(__ddiv_rn(mass, Z), __dmul_rn(gamma, share)));
    }
    for (i64 base = begin; base < end; base += 32) {
      i64 r = base + lane;
      double my_stored = 0;
      if (r < end) {
        float log10 = __int_as_float(0xFF800000);  // -inf
        if (!(marked_R && marked_R[r])) {
          double part = __ddiv_rn(mass_of((i64)count_R[r], masses_K, K, shift), Z);
          double prob = __dadd_rn(part, __dmul_rn(gamma, power10(to_double(__ldg(lower_L + suffix_R[r])))));
          log10 = min(log10_of(__dmul_rn(prob, scale)), 0.0f);
          my_stored = power10(to_double(log10));
        }
        prob_R[r] = log10;
      }
      int rows = (int)min((i64)32, end - base);
      for (int i = 0; i < rows; ++i) stored = __dadd_rn(stored, __shfl_sync(FULL_WARP, my_stored, i));
    }
    if (lane == 0) {
      double left = __dadd_rn(1, -stored);
      if (lower_left < MIN_MASS) backoff_C[c] = 0;
      else backoff_C[c] = left >= MIN_MASS ? log10_of(__ddiv_rn(left, lower_left)) : NO_MASS;
    }
  }
}
