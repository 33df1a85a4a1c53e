// The gates of a gated recurrent unit (Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder", 2014),
// with the reset gate after the product, as in Nematus: x = W input + b and s = U h come from matrix products, and
//   r = sigmoid(x_r + s_r),  z = sigmoid(x_z + s_z),  p = tanh(x_p + r s_p),  new h = z (h - p) + p.
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
// inputs_NG rows of 3H (row r is row_R[r] if row_R, else at r * stride), states_RG (R, 3H), h_RH (R, H), live_R (R,) u8 or
// null  ->  new_RH (R, H). A thread has one state: neighbours read neighbouring gates.
extern "C" __global__ void gru_gates(
    const real* inputs_NG, i64 stride, const real* states_RG, const real* h_RH, const i64* row_R, const u8* live_R,
    i64 R, i64 H, real* new_RH) {
  GRID_STRIDE_LOOP(i, R * H) {
    const i64 r = i / H, j = i - r * H;
    if (live_R && !live_R[r]) {
      new_RH[i] = h_RH[i];
      continue;
    }
    const real* x = inputs_NG + (row_R ? row_R[r] * 3 * H : r * stride) + j;
    const real* s = states_RG + r * 3 * H + j;
    const float reset = sigmoid(add(single(x[0]), single(s[0])));
    const float update = sigmoid(add(single(x[H]), single(s[H])));
    const float proposal = tanh_of(multiply_add(single(s[2 * H]), reset, single(x[2 * H])));
    new_RH[i] = stored(multiply_add(update, add(single(h_RH[i]), -proposal), proposal));
  }
}
