// The beams of a search over the outputs of CTC, keys that sort their scores, and the steps that lead to them. Include
// after grid.cuh.
#define THREADS 256
#define WARPS (THREADS / 32)
#define BEAM_BITS 10  // MAX_BEAMS = 2^10; a step is token << BEAM_BITS | beam
#define ENTRY_BITS 12
#define BLANK 1
#define SPACE 2
#define STARTS 4
#define CLOSES 8
#define CLOSED 1  // flags of a beam: its word has ended
#define SCORED 2  // the end of its word has been scored
#define HOT 4     // its word is a hot word
#define LOG10_E 0.4342944819032518
#define UNIT 4503599627370496.0  // 2^52
#define SMALLEST (-40.0)
#define MIN_LOG_PROB (-34.538776394910684f)  // ln 1e-15
#define MAX_LOG_PROB 1e-3f
#define LEADER 0x8000

struct Beam {
  u64 text, part;
  double logit, raw, part_score, end_raw;
  int state, end_state, node, hot, length, last, hot_words, flags;
};

__device__ __forceinline__ u64 ordered(double x) {
  const u64 bits = (u64)__double_as_longlong(__dadd_rn(x, 0.0));
  return bits >> 63 ? ~bits : bits | 1ULL << 63;
}
__device__ __forceinline__ double value_of(u64 key) {
  return __longlong_as_double((i64)(key >> 63 ? key ^ 1ULL << 63 : ~key));
}

// Return how many threads before this one have `mine`, counting each as often as it says; `total` becomes that of all.
__device__ int count_before(int mine, int* of_warps, int& total) {
  int sum = mine;
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    const int lower = __shfl_up_sync(FULL_WARP, sum, d);
    if (lane_id() >= d) sum += lower;
  }
  if (lane_id() == 31) of_warps[threadIdx.x / 32] = sum;
  __syncthreads();
  int before = 0;
  total = 0;
  for (int w = 0; w < WARPS; ++w) {
    if (w < threadIdx.x / 32) before += of_warps[w];
    total += of_warps[w];
  }
  __syncthreads();
  return before + sum - mine;
}
