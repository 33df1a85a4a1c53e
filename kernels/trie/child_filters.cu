// A Bloom filter of 64 bits for the children of each node (Bloom, "Space/Time Trade-offs in Hash Coding with Allowable
// Errors", 1970), with one hash function: most walks that would find no child end without a search.
#include "grid.cuh"
#include "child_filters.cuh"

// word_G (G,) u32, first_child_M (M + 1,) CHILD  ->  filter_M (M,) u64: see child_filters.py. One warp per node.
extern "C" __global__ void child_filters(const u32* word_G, const CHILD* first_child_M, i64 M, i64 symbols,
                                         i64 filter_bits, u64* filter_M) {
  i64 warps = gridDim.x * (i64)blockDim.x / 32;
  for (i64 m = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; m < M; m += warps) {
    i64 bits = m < symbols ? 64 : filter_bits, end = first_child_M[m + 1];
    u64 filter = 0;
    for (i64 g = (i64)first_child_M[m] + lane_id(); g < end; g += 32) filter |= 1ULL << filter_bit(word_G[g], bits);
    for (int lanes = 16; lanes; lanes /= 2) filter |= __shfl_xor_sync(FULL_WARP, filter, lanes);
    if (lane_id() == 0) filter_M[m] = filter;
  }
}
