// The states of a bidirectional encoder side by side, and their mean over the positions of a sentence, from which a
// decoder starts (Nematus: Sennrich et al., "Nematus: a Toolkit for Neural Machine Translation", 2017, section 2).
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
// forward_TBH, backward_TBH (T, B, H), length_B  ->  context_BTC (B, T, C), mean_BC (B, C). C is 2H, or H if backward_TBH
// is null. A thread takes a column of a sentence. Floor: the bytes of both states, read and written.
extern "C" __global__ void contexts(const real* forward_TBH, const real* backward_TBH, const i64* length_B, i64 T, i64 B,
                                    i64 H, real* context_BTC, real* mean_BC) {
  const i64 C = backward_TBH ? 2 * H : H;
  GRID_STRIDE_LOOP(i, B * C) {
    const i64 b = i / C, c = i - b * C, length = length_B[b];
    const real* states = (c < H ? forward_TBH + c : backward_TBH + c - H) + b * H;
    real* context = context_BTC + b * T * C + c;
    float total = 0;
#pragma unroll 8
    for (i64 t = 0; t < length; ++t) {
      const real state = states[t * B * H];
      context[t * C] = state;
      total = add(total, single(state));
    }
    for (i64 t = length; t < T; ++t) context[t * C] = stored(0.0f);
    mean_BC[i] = stored(divide(total, __ll2float_rn(length)));
  }
}
