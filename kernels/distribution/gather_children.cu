#include "common.cuh"

// Runs among the first d of: run 0, its children, run 1, its children, ...
__device__ __forceinline__ i64 runs_among(const i64* offsets, i64 R, i64 d) {
  i64 low = 0, high = R;
  while (low < high) {
    i64 middle = (low + high) / 2;
    if (offsets[middle] + middle < d) low = middle + 1; else high = middle;
  }
  return low;
}

// first_R (R,) CHILD, offsets (R + 1,) i64: run r is word_G and value_G from first_R[r] on and goes to
// word_C (C,) u32 and value_C (C,) f32 from offsets[r] on; C = offsets[R].
// A block takes TILE runs and children together, so that neither many short runs nor a long one hold it up, and keeps
// the runs in shared memory.
extern "C" __global__ void gather_children(const CHILD* first_R, const i64* offsets, i64 R, i64 C, const u32* word_G,
                                           const float* value_G, u32* word_C, float* value_C) {
  __shared__ i64 runs[2];
  __shared__ i64 from[TILE + 1];  // what to add to a child's place in the result for its node
  __shared__ int starts[TILE + 1];  // of runs, counted from the first child of the tile
  for (i64 base = blockIdx.x * (i64)TILE; base < R + C; base += gridDim.x * (i64)TILE) {
    if (threadIdx.x < 2) runs[threadIdx.x] = runs_among(offsets, R, min(base + threadIdx.x * TILE, R + C));
    __syncthreads();
    i64 first = base - runs[0], end = min(base + TILE, R + C) - runs[1];  // children
    i64 run = max(runs[0] - 1, 0LL);  // the first one goes on from the tile before
    int count = (int)(runs[1] - run);
    for (int j = threadIdx.x; j < count; j += THREADS) {
      i64 start = offsets[run + j];
      from[j] = (i64)first_R[run + j] - start;
      starts[j] = (int)max(start - first, 0LL);
    }
    __syncthreads();
    for (int i = threadIdx.x; i < end - first; i += THREADS) {
      int low = 0, high = count - 1;  // becomes the last run that starts at child i or before it
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
