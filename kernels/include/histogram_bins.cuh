// Dense histograms of n-grams: bin = sum of (code - 1) * symbols^(ORDER - 1 - i). Each thread takes RUN
// consecutive windows. tokens_T is 16-byte aligned.
#define RUN 16

// Load codes first .. first + RUN + ORDER - 2 of the stream; codes past its end are 0.
__device__ __forceinline__ void load_codes(const u16* lut, const token_t* tokens_T, i64 T, i64 first, u32* code) {
#if TOKEN_BYTES == 1 && ORDER <= 9
  if (first + RUN + 8 <= T) {
    uint4 v = *(const uint4*)(tokens_T + first);
    u32 word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int k = 0; k < RUN; ++k) code[k] = lut[word[k / 4] >> (8 * (k % 4)) & 255];
    if (ORDER > 1) {
      u64 ahead = *(const u64*)(tokens_T + first + RUN);
#pragma unroll
      for (int k = 0; k < ORDER - 1; ++k) code[RUN + k] = lut[ahead >> (8 * k) & 255];
    }
    return;
  }
#endif
#pragma unroll
  for (int k = 0; k < RUN + ORDER - 1; ++k) code[k] = first + k < T ? CODE(lut, tokens_T[first + k]) : 0;
}

template <class bin_t>
__device__ __forceinline__ bool window_bin(const u32* code, bin_t symbols, bin_t* bin) {
  bin_t b = 0;
  bool whole = true;
#pragma unroll
  for (int i = 0; i < ORDER; ++i) {
    whole &= code[i] != 0;
    b = b * symbols + (code[i] - 1);
  }
  *bin = b;
  return whole;
}
