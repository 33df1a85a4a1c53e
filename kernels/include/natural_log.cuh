// Logarithms with the bits of decode/exponential_sums.py. Include after grid.cuh.
// Return the natural logarithm of total * 2^reference; total is a normal number above 0.
__device__ __forceinline__ double log_of(double total, int reference) {
  i64 bits = __double_as_longlong(total), exponent = (bits >> 52) - 1023;
  double fraction = __longlong_as_double((bits & 0xFFFFFFFFFFFFFLL) | 0x3FF0000000000000LL);
  if (fraction > 1.4142135623730951) {
    fraction *= 0.5;
    ++exponent;
  }
  double s = __ddiv_rn(fraction - 1, fraction + 1), square = __dmul_rn(s, s), series = 0;
#pragma unroll
  for (int k = 10; k >= 0; --k) series = __dadd_rn(__dmul_rn(series, square), 1.0 / (2 * k + 1));
  return __dadd_rn(__dmul_rn((double)(reference + exponent), 0.6931471805599453),
                   __dmul_rn(__dmul_rn(2.0, s), series));
}
