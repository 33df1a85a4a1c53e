// log10 P(w | history) by backoff (Katz, 1987), for KenLM's probing models (Heafield, "KenLM: Faster and Smaller
// Language Model Queries", 2011, section 3.1), which have a hash of each n-gram in place of its words: order n is one
// read in the table of its order.
#include "grid.cuh"
#include "floats.cuh"

// tables_U (U,) u32, slots_N (N,) i64: see score_by_keys.py. Returns the entry of a key in the table of `slots` slots of
// `stride` numbers, or null.
__device__ const u32* find_key(const u32* table, u64 slots, int stride, u64 key) {
  u64 slot = key % slots;
  while (true) {
    const u32* entry = table + slot * stride;
    u64 found = entry[0] | (u64)entry[1] << 32;
    if (found == key) return entry;
    if (!found) return nullptr;
    slot = slot + 1 < slots ? slot + 1 : 0;
  }
}

// codes_T (T,) u32: word + 1, or 0 for `end`  ->  prob_T (T,) f32 log10, order_T (T,) u8: see score_by_keys.py.
// A thread finds the n-grams that end with a token; the next thread, whose history they are, adds their backoffs. Shared
// memory: N rows of blockDim.x: the words of the longest match, then backoffs of orders 1 to N - 1.
extern "C" __global__ void score_by_keys(const u32* tables_U, const i64* slots_N, i64 N, i64 rest, i64 begin, i64 end,
                                         const u32* codes_T, i64 T, float* prob_T, u8* order_T) {
  extern __shared__ float rows[];
  int threads = blockDim.x, kept = threads - 1, single = 2 + (int)rest;
  float* mine = rows + threadIdx.x;  // mine[n * threads]: of order n
  for (i64 base = blockIdx.x * (i64)kept; base < T; base += gridDim.x * (i64)kept) {
    i64 t = base - 1 + threadIdx.x;
    float prob = 0;
    int order = 0;
    if (t >= 0 && t < T) {
      i64 word = codes_T[t] ? (i64)codes_T[t] - 1 : end;
      if (word >= 0) {
        const u32 *entry = tables_U + single * word, *table = tables_U + single * slots_N[0];
        prob = -fabsf(__uint_as_float(entry[0]));
        order = 1;
        mine[threads] = __uint_as_float(entry[1]);
        bool open = !(entry[0] >> 31);
        u64 key = (u64)word;
        for (int n = 2; open && n <= N; ++n) {
          i64 before = t - (n - 1);  // -1 is before the first sentence
          u32 code = before < 0 ? 0 : codes_T[before];
          i64 first = code ? (i64)code - 1 : begin;
          if (first < 0) break;
          key = key * 8978948897894561157ULL ^ ((u64)first + 1) * 17894857484156487943ULL;
          int stride = n == N ? 3 : 4 + (int)rest;
          entry = find_key(table, (u64)slots_N[n - 1], stride, key);
          if (!entry) break;
          prob = -fabsf(__uint_as_float(entry[2]));
          order = n;
          if (n < N) mine[n * threads] = __uint_as_float(entry[3]);
          open = code && !(entry[2] >> 31);
          table += stride * slots_N[n - 1];
        }
      }
    }
    mine[0] = (float)order;
    __syncthreads();
    if (threadIdx.x > 0 && t < T) {
      if (order) {
        bool starts = t == 0 || !codes_T[t - 1];
        int longest = starts ? begin >= 0 : min((int)mine[-1], (int)N - 1);  // history that has a backoff
        for (int m = order; m <= longest; ++m)
          prob = add(prob, starts ? __uint_as_float(tables_U[single * begin + 1]) : mine[m * threads - 1]);
      }
      prob_T[t] = prob;
      order_T[t] = (u8)order;
    }
    __syncthreads();
  }
}
