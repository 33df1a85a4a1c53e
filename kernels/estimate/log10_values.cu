// log10(x) for x = 2^e f: (e ln 2 + ln f) log10(e), with ln f = 2 (s + s^3/3 + s^5/5 + ...) and s = (f - 1) / (f + 1).
// Our own series in float64, rounded once, since logarithms of CPUs' and GPUs' libraries differ in the last bit.
#include "grid.cuh"
#include "floats.cuh"
#define TERMS 11  // as in log10_values.py

// bits_R (R,): the bits of the values  ->  out (R,): their logarithms. Each product and sum is rounded, as on a CPU.
extern "C" __global__ void log10_values(const u32* bits_R, double log10_2, double log10_e, i64 R, float* out) {
  GRID_STRIDE_LOOP(r, R) {
    i64 exponent = (i64)(bits_R[r] >> 23) - 127;
    double fraction = 1 + (bits_R[r] & 0x7FFFFF) * 0x1p-23;  // exact
    if (fraction > 1.4142135623730951) {
      fraction *= 0.5;
      ++exponent;
    }
    double s = __ddiv_rn(fraction - 1, fraction + 1), square = __dmul_rn(s, s), total = 0;
#pragma unroll
    for (int k = TERMS - 1; k >= 0; --k) total = __dadd_rn(__dmul_rn(total, square), 1.0 / (2 * k + 1));
    double log = __dadd_rn(__dmul_rn((double)exponent, log10_2),
                           __dmul_rn(__dmul_rn(__dmul_rn(2, s), total), log10_e));
    out[r] = bits_R[r] ? to_float(log < 0 ? log : 0) : __int_as_float(0xFF800000);  // -inf
  }
}
