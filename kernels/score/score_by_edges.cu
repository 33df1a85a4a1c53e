// log10 P(w | history) by backoff (Katz, 1987): the probability of the longest n-gram of the model that ends with w,
// plus the backoffs of the longer histories. The float32 sum has KenLM's order, so it has its bits.
// As score_tokens.cu, with a hash table of edges (child by parent and word) in place of a search among children, so
// most n-grams take one read.
#include "grid.cuh"
#include "floats.cuh"
#include "edges.cuh"
#include "child_filters.cuh"
#define NONE 1.0f  // no log10 probability is positive

// codes_T (T,) u32: word + 1, or 0 for `end`  ->  prob_T (T,) f32 log10, order_T (T,) u8: see score_by_edges.py.
// A thread walks forward from one position, or from `begin` at the end of a sentence. Then each token collects the
// values that walks from earlier positions found. Shared memory: N rows of blockDim.x (probability, backoff), NONE
// after the end of a walk. Needs N <= blockDim.x.
extern "C" __global__ void score_by_edges(const ulonglong2* slots_E, const ulonglong2* words_V, i64 buckets,
                                          i64 word_bits, i64 key_bits, i64 node_bits, i64 check_bits, i64 filter_bits,
                                          i64 N, i64 begin, i64 end, const u32* codes_T, i64 T, float* prob_T,
                                          u8* order_T) {
  extern __shared__ float2 met[];
  Edges edges = {slots_E, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits};
  int threads = blockDim.x, ahead = (int)N - 1, kept = threads - ahead;
  for (i64 base = blockIdx.x * (i64)kept; base < T; base += gridDim.x * (i64)kept) {
    i64 start = base - ahead + threadIdx.x;
    u64 node = 0, filter = 0;  // of the walk's last n-gram; filter of its children
    bool on = start >= -1;  // -1 is before the first sentence
    for (i64 k = 0; k < N; ++k) {
      float2 values = {NONE, 0};
      on = on && start + k < T;
      if (on) {
        u32 code = start + k < 0 ? 0 : codes_T[start + k];
        i64 word = code ? (i64)code - 1 : k ? end : begin;
        on = word >= 0;
        if (on && k == 0) {
          ulonglong2 slot = words_V[word];
          node = word;
          filter = slot.x;
          values = edge_values(slot);
        } else if (on) {
          on = filter >> filter_bit((u32)word, k == 1 ? 64 : edges.filter_bits) & 1;
          if (on) {
            ulonglong2 slot = find_edge(edges, node, (u32)word);
            node = slot.x & ((1ULL << edges.node_bits) - 1);
            filter = slot.x >> edges.node_bits;
            on = slot.x != 0;
            if (on) values = edge_values(slot);
          }
        }
        on = on && (code || k == 0);
      }
      met[k * threads + threadIdx.x] = values;
    }
    __syncthreads();
    i64 t = base + threadIdx.x;
    if ((int)threadIdx.x < kept && t < T) {
      // The sum of score_tokens.cu, whose probabilities and backoffs are in the arrays of the trie, not in `met`.
      const float2* mine = met + threadIdx.x + ahead;  // mine[k * (threads - 1)]: the k + 1 words that end here
      u32 code = codes_T[t];
      float prob = 0;
      int order = 0;
      if (code || end >= 0) {
        prob = code ? mine[0].x : edge_values(words_V[end]).x;
        order = 1;
        while (order < N && mine[order * (threads - 1)].x != NONE) prob = mine[order++ * (threads - 1)].x;
        int longest = t > 0 && codes_T[t - 1] ? (int)N - 1 : 1;
        for (int m = order; m < N && m <= longest; ++m) {  // histories of m words, which end one word before
          float2 history = mine[(m - 1) * (threads - 1) - 1];
          if (history.x == NONE) break;
          prob = add(prob, history.y);
        }
      }
      prob_T[t] = prob;
      order_T[t] = (u8)order;
    }
    __syncthreads();
  }
}
