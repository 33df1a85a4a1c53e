// Of each context: the sum of the adjusted counts of its n-grams, and how many of them have the counts 1, 2, and 3 or
// more (Chen and Goodman, 1998: the N1, N2 and N3+ of gamma).
#include "grid.cuh"

// context_R rising, count_R, marked_R (R,) or null  ->  adds to total_C, kinds_C3, pruned_C: see sum_contexts.py.
// A warp sums the n-grams of each context among its 32 rows before it adds to memory: most contexts have few n-grams,
// and some have millions.
extern "C" __global__ void sum_contexts(const u32* context_R, const COUNT* count_R, const bool* marked_R, i64 R,
                                        u32 first, u64* total_C, u32* kinds_C3, u64* pruned_C) {
  int lane = lane_id();
  i64 step = (i64)gridDim.x * blockDim.x, begin = (i64)blockIdx.x * blockDim.x + threadIdx.x - lane;
  for (; begin < R; begin += step) {
    i64 r = begin + lane;
    u32 context = r < R ? context_R[r] : 0xFFFFFFFF;
    u64 total = r < R ? (u64)count_R[r] : 0;
    bool marked = marked_R && r < R && marked_R[r];
    u64 pruned = marked ? total : 0;
    u32 kinds = total && !marked ? 1u << 8 * ((int)min(total, (u64)3) - 1) : 0;  // a byte per kind, at most 32
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      u32 other = __shfl_up_sync(FULL_WARP, context, d), more_kinds = __shfl_up_sync(FULL_WARP, kinds, d);
      u64 more = __shfl_up_sync(FULL_WARP, total, d), more_pruned = marked_R ? __shfl_up_sync(FULL_WARP, pruned, d) : 0;
      if (lane >= d && other == context) {
        total += more;
        pruned += more_pruned;
        kinds += more_kinds;
      }
    }
    u32 next = __shfl_down_sync(FULL_WARP, context, 1);
    if (r >= R || (lane < 31 && next == context)) continue;  // not the last of its context in this warp
    context -= first;
    atomicAdd((unsigned long long*)total_C + context, total);
    if (pruned) atomicAdd((unsigned long long*)pruned_C + context, pruned);
#pragma unroll
    for (int k = 0; k < 3; ++k) {
      if (kinds >> 8 * k & 255) atomicAdd(kinds_C3 + 3 * (i64)context + k, kinds >> 8 * k & 255);
    }
  }
}
