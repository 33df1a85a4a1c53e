// Activations with the arithmetic of decode/activations.py. Include after grid.cuh and floats.cuh.
// HALF: "f16", "bf16" or not defined (float32), the format of stored numbers; arithmetic is float32.
#ifdef HALF
typedef u16 real;
__device__ __forceinline__ float single(u16 bits) {
  float value;
  asm("cvt.f32." HALF " %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
__device__ __forceinline__ u16 stored(float value) {
  u16 bits;
  asm("cvt.rn." HALF ".f32 %0, %1;" : "=h"(bits) : "f"(value));
  return bits;
}
#else
typedef float real;
__device__ __forceinline__ float single(float value) { return value; }
__device__ __forceinline__ float stored(float value) { return value; }
#endif

#define LOG2_E 1.44269504f
#define MIN_EXPONENT -87.0f
#define SHIFT 12583039.0f  // 1.5 * 2^23 + 127
#define PART_LOADS 4       // numbers that a lane takes of each 128 of a row

__device__ __forceinline__ float tanh_of(float x) {
  x = x > 9.01f ? 9.01f : x;
  x = x < -9.01f ? -9.01f : x;
  float z = mul(x, x), p = multiply_add(1.33367459e-08f, z, 2.05962042e-05f);
  float q = multiply_add(7.76924253e-07f, z, 0.00032843565f);
  p = multiply_add(multiply_add(multiply_add(p, z, 0.00349480705f), z, 0.133803681f), z, 1.0f);
  q = multiply_add(multiply_add(multiply_add(q, z, 0.0258740112f), z, 0.46713683f), z, 1.0f);
  return divide(mul(x, p), q);
}

__device__ __forceinline__ float sigmoid(float x) { return multiply_add(0.5f, tanh_of(mul(0.5f, x)), 0.5f); }

// exp(x) for x <= 0
__device__ __forceinline__ float exponential(float x) {
  float limited = x < MIN_EXPONENT ? MIN_EXPONENT : x, whole = multiply_add(limited, LOG2_E, SHIFT);
  float f = multiply_add(limited, LOG2_E, SHIFT - whole);
  float p = multiply_add(multiply_add(0.000154035297f, f, 0.00133335579f), f, 0.00961812866f);
  p = multiply_add(multiply_add(p, f, 0.0555041097f), f, 0.240226507f);
  p = multiply_add(multiply_add(p, f, 0.693147182f), f, 1.0f);
  return x < MIN_EXPONENT ? 0.0f : mul(p, __uint_as_float(__float_as_uint(whole) << 23));
}

#define GROW_LIMIT 21.5f  // exp(4 * GROW_LIMIT) < 2^125

// exp(2 x) for |x| <= GROW_LIMIT
__device__ __forceinline__ float grown(float x) {
  float whole = multiply_add(x, 2 * LOG2_E, SHIFT), f = multiply_add(x, 2 * LOG2_E, add(SHIFT, -whole));
  float p = multiply_add(multiply_add(0.000154035297f, f, 0.00133335579f), f, 0.00961812866f);
  p = multiply_add(multiply_add(p, f, 0.0555041097f), f, 0.240226507f);
  p = multiply_add(multiply_add(p, f, 0.693147182f), f, 1.0f);
  return mul(p, __uint_as_float(__float_as_uint(whole) << 23));
}

// 1 / x, correctly rounded, for 1 <= x < 2^125: what the compiler does after it has checked the range.
__device__ __forceinline__ float inverse(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return multiply_add(y, multiply_add(-x, y, 1.0f), y);
}

// The sum of the parts of all lanes of a warp, the same bits in each lane.
__device__ __forceinline__ float sum_parts(const float (&part)[PART_LOADS]) {
  float sum = add(add(part[0], part[1]), add(part[2], part[3]));
#pragma unroll
  for (int half = 16; half; half /= 2) sum = add(sum, __shfl_xor_sync(FULL_WARP, sum, half));
  return sum;
}
