// log10 p  ->  ln p = log10 p * ln 10, or p = 10^log10 p. The power is our own polynomial in float64, rounded once, as
// libraries of CPUs and of GPUs differ in the last bit.
#include "grid.cuh"
#include "floats.cuh"
#include "powers.cuh"

// log10_G (G,) f32  ->  the values in another scale, (G,) f32; scale_values.py defines the constants.
// Each product and sum is rounded, as on a CPU.
extern "C" __global__ void to_ln(const float* log10_G, i64 G, float* ln_G) {
  GRID_STRIDE_LOOP(g, G) ln_G[g] = to_float(__dmul_rn(to_double(log10_G[g]), LN_10));
}

extern "C" __global__ void to_prob(const float* log10_G, i64 G, float* prob_G) {
  GRID_STRIDE_LOOP(g, G) prob_G[g] = to_float(power10(min(max(to_double(log10_G[g]), MIN_POWER), MAX_POWER)));
}
