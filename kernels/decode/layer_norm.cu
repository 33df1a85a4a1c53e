// Layer normalisation (Ba, Kiros and Hinton, "Layer Normalization", 2016, equation 4):
//   new = (x - mean) / sqrt(mean of (x - mean)^2 + epsilon) * scale + shift.
// The variance is the mean of squared differences, not of squares less the squared mean, which cancels. Sums are taken
// in the order of the CPU's code, so both give the same bits.
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
// x_RY (R, Y), scale_Y (Y,), shift_Y (Y,) or null  ->  columns first to end - 1 of new_RY (R, Y). A warp takes a row.
// Grid: any; blocks are whole warps. The row is read three times: from the second time on, from the caches.
extern "C" __global__ void layer_norm(
    const real* x_RY, const real* scale_Y, const real* shift_Y, i64 R, i64 Y, i64 first, i64 end, float epsilon,
    real* new_RY) {
  const i64 warps = (i64)gridDim.x * (blockDim.x / 32);
  const i64 at = first + lane_id() * PART_LOADS;
  const float width = (float)(end - first);
  for (i64 r = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; r < R; r += warps) {
    const real* x = x_RY + r * Y;
    float part[PART_LOADS] = {0, 0, 0, 0};
    for (i64 start = at; start < end; start += 32 * PART_LOADS) {
#pragma unroll
      for (int e = 0; e < PART_LOADS; ++e) {
        if (start + e < end) part[e] = add(part[e], single(x[start + e]));
      }
    }
    const float mean = divide(sum_parts(part), width);
#pragma unroll
    for (int e = 0; e < PART_LOADS; ++e) part[e] = 0;
    for (i64 start = at; start < end; start += 32 * PART_LOADS) {
#pragma unroll
      for (int e = 0; e < PART_LOADS; ++e) {
        const float difference = start + e < end ? add(single(x[start + e]), -mean) : 0;
        part[e] = multiply_add(difference, difference, part[e]);
      }
    }
    const float factor = divide(1, __fsqrt_rn(add(divide(sum_parts(part), width), epsilon)));
    for (i64 i = first + lane_id(); i < end; i += 32) {
      const float y = mul(add(single(x[i]), -mean), factor);
      new_RY[r * Y + i] = stored(multiply_add(y, single(scale_Y[i]), shift_Y ? single(shift_Y[i]) : 0.0f));
    }
  }
}
