// The children and backoffs of all suffixes of each state of a StateTable: what find_histories finds by a walk, read
// from the suffix links instead.
#include "grid.cuh"

typedef int i32;

// states_H (H,) i32, nodes_M (M,) of a StateTable, first_child_M (M + 1,) CHILD, backoff_M (M,) f32 or null
//   ->  first_HK, end_HK (H, K) CHILD, backoff_HK (H, K) f32: see state_children.py. One thread for each state.
// Floor: latency of at most K reads after each other.
extern "C" __global__ void state_children(const i32* states_H, i64 H, i64 K, const ulonglong2* nodes_M, i64 M,
                                          const CHILD* first_child_M, const float* backoff_M, float neutral,
                                          CHILD* first_HK, CHILD* end_HK, float* backoff_HK) {
  GRID_STRIDE_LOOP(h, H) {
    i64 length = 0;
    for (i64 node = states_H[h]; node >= 0 && node < M;) {
      const u32 suffix = (u32)(nodes_M[node].y >> 32);
      node = suffix == 0xFFFFFFFFu ? -1 : (i64)suffix;
      ++length;
    }
    for (i64 k = length; k < K; ++k) {
      first_HK[h * K + k] = end_HK[h * K + k] = 0;
      backoff_HK[h * K + k] = neutral;
    }
    i64 node = states_H[h];
    for (i64 k = length - 1; k >= 0; --k) {
      first_HK[h * K + k] = first_child_M[node];
      end_HK[h * K + k] = first_child_M[node + 1];
      backoff_HK[h * K + k] = backoff_M ? backoff_M[node] : neutral;
      node = (i64)(u32)(nodes_M[node].y >> 32);
    }
  }
}
