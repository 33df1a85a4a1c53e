// The number of true values of a mask. CuPy's sum and count_nonzero take 3 to 5 s to compile, this kernel 0.1 s: see
// kernels/NOTES.md.
#include "grid.cuh"
#define VECTOR 16  // bytes that a lane reads at once

// mask_N (N,) bool, bytes of 0 or 1  ->  counted (1,) u64, added to: the number of bytes of 1.
extern "C" __global__ void count_true(const u8* mask_N, i64 N, u64* counted) {
  i64 head = min(N, (i64)(-(u64)mask_N % VECTOR)), vectors = (N - head) / VECTOR;  // mask_N may be part of an array
  u32 sum = 0;  // the sum of a warp fits, too: every block has about N / gridDim.x bytes
  GRID_STRIDE_LOOP(i, vectors) {
    uint4 bytes = *(const uint4*)(mask_N + head + VECTOR * i);
    sum += __popc(bytes.x) + __popc(bytes.y) + __popc(bytes.z) + __popc(bytes.w);
  }
  GRID_STRIDE_LOOP(i, N - VECTOR * vectors) sum += mask_N[i < head ? i : i + VECTOR * vectors];
  sum = __reduce_add_sync(FULL_WARP, sum);
  if (lane_id() == 0 && sum) atomicAdd(counted, (u64)sum);
}
