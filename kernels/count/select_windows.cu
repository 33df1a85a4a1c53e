// The windows of some shards, packed with the last context word first, then the predicted word, then the context
// backwards: all n-grams that end at a position are prefixes of one key, so one sort serves all orders, and the suffix
// of an n-gram is its parent. A tile counts its windows, a sum over tiles gives the first row of each, and a second
// pass writes the keys in the order of the text. Needs THREADS and ITEMS.
#include "grid.cuh"

#define TILE (THREADS * (i64)ITEMS)
#define WARPS (THREADS / 32)

struct Text {
  const u32* tokens_T;
  const u16* shard_T;
  const u32* codes_N;  // of split words whose bigrams belong to the shards
  int num_codes, first_shard, last_shard;
};

// Return how many words of the window that ends at t >= 1 are selected: 0, 2 or all (3).
__device__ __forceinline__ int words_at(const Text& text, i64 t) {
  const int shard = text.shard_T[t];
  if (text.first_shard <= shard && shard < text.last_shard) return 3;
  for (int n = 0; n < text.num_codes; ++n) {
    if (text.tokens_T[t - 1] == text.codes_N[n] && text.tokens_T[t]) return 2;
  }
  return 0;
}

// tokens_T (T,), windows that end from `first` to `last` - 1  ->  rows_W (tiles,) i64: windows of each tile.
extern "C" __global__ void __launch_bounds__(THREADS) count_windows(
    const u32* tokens_T, const u16* shard_T, i64 first, i64 last, int first_shard, int last_shard, const u32* codes_N,
    int num_codes, i64* rows_W) {
  __shared__ int rows;
  const Text text = {tokens_T, shard_T, codes_N, num_codes, first_shard, last_shard};
  if (threadIdx.x == 0) rows = 0;
  __syncthreads();
  int mine = 0;
  const i64 begin = first + blockIdx.x * TILE;
  for (int i = 0; i < ITEMS; ++i) {
    const i64 t = begin + i * THREADS + threadIdx.x;
    mine += t < last && words_at(text, t);
  }
  mine = __reduce_add_sync(FULL_WARP, mine);
  if (lane_id() == 0) atomicAdd(&rows, mine);
  __syncthreads();
  if (threadIdx.x == 0) rows_W[blockIdx.x] = rows;
}

// starts_W (tiles,): the first row of each tile  ->  columns (num_columns, R).
extern "C" __global__ void __launch_bounds__(THREADS) select_windows(
    const u32* tokens_T, const u16* shard_T, i64 first, i64 last, int first_shard, int last_shard, const u32* codes_N,
    int num_codes, const i64* starts_W, int order, int bits, int num_columns, i64 R, u64* columns) {
  __shared__ int rows_of_warp[ITEMS][WARPS];
  const Text text = {tokens_T, shard_T, codes_N, num_codes, first_shard, last_shard};
  const i64 begin = first + blockIdx.x * TILE;
  const int warp = threadIdx.x / 32;
  u32 full = 0, some = 0;  // bit i: whether all words, or any, of the window of item i are selected
  for (int i = 0; i < ITEMS; ++i) {
    const i64 t = begin + i * THREADS + threadIdx.x;
    const int words = t < last ? words_at(text, t) : 0;
    full |= (u32)(words == 3) << i;
    some |= (u32)(words > 0) << i;
    const u32 lanes = __ballot_sync(FULL_WARP, words > 0);
    if (lane_id() == 0) rows_of_warp[i][warp] = __popc(lanes);
  }
  __syncthreads();
  i64 row = starts_W[blockIdx.x];
  for (int i = 0; i < ITEMS; ++i) {
    const u32 lanes = __ballot_sync(FULL_WARP, some >> i & 1);
    i64 r = row + __popc(lanes & lanes_below());
    for (int w = 0; w < WARPS; ++w) {
      if (w < warp) r += rows_of_warp[i][w];
      row += rows_of_warp[i][w];
    }
    if (!(some >> i & 1)) continue;
    const i64 t = begin + i * THREADS + threadIdx.x;
    const int most = full >> i & 1 ? order : 2;
    u64 column = 0;
    int used = 0, c = 0;  // bits filled in column c
    for (int n = 0; n < most; ++n) {
      const i64 at = n == 0 ? t - 1 : n == 1 ? t : t - n;
      const u64 code = at >= 0 ? tokens_T[at] : 0;
      if (code == 0) break;
      const int shift = 64 - used - bits;
      if (shift > 0) {
        column |= code << shift;
        used += bits;
      } else {
        columns[c++ * R + r] = column | (code >> -shift);
        used = -shift;
        column = used ? code << (64 - used) : 0;
      }
    }
    if (c < num_columns) columns[c++ * R + r] = column;
    for (; c < num_columns; ++c) columns[c * R + r] = 0;
  }
}
