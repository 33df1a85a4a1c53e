// Rows of log10 P(w | history) for all words w: the value of the longest suffix of the history that w follows, plus the
// backoffs of all longer ones (Katz, 1987).
// Memory reaches its full rate only if writes in flight are close together, so few warps are resident, each with a tile
// in shared memory, and blocks sweep through the rows. Warps with several tiles, larger tiles and bulk stores were
// slower: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "row_tiles.cuh"
// Two kernels: tile_starts finds where the children of each tile of TILE words begin; write_rows writes the rows.
// For few histories or short rows, find_and_write_rows.cu does the work of both, and of find_histories, in one kernel.

// first_HK, end_HK (H, K), word_G (G,)  ->  start_HTK (H, tiles + 1, K): the first child in or after each tile; then
// the end. Grid x counts tiles and orders of one history; grid y strides over histories.
extern "C" __global__ void tile_starts(
    const CHILD* first_HK, const CHILD* end_HK, i64 H, i64 K, const u32* word_G, i64 V, i64 tiles, CHILD* start_HTK) {
  u32 i = blockIdx.x * blockDim.x + threadIdx.x, k = i / (u32)(tiles + 1), t = i % (u32)(tiles + 1);
  if (k >= K) return;
  for (i64 h = blockIdx.y * blockDim.y + threadIdx.y; h < H; h += gridDim.y * blockDim.y) {
    i64 first = first_HK[h * K + k], end = end_HK[h * K + k], word = (i64)t * TILE;
    i64 low = least_from(first, end, word, V), high = most_from(first, end, word);
    while (low < high) {
      i64 middle = (low + high) / 2;
      if (__ldg(word_G + middle) < (u32)word) low = middle + 1; else high = middle;
    }
    start_HTK[(h * (tiles + 1) + t) * K + k] = (CHILD)low;
  }
}

// Prefetch nodes first .. end - 1 of an array by lines of 128 bytes; the whole warp calls it with the same arguments.
// The lines stay in L2 while written rows pass through it, because many histories share children.
__device__ __forceinline__ void prefetch(const void* array_G, i64 first, i64 end) {
  u64 line = ((u64)array_G + 4 * first) / 128 + lane_id(), last = ((u64)array_G + 4 * end + 127) / 128;
  for (; line < last; line += 32) asm volatile("prefetch.global.L2::evict_last [%0];" ::"l"(line * 128));
}

// start_HTK, backoff_HK (H, K), word_G, value_G (G,), value_V (V,)  ->  out: for every history h, one row of V values
// for each order n whose bit n - 1 is set in `orders`. The i-th row of h starts at out[h * stride_H + i * stride_N];
// values V to `width` - 1 of a row are undefined. K <= 32; start_HTK is not read if order 1 is the highest.
// A block of one warp writes one tile of the rows of one history. Grid x counts tiles; y and z count histories.
// Blocks start in order, so blocks in flight write next to each other in few rows; only then does the memory reach its
// full rate. Reads between writes cost far more than their bytes. So the blocks of one group of `together` histories
// prefetch the children of the next group; 0 turns this off.
// With MULTIPLY, one smoothed order alone: its children are merged in one pass, and more warps are resident.
#ifdef MULTIPLY
extern "C" __global__ void __launch_bounds__(32, 32) write_rows(
#else
extern "C" __global__ void __launch_bounds__(32) write_rows(
#endif
    const CHILD* start_HTK, const float* backoff_HK, i64 H, i64 K, const u32* word_G, const float* value_G,
    const float* value_V, i64 V, i64 width, i64 together, u64 orders, i64 multiply, i64 stored, float nothing,
    out_t* out, i64 stride_H, i64 stride_N) {
  __shared__ float4 tile[TILE / 4];
  u32 lane = lane_id();
  int used = 63 - __clzll(orders);  // orders above the first
  i64 h = (i64)blockIdx.z * gridDim.y + blockIdx.y, tiles = gridDim.x, t = blockIdx.x, start = t * TILE;
  if (h >= H) return;
  float value[CHUNKS][PER];
  get_words(value_V, start, (int)min((i64)TILE, V - start), value);
  float backoff = 0;
  i64 begin = 0, stop = 0;
  if (lane < used) {
    i64 range = (h * (tiles + 1) + t) * K + lane;
    backoff = backoff_HK[h * K + lane];
    begin = start_HTK[range];
    stop = start_HTK[range + K];
  }
  if (t < together) {  // blocks from `together` on have nothing to prefetch
    i64 in_group = h % together, asked = in_group * tiles + t;
    i64 h_asked = h - in_group + together + asked, range = h_asked * (tiles + 1) * K;
    if (asked < together && h_asked < H) {
      for (int k = 0; k < used; ++k) {
        prefetch(word_G, start_HTK[range + k], start_HTK[range + tiles * K + k]);
        prefetch(value_G, start_HTK[range + k], start_HTK[range + tiles * K + k]);
      }
    }
  }
  const int size = (int)min((i64)TILE, width - start);
  out_t* to = out + h * stride_H + start;
#ifdef MULTIPLY
  TileChildren<false>{used, (CHILD)begin, (u32)(stop - begin), backoff, word_G, value_G, (u32)start, (float*)tile}
      .merge(value);
  store_tile(to, value, size);
#else
  write_tile(value, (float*)tile, used, begin, stop, backoff, word_G, value_G, start, size, orders, multiply, stored,
             nothing, to, stride_N);
#endif
}
