// Interpolated modified Kneser-Ney smoothing (Chen and Goodman, 1998), with a the adjusted count of an n-gram:
//   P(w | context) = (a - D(a)) / total + gamma(context) * P(w | context without its first word),
// where D(a) is D1, D2 or D3+. `weigh_contexts` computes total and gamma. In float32, as in lmplz, whose bits it has.
#include "grid.cuh"
#include "floats.cuh"

// See interpolate.py. Each product and sum is rounded, as on a CPU.
extern "C" __global__ void interpolate(const COUNT* count_R, const u32* context_R, const SUFFIX* suffix_R,
                                       const float* total_C, const float* gamma_C, const float* lower_L, float d1,
                                       float d2, float d3, i64 R, float* prob_R) {
  GRID_STRIDE_LOOP(r, R) {
    i64 count = count_R[r];
    u32 c = context_R[r];
    float discount = count == 1 ? d1 : count == 2 ? d2 : d3;
    float share = divide(add(__ll2float_rn(count), -discount), total_C[c]);
    prob_R[r] = add(share, mul(gamma_C[c], __ldg(lower_L + suffix_R[r])));
  }
}
