// Where the words and the newlines of a text begin, in two passes: the first one counts in each segment, the host adds
// up the counts, and the second one writes. A warp reads 512 bytes at once and ranks its lanes' bits by votes.
#include "grid.cuh"
#include "delimiters.cuh"
// Positions of word starts and newlines, in text order. No word starts with a newline, so the byte at
// a position tells words from newlines. Each warp scans SEGMENT bytes, 16 per lane.
// ISSPACE 1: words end at the white space of isspace; 0: at the delimiters of lmplz.

#define STEPS 8
#define SEGMENT (32 * 16 * STEPS)

__device__ __forceinline__ bool ends_word(u8 c) { return ISSPACE ? is_space(c) : is_delimiter(c); }

// Return bits: bit i is set if byte i of the lane's 16 starts a word or is a newline. `before` is the byte before them.
__device__ __forceinline__ u32 token_bits(const u8* text_B, i64 B, i64 at, u8 before) {
  alignas(16) u8 bytes[16];
  if (at + 16 <= B) {
    *(uint4*)bytes = *(const uint4*)(text_B + at);
  } else {
    for (int i = 0; i < 16; ++i) bytes[i] = at + i < B ? text_B[at + i] : ' ';
  }
  u32 bits = 0;
  bool gap = ends_word(before);
#pragma unroll
  for (int i = 0; i < 16; ++i) {
    bool delimiter = ends_word(bytes[i]);
    if ((gap && !delimiter) || bytes[i] == '\n') bits |= 1u << i;
    gap = delimiter;
  }
  return bits;
}

// counts_W[w]: tokens in segment w. With `positions`, writes the positions of segment w from offsets_W[w] on.
extern "C" __global__ void find_tokens(const u8* text_B, i64 B, i64* counts_W, const i64* offsets_W,
                                       u32* positions_T) {
  i64 warps = (i64)gridDim.x * (blockDim.x / 32);
  for (i64 w = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32; w * SEGMENT < B; w += warps) {
    i64 total = positions_T ? offsets_W[w] : 0;
    for (int s = 0; s < STEPS; ++s) {
      i64 at = w * SEGMENT + (s * 32 + lane_id()) * 16;
      u8 before = at > 0 && at <= B ? text_B[at - 1] : ' ';
      u32 bits = token_bits(text_B, B, at, before);
      u32 mine = __popc(bits), scan = mine;
      for (int d = 1; d < 32; d *= 2) {
        u32 up = __shfl_up_sync(FULL_WARP, scan, d);
        if (lane_id() >= d) scan += up;
      }
      if (positions_T) {
        i64 to = total + scan - mine;
        for (u32 b = bits; b; b &= b - 1) positions_T[to++] = (u32)(at + __ffs(b) - 1);
      }
      total += __shfl_sync(FULL_WARP, scan, 31);
    }
    if (!positions_T && lane_id() == 0) counts_W[w] = total;
  }
}
