// Powers of 10 with the bits of kernels/common/powers.py, which defines the constants. Each product and sum is rounded.
__device__ __forceinline__ double power10(double x) {
  const double coefficients[] = {COEFFICIENTS};
  double k = floor(__dadd_rn(__dmul_rn(x, LOG2_10), 0.5));
  double r = __dadd_rn(__dadd_rn(x, -__dmul_rn(k, LOG10_2_HIGH)), -__dmul_rn(k, LOG10_2_LOW));
  double power = coefficients[DEGREE];
#pragma unroll
  for (int i = DEGREE - 1; i >= 0; --i) power = __dadd_rn(__dmul_rn(power, r), coefficients[i]);
  return __dmul_rn(power, __longlong_as_double(((i64)k + 1023) << 52));  // the bits of 2 ** k
}
__device__ __forceinline__ double raised(double log10, double exponent) {
  double x = __dmul_rn(log10, exponent);
  return x >= -EXPONENTS ? power10(min(x, EXPONENTS)) : 0;
}
