// The n-grams of one part among the nodes of an order. All n-grams that continue a context are in one part, and they are
// neighbours there and among the nodes, so the sizes of these blocks give each n-gram its node: no keys are compared.
#include "grid.cuh"
#include "blocks.cuh"

#define TILE 2048  // as in place_ngrams.py

// node_C, first_C1 (C + 1,), word_R, log10_R, first_M1  ->  word_G, log10_G, and place_R unless it is null: see
// place_ngrams.py. All rows of a tile lie in the blocks between those of its first and its last row: two threads search
// these among all blocks, and all threads search between them.
extern "C" __global__ void place_ngrams(const i64* node_C, const ROW* first_C1, i64 C, const u32* word_R,
                                        const float* log10_R, i64 R, const NODE* first_M1, u32* word_G, float* log10_G,
                                        NODE* place_R) {
  __shared__ i64 bounds[2];
  i64 base = first_C1[0];
  for (i64 begin = blockIdx.x * (i64)TILE; begin < R; begin += gridDim.x * (i64)TILE) {
    i64 end = min(begin + TILE, R);
    if (threadIdx.x < 2) bounds[threadIdx.x] = block_of(first_C1, 0, C - 1, base + (threadIdx.x ? end - 1 : begin));
    __syncthreads();
    for (i64 r = begin + threadIdx.x; r < end; r += blockDim.x) {
      i64 c = block_of(first_C1, bounds[0], bounds[1], base + r);
      i64 place = first_M1[node_C[c]] + (base + r - first_C1[c]);
      word_G[place] = word_R[r];
      log10_G[place] = log10_R[r];
      if (place_R) place_R[r] = (NODE)place;
    }
    __syncthreads();
  }
}
