// Sums of the log10 probabilities of sentences, one token after the other in float32 as in KenLM, so a lane has a
// sentence.
// Copies by cp.async, tiles of 256 to 1,024 tokens and unrolled loads take 30 to 48 us for 9 M tokens: see
// engine/score/NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
// codes_T (T,) u32, prob_T (T,) f32, ends_S (S,) i64  ->  total_S (S,) f32, oovs_S (S,) i32, oov_total_S (S,) f64: see
// sum_sentences.py. A warp takes 32 neighbouring sentences. All lanes read a tile of tokens together; then each lane
// sums its own sentence in token order.

#define WARPS 4
#define TILE 512
#define UNKNOWN 1

extern "C" __global__ void sum_sentences(const u32* codes_T, const float* prob_T, const i64* ends_S, i64 S,
                                         float* total_S, int* oovs_S, double* oov_total_S) {
  __shared__ u32 codes_in_tile[WARPS][TILE];
  __shared__ float prob_in_tile[WARPS][TILE];
  u32* codes = codes_in_tile[threadIdx.x / 32];
  float* probs = prob_in_tile[threadIdx.x / 32];
  i64 warps = (i64)gridDim.x * WARPS;
  for (i64 w = blockIdx.x * (i64)WARPS + threadIdx.x / 32; w * 32 < S; w += warps) {
    i64 s = w * 32 + lane_id();
    i64 start = s == 0 ? 0 : ends_S[min(s, S) - 1], end = ends_S[min(s, S - 1)];
    i64 from = __shfl_sync(FULL_WARP, start, 0), to = __shfl_sync(FULL_WARP, end, 31);
    float total = 0;
    int oovs = 0;
    double oov_total = 0;
    for (i64 base = from; base < to; base += TILE) {
      int tokens = (int)min((i64)TILE, to - base);
      for (int i = lane_id(); i < tokens; i += 32) {
        codes[i] = codes_T[base + i];
        probs[i] = prob_T[base + i];
      }
      __syncwarp();
      int last = (int)min((i64)tokens, max(end - base, 0LL));
      for (int i = (int)min((i64)TILE, max(start - base, 0LL)); i < last; ++i) {
        total = add(total, probs[i]);
        if (codes[i] == UNKNOWN) {
          ++oovs;
          oov_total += to_double(probs[i]);
        }
      }
      __syncwarp();
    }
    if (s < S) {
      total_S[s] = total;
      oovs_S[s] = oovs;
      oov_total_S[s] = oov_total;
    }
  }
}
