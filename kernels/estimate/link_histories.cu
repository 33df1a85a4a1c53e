// The first child of each n-gram of one order, and the history and the last word of each n-gram of the next order: the
// links of a trie, from two sorted tables. The tables rise together, so this is a merge.
#include "grid.cuh"
#include "blocks.cuh"
// See link_histories.py. Histories and n-grams rise together, so all that a block handles lies between the places of
// its first and its last one: two threads search these in the whole table, and all threads search between them.

#define TILE 2048  // as in link_histories.py

// Return the first row of `columns` from `low` on whose history is not below the key of row m, or `high`.
__device__ __forceinline__ i64 first_row(const u64* below, i64 stride_below, i64 m, const u64* columns, i64 stride,
                                         i64 low, i64 high) {
  u64 key[COLUMNS];
#pragma unroll
  for (int c = 0; c < COLUMNS; ++c) key[c] = below[c * stride_below + m];
  while (low < high) {
    i64 middle = (low + high) / 2;
    bool less = false, same = true;
#pragma unroll
    for (int c = 0; c < COLUMNS; ++c) {  // a key is zero after its words, so an n-gram is not below its own history
      if (same) {
        u64 stored = __ldg(columns + c * stride + middle);
        less = stored < key[c];
        same = stored == key[c];
      }
    }
    if (less) low = middle + 1; else high = middle;
  }
  return low;
}

// below (COLUMNS, M), columns (C, R)  ->  first_M1 (M + 1,), whose last value is R already.
extern "C" __global__ void find_firsts(const u64* below, i64 stride_below, i64 M, const u64* columns, i64 stride, i64 R,
                                       ROW* first_M1) {
  __shared__ i64 bounds[2];
  for (i64 begin = blockIdx.x * (i64)TILE; begin < M; begin += gridDim.x * (i64)TILE) {
    i64 end = min(begin + TILE, M);
    if (threadIdx.x < 2) {
      bounds[threadIdx.x] = first_row(below, stride_below, threadIdx.x ? end - 1 : begin, columns, stride, 0, R);
    }
    __syncthreads();
    for (i64 m = begin + threadIdx.x; m < end; m += blockDim.x) {
      first_M1[m] = (ROW)first_row(below, stride_below, m, columns, stride, bounds[0], bounds[1]);
    }
    __syncthreads();
  }
}

// first_M1 (M + 1,), columns (C, R)  ->  history_R (R,), and word_R (R,), the word after the first `used` bits.
extern "C" __global__ void link_histories(const ROW* first_M1, i64 M, const u64* columns, i64 stride, i64 R, int bits,
                                          int used, u32* history_R, u32* word_R) {
  __shared__ i64 bounds[2];
  int column = used / 64, begins = used % 64, spare = 64 - begins - bits;
  u64 mask = (1ull << bits) - 1;
  for (i64 begin = blockIdx.x * (i64)TILE; begin < R; begin += gridDim.x * (i64)TILE) {
    i64 end = min(begin + TILE, R);
    if (threadIdx.x < 2) bounds[threadIdx.x] = block_of(first_M1, 0, M - 1, threadIdx.x ? end - 1 : begin);
    __syncthreads();
    for (i64 r = begin + threadIdx.x; r < end; r += blockDim.x) {
      history_R[r] = (u32)block_of(first_M1, bounds[0], bounds[1], r);
      u64 code = columns[column * stride + r];
      code = spare >= 0 ? code >> spare : code << -spare | columns[(column + 1) * stride + r] >> (64 + spare);
      word_R[r] = (u32)((code & mask) - 1);
    }
    __syncthreads();
  }
}
