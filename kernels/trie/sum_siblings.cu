// The sum of a value over the children of each node, in float64. In the order of the children, so all devices give the
// same bits; sums by shuffles would not.
#include "grid.cuh"

// Values and first children as in sum_siblings.py  ->  sums_M (M,) f64.
// One warp for each node: lanes read 32 values at once, and add them one after the other.
extern "C" __global__ void sum_siblings(const double* values_C, const CHILD* first_child_M, i64 M, double* sums_M) {
  int lane = lane_id();
  GRID_STRIDE_LOOP(thread, 32 * M) {
    i64 m = thread / 32, first = first_child_M[0], begin = first_child_M[m] - first, end = first_child_M[m + 1] - first;
    double total = 0;
    for (i64 base = begin; base < end; base += 32) {
      i64 c = base + lane;
      double value = c < end ? values_C[c] : 0;
      int size = (int)min((i64)32, end - base);
      for (int i = 0; i < size; ++i) total = __dadd_rn(total, __shfl_sync(FULL_WARP, value, i));
    }
    if (lane == 0) sums_M[m] = total;
  }
}
