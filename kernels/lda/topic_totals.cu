// n_k = sum over words w of n_wk, the tokens of each topic: the denominator of phi (Griffiths and Steyvers, "Finding
// scientific topics", 2004). A thread sums one topic, so neighbours read neighbouring counts. Sums are integers, so
// their order changes nothing.
#include "grid.cuh"

// counts_VZ (V, Z)  ->  totals_Z (Z,), added to. A block takes blockDim.x topics and every gridDim.y-th word.
extern "C" __global__ void topic_totals(const u32* counts_VZ, i64 V, i64 Z, u64* totals_Z) {
  i64 k = blockIdx.x * (i64)blockDim.x + threadIdx.x;
  if (k >= Z) return;
  u64 sum = 0;
#pragma unroll 4
  for (i64 v = blockIdx.y; v < V; v += gridDim.y) sum += counts_VZ[v * Z + k];
  if (sum) atomicAdd(&totals_Z[k], sum);
}
