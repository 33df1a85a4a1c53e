// The windows of some shards, packed with the last context word first, then the predicted word, then the context
// backwards: all n-grams that end at a position are prefixes of one key, so one sort serves all orders, and the suffix
// of an n-gram is its parent. A tile counts its windows of each shard, a sum over shards and tiles gives the first row
// of each, and a second pass writes the keys there, in any order: they are sorted next. Needs THREADS and ITEMS.
#include "grid.cuh"

#define TILE (THREADS * (i64)ITEMS)
#define MAX_SELECTED 1024  // as in select_windows.py
#define SPLIT 0x8000       // as in select_windows.py

struct Text {
  const u32* tokens_T;
  const u16* shard_V;
  int first_shard, num_shards;
};

struct Shards {
  int whole, bigram;  // among the selected shards: of the window, and of its bigram if that needs a row; or -1
};

__device__ __forceinline__ int selected(const Text& text, int shard) {
  shard -= text.first_shard;
  return 0 <= shard && shard < text.num_shards ? shard : -1;
}

// For the window that ends at t >= 1.
__device__ __forceinline__ Shards shards_at(const Text& text, i64 t) {
  const u32 context = text.tokens_T[t - 1];
  if (!context || !text.tokens_T[t]) return {-1, -1};
  const int found = __ldg(text.shard_V + context - 1);
  if (!(found & SPLIT)) return {selected(text, found), -1};
  const u32 before = t >= 2 ? text.tokens_T[t - 2] : 0;
  const int whole = before ? selected(text, __ldg(text.shard_V + before - 1) & ~SPLIT) : -1;
  const int shard = selected(text, found & ~SPLIT);
  return {whole, whole == shard ? -1 : shard};
}

__device__ __forceinline__ void pack(const u32* tokens_T, i64 t, int words, int bits, int num_columns, i64 R, i64 r,
                                     u64* columns) {
  u64 column = 0;
  int used = 0, c = 0;  // bits filled in column c
  for (int n = 0; n < words; ++n) {
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

// tokens_T (T,), windows that end from `first` to `last` - 1  ->  rows_SW (num_shards, tiles): windows of each tile.
extern "C" __global__ void __launch_bounds__(THREADS) count_windows(
    const u32* tokens_T, const u16* shard_V, i64 first, i64 last, int first_shard, int num_shards, i64* rows_SW) {
  __shared__ int rows_S[MAX_SELECTED];
  const Text text = {tokens_T, shard_V, first_shard, num_shards};
  for (int s = threadIdx.x; s < num_shards; s += THREADS) rows_S[s] = 0;
  __syncthreads();
  const i64 begin = first + blockIdx.x * TILE;
  for (int i = 0; i < ITEMS; ++i) {
    const i64 t = begin + i * THREADS + threadIdx.x;
    if (t >= last) break;
    const Shards found = shards_at(text, t);
    if (found.whole >= 0) atomicAdd(&rows_S[found.whole], 1);
    if (found.bigram >= 0) atomicAdd(&rows_S[found.bigram], 1);
  }
  __syncthreads();
  for (int s = threadIdx.x; s < num_shards; s += THREADS) rows_SW[s * (i64)gridDim.x + blockIdx.x] = rows_S[s];
}

// starts_SW (num_shards, tiles): the first row of each  ->  columns (num_columns, R).
extern "C" __global__ void __launch_bounds__(THREADS) select_windows(
    const u32* tokens_T, const u16* shard_V, i64 first, i64 last, int first_shard, int num_shards,
    const i64* starts_SW, int order, int bits, int num_columns, i64 R, u64* columns) {
  __shared__ i64 next_S[MAX_SELECTED];
  const Text text = {tokens_T, shard_V, first_shard, num_shards};
  for (int s = threadIdx.x; s < num_shards; s += THREADS) next_S[s] = starts_SW[s * (i64)gridDim.x + blockIdx.x];
  __syncthreads();
  const i64 begin = first + blockIdx.x * TILE;
  for (int i = 0; i < ITEMS; ++i) {
    const i64 t = begin + i * THREADS + threadIdx.x;
    if (t >= last) break;
    const Shards found = shards_at(text, t);
    if (found.whole >= 0) {
      pack(tokens_T, t, order, bits, num_columns, R, (i64)atomicAdd((u64*)&next_S[found.whole], 1ull), columns);
    }
    if (found.bigram >= 0) {
      pack(tokens_T, t, 2, bits, num_columns, R, (i64)atomicAdd((u64*)&next_S[found.bigram], 1ull), columns);
    }
  }
}
