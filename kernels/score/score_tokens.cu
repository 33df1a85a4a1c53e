// log10 P(w | history) by backoff (Katz, "Estimation of Probabilities from Sparse Data for the Language Model Component
// of a Speech Recognizer", 1987), with the longest match first:
//   if w follows the history in the model: its stored value; else backoff(history) + log10 P(w | shorter history).
// The float32 sum has KenLM's order, so it has its bits. A walk forward serves N tokens: its n-gram of n words is one
// of the matches of the n-th token.
#include "grid.cuh"
#include "floats.cuh"
#include "trie.cuh"

// Return the log10 probability (kind 0) or backoff (kind 1) of a node of order n, decoded if the trie is quantised.
__device__ __forceinline__ float value_of(const VALUE* values, const float* words_V2, const float* centers, i64 node,
                                          i64 n, i64 kind) {
  if (sizeof(VALUE) == sizeof(float)) return values[node];
  if (n == 1) return words_V2[2 * node + kind];
  i64 codes = 1LL << 8 * sizeof(VALUE);
  return centers[(2 * (n - 2) + kind) * codes + (i64)values[node]];
}

// codes_T (T,) u32: word + 1, or 0 for `end`  ->  prob_T (T,) f32 log10, order_T (T,) u8: see score_tokens.py.
// A thread walks forward from one position, or from `begin` at the end of a sentence. Then each token collects the
// nodes that walks from earlier positions found. Shared memory: N rows of blockDim.x nodes, -1 after the end of a walk.
// Needs N <= blockDim.x.
extern "C" __global__ void score_tokens(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                        const i64* sample_starts, i64 levels, i64 fanout, i64 M, const VALUE* prob_G,
                                        const VALUE* backoff_M, const float* words_V2, const float* centers, i64 N,
                                        i64 begin, i64 end, const u32* codes_T, i64 T, float* prob_T, u8* order_T) {
  extern __shared__ i64 nodes[];
  Trie trie = {word_G, first_child_M, samples, sample_starts, levels, fanout, M};
  int threads = blockDim.x, ahead = (int)N - 1, kept = threads - ahead;
  for (i64 base = blockIdx.x * (i64)kept; base < T; base += gridDim.x * (i64)kept) {
    i64 start = base - ahead + threadIdx.x, node = -1;
    bool on = start >= -1;  // -1 is before the first sentence
    for (i64 k = 0; k < N; ++k) {
      i64 found = -1;
      if (on && start + k < T) {
        u32 code = start + k < 0 ? 0 : codes_T[start + k];
        i64 word = code ? (i64)code - 1 : k ? end : begin;
        if (word >= 0) found = k ? find_child(trie, node, (u32)word) : word;
        on = found >= 0 && (code || k == 0);
      }
      nodes[k * threads + threadIdx.x] = node = found;
    }
    __syncthreads();
    i64 t = base + threadIdx.x;
    if ((int)threadIdx.x < kept && t < T) {
      const i64* mine = nodes + threadIdx.x + ahead;  // mine[k * (threads - 1)]: the (k + 1)-gram that ends here
      u32 code = codes_T[t];
      i64 word = code ? (i64)code - 1 : end;
      float prob = 0;
      int order = 0;
      if (word >= 0) {
        order = 1;
        while (order < N && mine[order * (threads - 1)] >= 0) ++order;
        i64 longest_match = order == 1 ? word : mine[(order - 1) * (threads - 1)];
        prob = value_of(prob_G, words_V2, centers, longest_match, order, 0);
        int longest = t > 0 && codes_T[t - 1] ? (int)N - 1 : 1;
        for (int m = order; m < N && m <= longest; ++m) {  // histories of m words, which end one word before
          i64 history = mine[(m - 1) * (threads - 1) - 1];
          if (history < 0) break;
          prob = add(prob, value_of(backoff_M, words_V2, centers, history, m, 1));
        }
      }
      prob_T[t] = prob;
      order_T[t] = (u8)order;
    }
    __syncthreads();
  }
}
