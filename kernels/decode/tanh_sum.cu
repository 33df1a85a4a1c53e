// tanh(x + y + z): the last layer before the logits of a recurrent decoder, and its first state, whose summands are
// matrix products. z is one row for each word or sentence, so it is read through row_R and not copied.
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
// x_RY (R, Y), y_RY (R, Y) or null, z_NY null or rows of Y: row_R[r], or r if row_R is null  ->  new_RY (R, Y).
extern "C" __global__ void tanh_sum(
    const real* x_RY, const real* y_RY, const real* z_NY, const i64* row_R, i64 R, i64 Y, real* new_RY) {
  GRID_STRIDE_LOOP(i, R * Y) {
    float sum = single(x_RY[i]);
    if (y_RY) sum = add(sum, single(y_RY[i]));
    if (z_NY) {
      const i64 r = i / Y;
      sum = add(sum, single(z_NY[row_R ? row_R[r] * Y + i - r * Y : i]));
    }
    new_RY[i] = stored(tanh_of(sum));
  }
}
