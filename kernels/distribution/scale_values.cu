#include "common.cuh"
#include "floats.cuh"

// log10_G (G,) f32  ->  the values in another scale, (G,) f32; scale_values.py defines the constants.
// Each product and sum is rounded, as on a CPU.
extern "C" __global__ void to_ln(const float* log10_G, i64 G, float* ln_G) {
  GRID_STRIDE_LOOP(g, G) ln_G[g] = to_float(__dmul_rn(to_double(log10_G[g]), LN_10));
}

extern "C" __global__ void to_prob(const float* log10_G, i64 G, float* prob_G) {
  const double coefficients[] = {COEFFICIENTS};
  GRID_STRIDE_LOOP(g, G) {
    double x = min(max(to_double(log10_G[g]), LEAST), MOST);
    double k = floor(__dadd_rn(__dmul_rn(x, LOG2_10), 0.5));
    double r = __dadd_rn(__dadd_rn(x, -__dmul_rn(k, LOG10_2_HIGH)), -__dmul_rn(k, LOG10_2_LOW));
    double power = coefficients[DEGREE];
#pragma unroll
    for (int i = DEGREE - 1; i >= 0; --i) power = __dadd_rn(__dmul_rn(power, r), coefficients[i]);
    prob_G[g] = to_float(__dmul_rn(power, __longlong_as_double(((i64)k + 1023) << 52)));  // the bits of 2 ** k
  }
}
