// Keys that rank the words of a row: greater values have greater keys; of equal values, lower words do. -0 counts as 0.
__device__ __forceinline__ u32 rank_bits(float value) {
  u32 bits = __float_as_uint(value);
  if (bits == 0x80000000u) bits = 0;  // -0
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ u64 rank_key(float value, u32 word) { return (u64)rank_bits(value) << 32 | (u32)~word; }
__device__ __forceinline__ u32 key_word(u64 key) { return ~(u32)key; }
__device__ __forceinline__ float key_value(u64 key) {
  u32 bits = (u32)(key >> 32);
  return __uint_as_float(bits >> 31 ? bits ^ 0x80000000u : ~bits);
}
