#include "common.cuh"
#include "trie.cuh"

// codes_T (T,) u32, word + 1, 0 between sentences  ->  prob_T (T,) f32 log10, order_T (T,) u8: see score_tokens.py.
// A thread walks forward from one position; tokens then take what the walks of the positions before them have met.
// Shared memory: N rows of blockDim.x nodes, -1 where a walk has ended. Needs N <= blockDim.x.
extern "C" __global__ void score_tokens(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                        const i64* sample_starts, i64 levels, i64 fanout, i64 M, const float* prob_G,
                                        const float* backoff_M, i64 N, const u32* codes_T, i64 T, float* prob_T,
                                        u8* order_T) {
  extern __shared__ i64 nodes[];
  Trie trie = {word_G, first_child_M, samples, sample_starts, levels, fanout, M};
  int threads = blockDim.x, ahead = (int)N - 1, kept = threads - ahead;
  for (i64 base = blockIdx.x * (i64)kept; base < T; base += gridDim.x * (i64)kept) {
    i64 start = base - ahead + threadIdx.x, node = 0;
    for (i64 k = 0; k < N; ++k) {
      u32 code = start >= 0 && start + k < T ? codes_T[start + k] : 0;
      if (node >= 0) node = !code ? -1 : k ? find_child(trie, node, code - 1) : (i64)code - 1;
      nodes[k * threads + threadIdx.x] = node;
    }
    __syncthreads();
    i64 t = base + threadIdx.x;
    if ((int)threadIdx.x < kept && t < T) {
      const i64* mine = nodes + threadIdx.x + ahead;  // mine[k * threads - k]: the n-gram of k + 1 words that ends here
      float prob = 0;
      int order = 0;
      while (order < N && mine[order * (threads - 1)] >= 0) ++order;
      if (order) {
        prob = prob_G[mine[(order - 1) * (threads - 1)]];
        for (int m = order; m < N; ++m) {  // histories of m words, which end one word before
          i64 history = mine[(m - 1) * (threads - 1) - 1];
          if (history < 0) break;
          prob += backoff_M[history];
        }
      }
      prob_T[t] = prob;
      order_T[t] = (u8)order;
    }
    __syncthreads();
  }
}
