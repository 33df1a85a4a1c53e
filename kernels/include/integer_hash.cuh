// The finaliser of MurmurHash3 (Appleby, public domain constants), a bijection of 64-bit numbers; the same as in
// kernels/common/integer_hash.py. Include after grid.cuh.
__device__ __forceinline__ u64 mix64(u64 x) {
  x ^= x >> 33; x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33; x *= 0xc4ceb9fe1a85ec53ULL;
  return x ^ (x >> 33);
}
