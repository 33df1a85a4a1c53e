#include "common.cuh"
#include "edges.cuh"
#define NONE 1.0f  // no log10 probability

// codes_T (T,) u32, word + 1, 0 between sentences  ->  prob_T (T,) f32 log10, order_T (T,) u8: see score_by_edges.py.
// A thread walks forward from one position; tokens then take what the walks of the positions before them have met.
// Shared memory: N rows of blockDim.x (probability, backoff), NONE where a walk has ended. Needs N <= blockDim.x.
extern "C" __global__ void score_by_edges(const uint4* slots_E, const float2* words_V2, i64 buckets, i64 word_bits,
                                          i64 key_bits, i64 check_bits, i64 N, const u32* codes_T, i64 T,
                                          float* prob_T, u8* order_T) {
  extern __shared__ float2 met[];
  Edges edges = {slots_E, buckets, word_bits, key_bits, check_bits};
  int threads = blockDim.x, ahead = (int)N - 1, kept = threads - ahead;
  for (i64 base = blockIdx.x * (i64)kept; base < T; base += gridDim.x * (i64)kept) {
    i64 start = base - ahead + threadIdx.x;
    u32 node = 0;
    bool on = true;
    for (i64 k = 0; k < N; ++k) {
      u32 code = on && start >= 0 && start + k < T ? codes_T[start + k] : 0;
      float2 values = {NONE, 0};
      on = code != 0;
      if (on && k == 0) {
        node = code - 1;
        values = words_V2[node];
      } else if (on) {
        uint4 edge = find_edge(edges, node, code - 1);
        node = edge.x;
        on = node != 0;
        if (on) values = {__uint_as_float(edge.z), __uint_as_float(edge.w)};
      }
      met[k * threads + threadIdx.x] = values;
    }
    __syncthreads();
    i64 t = base + threadIdx.x;
    if ((int)threadIdx.x < kept && t < T) {
      const float2* mine = met + threadIdx.x + ahead;  // mine[k * (threads - 1)]: the k + 1 words that end here
      float prob = 0;
      int order = 0;
      while (order < N && mine[order * (threads - 1)].x != NONE) prob = mine[order++ * (threads - 1)].x;
      for (int m = order; order && m < N; ++m) {  // histories of m words, which end one word before
        float2 history = mine[(m - 1) * (threads - 1) - 1];
        if (history.x == NONE) break;
        prob += history.y;
      }
      prob_T[t] = prob;
      order_T[t] = (u8)order;
    }
    __syncthreads();
  }
}
