// For each text of a list and each node of a trie of spellings: the node that the text leads to.
#include "grid.cuh"
#include "spellings.cuh"

// byte_M (M,) u8, first_child_M (M + 1,) i32, nodes_R (R,) i32, offsets_T (T + 1,) i64, data u8
//   ->  nodes_RT (R, T) i32: the node of each text after each node; M for none. One thread for each node and text.
// Floor: the write. Most texts leave the trie at their first or second byte.
extern "C" __global__ void walk_spellings(const u8* byte_M, const i32* first_child_M, i64 M, const i32* nodes_R,
                                          const i64* offsets_T, const u8* data, i64 R, i64 T, i32* nodes_RT) {
  GRID_STRIDE_LOOP(i, R * T) {
    const i64 r = i / T, t = i - r * T, end = offsets_T[t + 1];
    i64 node = nodes_R[r];
    if (node < 0 || node > M) node = M;
    for (i64 at = offsets_T[t]; at < end && node < M; ++at) {
      node = spelling_child(byte_M, first_child_M, M, node, data[at]);
    }
    nodes_RT[i] = (i32)node;
  }
}
