// The children of many histories, one range after the other, as sparse rows. Ranges have 0 to V children. So that each
// block has as much to do, tiles are cut from the merged list of ranges and children (Merrill and Garland, "Merge-based
// Parallel Sparse Matrix-Vector Multiplication", 2016).
#include "grid.cuh"

// Return how many ranges are among the first d items of: range 0, its children, range 1, its children, ...
__device__ __forceinline__ i64 runs_among(const i64* offsets, i64 R, i64 d) {
  i64 low = 0, high = R;
  while (low < high) {
    i64 middle = (low + high) / 2;
    if (offsets[middle] + middle < d) low = middle + 1; else high = middle;
  }
  return low;
}

// first_R (R,) CHILD, offsets (R + 1,) i64: range r starts at first_R[r] in word_G and value_G. It is copied to
// word_C (C,) u32 and value_C (C,) f32 from offsets[r] on; C = offsets[R].
// A block takes TILE items, ranges plus children, so neither many short ranges nor a long one unbalances the load. It
// keeps the ranges in shared memory.
extern "C" __global__ void gather_children(const CHILD* first_R, const i64* offsets, i64 R, i64 C, const u32* word_G,
                                           const float* value_G, u32* word_C, float* value_C) {
  __shared__ i64 runs[2];
  __shared__ i64 from[TILE + 1];  // node = from + index of the child in the output
  __shared__ int starts[TILE + 1];  // starts of ranges, relative to the first child of the tile
  for (i64 base = blockIdx.x * (i64)TILE; base < R + C; base += gridDim.x * (i64)TILE) {
    if (threadIdx.x < 2) runs[threadIdx.x] = runs_among(offsets, R, min(base + threadIdx.x * TILE, R + C));
    __syncthreads();
    i64 first = base - runs[0], end = min(base + TILE, R + C) - runs[1];  // children
    i64 run = max(runs[0] - 1, 0LL);  // the first range may continue from the tile before
    int count = (int)(runs[1] - run);
    for (int j = threadIdx.x; j < count; j += THREADS) {
      i64 start = offsets[run + j];
      from[j] = (i64)first_R[run + j] - start;
      starts[j] = (int)max(start - first, 0LL);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < end - first; i += THREADS) {
      int low = 0, high = count - 1;  // becomes the last range that starts at or before child i
      while (low < high) {
        int middle = (low + high + 1) / 2;
        if (starts[middle] <= i) low = middle; else high = middle - 1;
      }
      i64 node = from[low] + first + i;
      word_C[first + i] = word_G[node];
      value_C[first + i] = value_G[node];
    }
    __syncthreads();
  }
}
