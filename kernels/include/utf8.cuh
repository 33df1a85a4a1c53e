// Characters of valid UTF-8.
__device__ __forceinline__ int character_size(u8 lead) { return lead < 0x80 ? 1 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4; }

__device__ __forceinline__ u32 code_point(const u8* text_B, i64 i) {
  u32 a = text_B[i];
  if (a < 0x80) return a;
  u32 b = text_B[i + 1] & 63;
  if (a < 0xE0) return (a & 31) << 6 | b;
  u32 c = text_B[i + 2] & 63;
  if (a < 0xF0) return (a & 15) << 12 | b << 6 | c;
  return (a & 7) << 18 | b << 12 | c << 6 | (text_B[i + 3] & 63);
}

// Return whether Python's str.split takes a code point for white space.
__device__ __forceinline__ bool is_white(u32 c) {
  if (c <= 32) return c == 32 || (c >= 9 && c <= 13) || c >= 28;
  if (c < 0x1680) return c == 0x85 || c == 0xA0;
  return (c >= 0x2000 && c <= 0x200A) || c == 0x1680 || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}
