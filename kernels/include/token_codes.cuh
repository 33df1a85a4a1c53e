// A stream of codes: 0 ends every window, c > 0 is symbol c - 1 of the alphabet.
// TOKEN_BYTES 1: raw bytes, translated by a table of 256 codes. TOKEN_BYTES 4: the tokens are codes.
#if TOKEN_BYTES == 1
typedef u8 token_t;
#define CODE(lut, t) ((u32)(lut)[t])
#define LOAD_LUT(lut, table) \
  __shared__ u16 lut[256]; \
  for (int i = threadIdx.x; i < 256; i += blockDim.x) lut[i] = (table)[i]; \
  __syncthreads();
#else
typedef u32 token_t;
#define CODE(lut, t) ((u32)(t))
#define LOAD_LUT(lut, table) const u16* lut = table; (void)lut;
#endif
