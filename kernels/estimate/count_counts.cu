// n_j = |{n-grams with adjusted count j}|, from which the discounts of modified Kneser-Ney smoothing come (Chen and
// Goodman, "An Empirical Study of Smoothing Techniques for Language Modeling", 1998, equation 26).
#include "grid.cuh"

// found_J[j] += how many of count_R (R,) are first + j, for j below `numbers`, at most 32. Lane j of a warp counts
// number first + j.
extern "C" __global__ void count_counts(const COUNT* count_R, i64 R, i64 first, int numbers, u64* found_J) {
  int lane = lane_id();
  u64 mine = 0;
  i64 step = (i64)gridDim.x * blockDim.x;
  for (i64 begin = (i64)blockIdx.x * blockDim.x + threadIdx.x - lane; begin < R; begin += step) {
    i64 number = begin + lane < R ? (i64)count_R[begin + lane] - first : -1;
    for (int j = 0; j < numbers; ++j) {
      u32 equal = __ballot_sync(FULL_WARP, number == j);
      if (lane == j) mine += __popc(equal);
    }
  }
  if (lane < numbers && mine) atomicAdd((unsigned long long*)found_J + lane, (unsigned long long)mine);
}
