// Keys of n-grams from those of their histories, whose children they are: a key is the history's with one code more.
#include "grid.cuh"
#include "blocks.cuh"

#define TILE 2048  // as in extend_keys.py

// keys (COLUMNS, M), first_M1 (M + 1,), word_G (G,)  ->  longer (COLUMNS or COLUMNS + 1, G): see extend_keys.py. The
// code begins in column `column`, with `spare` bits below it there; -b: b bits of it lie in the next column. Two threads
// search the histories of the first and the last n-gram of a tile, and all threads search between these.
extern "C" __global__ void extend_keys(const u64* keys, i64 stride, i64 M, const ROW* first_M1, const u32* word_G,
                                       i64 G, int column, int spare, u64* longer) {
  __shared__ i64 bounds[2];
  for (i64 begin = blockIdx.x * (i64)TILE; begin < G; begin += gridDim.x * (i64)TILE) {
    i64 end = min(begin + TILE, G);
    if (threadIdx.x < 2) bounds[threadIdx.x] = block_of(first_M1, 0, M - 1, threadIdx.x ? end - 1 : begin);
    __syncthreads();
    for (i64 g = begin + threadIdx.x; g < end; g += blockDim.x) {
      i64 m = block_of(first_M1, bounds[0], bounds[1], g);
      u64 code = word_G[g] + 1ull;
      u64 high = spare >= 0 ? code << spare : code >> -spare;
#pragma unroll
      for (int c = 0; c < COLUMNS; ++c) longer[c * G + g] = keys[c * stride + m] | (c == column ? high : 0);
      if (column == COLUMNS) longer[column * G + g] = high;
      if (spare < 0) longer[(column + 1) * G + g] = code << (64 + spare);
    }
    __syncthreads();
  }
}
