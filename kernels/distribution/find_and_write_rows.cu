// Rows of log10 P(w | history) for all words w, as write_rows.cu, in one kernel for small batches: these wait for
// launches and dependent reads rather than for writes. Other tiles, other lanes for each search, and a second kernel
// that starts before the first ends were slower, or faster for one history alone: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "trie.cuh"
#include "histories.cuh"
#include "row_tiles.cuh"
#define GROUP (32 / (WARPS + 1))  // lanes that search for the start of one tile of a block

// FIND 1 takes the arguments of find_histories: codes_T (T,), positions_H (H,), a trie and its index, backoff_M (M,)
// f32 or null. FIND 0 takes its results: first_HK, end_HK CHILD, backoff_HK f32 (H, K).
// word_G u32, value_G f32 (G,), value_V (V,) f32  ->  out: the rows of every history, as write_rows writes them.
// A block writes WARPS neighbouring tiles of the rows of one history. Grid x counts such blocks; y and z count
// histories. The warps of a block first share the orders above 1, at most 32. Each warp walks to the last k + 1 words
// and searches their children for the starts of the tiles. All blocks of a history repeat these searches, so the kernel
// is for few words and short rows, where waiting between kernels and dependent reads takes most of the time.
extern "C" __global__ void __launch_bounds__(WARPS * 32) find_and_write_rows(
#if FIND
    const CHILD* first_child_M, const u32* samples, const i64* sample_starts, i64 levels, i64 fanout, i64 M,
    const float* backoff_M, const u32* codes_T, const i64* positions_H, i64 sentence_begin, float neutral,
#else
    const CHILD* first_HK, const CHILD* end_HK, const float* backoff_HK,
#endif
    i64 H, i64 K, const u32* word_G, const float* value_G, const float* value_V, i64 V, i64 width, u64 orders,
    i64 multiply, i64 stored, float nothing, out_t* out, i64 stride_H, i64 stride_N) {
  __shared__ float4 tiles[WARPS][TILE / 4];
  __shared__ CHILD starts[32][WARPS + 1];  // of each tile's children, and the end of the last tile's
  __shared__ float backoffs[32];
  u32 lane = lane_id(), warp = threadIdx.x / 32;
  int used = 63 - __clzll(orders);  // orders above the first
  i64 h = (i64)blockIdx.z * gridDim.y + blockIdx.y, first_tile = (i64)blockIdx.x * WARPS;
  i64 start = (first_tile + warp) * TILE;
  if (h >= H) return;
#if FIND
  Walker walker = {{word_G, first_child_M, samples, sample_starts, levels, fanout, M}, codes_T, sentence_begin};
  walker.stand_at(positions_H[h], K);
#endif
  float value[CHUNKS][PER];
  get_words(value_V, start, (int)min((i64)TILE, V - start), value);
  for (int k = warp; k < used; k += WARPS) {
#if FIND
    i64 node = walker.walk(k);
    i64 first = node >= 0 ? first_child_M[node] : 0, end = node >= 0 ? first_child_M[node + 1] : 0;
    if (lane == 0) backoffs[k] = node >= 0 && backoff_M ? backoff_M[node] : neutral;
#else
    i64 first = first_HK[h * K + k], end = end_HK[h * K + k];
    if (lane == 0) backoffs[k] = backoff_HK[h * K + k];
#endif
    u32 group = lane / GROUP, place = lane % GROUP;
    i64 word = (first_tile + group) * TILE, low = 0, high = 0;
    if (group <= WARPS) {
      low = least_from(first, end, word, V);
      high = most_from(first, end, word);
    }
    while (__any_sync(FULL_WARP, low < high)) {
      i64 step = (high - low) / (GROUP + 1) + 1, probe = low + (place + 1) * step - 1;
      u32 below = __ballot_sync(FULL_WARP, probe < high && __ldg(word_G + probe) < (u32)word) >> group * GROUP;
      low += __popc(below & ((1u << GROUP) - 1)) * step;
      high = min(high, low + step - 1);
    }
    if (group <= WARPS && place == 0) starts[k][group] = (CHILD)low;
  }
  __syncthreads();
  if (start >= width) return;
  i64 begin = 0, stop = 0;
  float backoff = 0;
  if (lane < used) {
    backoff = backoffs[lane];
    begin = starts[lane][warp];
    stop = starts[lane][warp + 1];
  }
  const int size = (int)min((i64)TILE, width - start);
  out_t* to = out + h * stride_H + start;
#ifdef MULTIPLY  // as in write_rows.cu
  TileChildren<false>{used, (CHILD)begin, (u32)(stop - begin), backoff, word_G, value_G, (u32)start, (float*)tiles[warp]}
      .merge(value);
  store_tile(to, value, size);
#else
  write_tile(value, (float*)tiles[warp], used, begin, stop, backoff, word_G, value_G, start, size, orders, multiply,
             stored, nothing, to, stride_N);
#endif
}
