// gamma(context) = (D1 N1 + D2 N2 + D3+ N3+ + counts of pruned n-grams) / total: the mass that discounts leave to the
// lower order (Chen and Goodman, 1998, modified Kneser-Ney; pruning as in lmplz). In float32, in lmplz's order.
#include "grid.cuh"
#include "floats.cuh"

// See weigh_contexts.py; pruned_C may be null. Each product, sum and quotient is rounded, as on a CPU.
extern "C" __global__ void weigh_contexts(const i64* total_C, const u32* kinds_C3, const i64* pruned_C, float d1,
                                          float d2, float d3, i64 C, float* rounded_C, float* gamma_C) {
  GRID_STRIDE_LOOP(c, C) {
    const u32* kinds = kinds_C3 + 3 * c;
    float left = mul(d1, __uint2float_rn(kinds[0]));
    left = add(left, mul(d2, __uint2float_rn(kinds[1])));
    left = add(left, mul(d3, __uint2float_rn(kinds[2])));
    if (pruned_C) left = add(left, __ll2float_rn(pruned_C[c]));
    const float total = __ll2float_rn(total_C[c]);
    rounded_C[c] = total;
    gamma_C[c] = total_C[c] ? divide(left, total) : 1.0f;
  }
}
