// float32 products by tensor cores: x = high + low with both in TF32, and the products high * high, low * high and high
// * low, as one product with three times as many columns (Ootomo and Yokota, "Recovering single precision accuracy from
// Tensor Cores while surpassing the FP32 theoretical peak performance", 2022). low * low is below the precision.
#include "grid.cuh"
#include "floats.cuh"
// x_RX (R, X)  ->  parts (R, 3X), as in tf32_parts.py. Floor: 16 bytes for each number.

// Return the TF32 number next to x, ties to even.
__device__ __forceinline__ float nearest(float x) {
  const u32 bits = __float_as_uint(x);
  return __uint_as_float((bits + 0xFFFu + (bits >> 13 & 1u)) & 0xFFFFE000u);
}

extern "C" __global__ void tf32_parts(const float* x_RX, i64 R, i64 X, float* parts) {
  GRID_STRIDE_LOOP(i, R * X) {
    const float x = x_RX[i], high = nearest(x);
    float* row = parts + i / X * 3 * X + i % X;
    row[0] = high;
    row[X] = nearest(add(x, -high));
    row[2 * X] = high;
  }
}
