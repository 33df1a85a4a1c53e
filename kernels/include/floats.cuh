// Arithmetic as on a CPU: rounded once, to the nearest, ties to even, subnormal numbers kept. Plain float32 operators
// differ, because CuPy compiles them to flush subnormal numbers to 0. Each function is one PTX instruction. A macro that
// wrote them would be as long and would hide their names from a search.
__device__ __forceinline__ float add(float a, float b) {
  float c;
  asm("add.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float mul(float a, float b) {
  float c;
  asm("mul.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float divide(float a, float b) {
  float c;
  asm("div.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float multiply_add(float a, float b, float c) {  // a * b + c
  float d;
  asm("fma.rn.f32 %0, %1, %2, %3;" : "=f"(d) : "f"(a), "f"(b), "f"(c));
  return d;
}
__device__ __forceinline__ float to_float(double a) {
  float b;
  asm("cvt.rn.f32.f64 %0, %1;" : "=f"(b) : "d"(a));
  return b;
}
__device__ __forceinline__ double to_double(float a) {
  double b;
  asm("cvt.f64.f32 %0, %1;" : "=d"(b) : "f"(a));
  return b;
}
