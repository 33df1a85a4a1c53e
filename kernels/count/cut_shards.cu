// The rows of a table of n-grams in the order of their shards, in a pass for each 8 bits of a shard's number.
// The shard is computed from the key: a column of shards that is sorted with the rows took 35 ms where this takes 10:
// see engine/count/NOTES.md.
#include "grid.cuh"
#include "radix_tiles.cuh"
// Stable distribution of the rows of a table (keys (C, R) u64, counts (R,) i64) to shards, 8 bits of the shard a pass.

#define MAX_SHARDS 1024
#define COPIES 4  // lanes with a frequent shard add to different copies

struct Word {  // where the code of a word is in a key
  int column;
  int spare;  // bits of this column below the code; negative if the code continues in the next one
};

__device__ __forceinline__ u64 code_at(const u64* keys, i64 R, i64 r, Word word, u64 mask) {
  const u64 high = keys[word.column * R + r];
  if (word.spare >= 0) return (high >> word.spare) & mask;
  return ((high << -word.spare) | (keys[(word.column + 1) * R + r] >> (64 + word.spare))) & mask;
}

// The shard of a row is that of its last context word, or that of the word before, if the former is one of the split
// codes. shard_V (V,) u16 by code - 1  ->  digit_R (R,) u8: 8 bits of the shard; rows_S (MAX_SHARDS,) += rows by shard.
extern "C" __global__ void shard_digits(const u64* keys, i64 R, int column, int spare, int column_before,
                                        int spare_before, u64 mask, const u16* shard_V, const u64* split_N,
                                        int num_split, int shift, u8* digit_R, u64* rows_S) {
  __shared__ u32 bins[MAX_SHARDS * COPIES];
  for (int i = threadIdx.x; i < MAX_SHARDS * COPIES; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  GRID_STRIDE_LOOP(r, R) {
    u64 code = code_at(keys, R, r, {column, spare}, mask);
    bool is_split = false;
    for (int n = 0; n < num_split; ++n) is_split |= code == split_N[n];
    if (is_split) code = code_at(keys, R, r, {column_before, spare_before}, mask);
    const u32 shard = shard_V[code - 1];
    digit_R[r] = shard >> shift;
    atomicAdd(&bins[shard * COPIES + threadIdx.x % COPIES], 1u);
  }
  __syncthreads();
  for (int s = threadIdx.x; s < MAX_SHARDS; s += blockDim.x) {
    u64 sum = 0;
    for (int c = 0; c < COPIES; ++c) sum += bins[s * COPIES + c];
    if (sum) atomicAdd(&rows_S[s], sum);
  }
}

// digit_start_D (DIGITS,) u64: the first row of each digit in the output
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) move_rows(
    const u64* keys, const u64* counts, int num_columns, i64 R, const u8* digit_R, const u64* digit_start_D,
    volatile u64* status_TD, u32* next_tile, u64* out_keys, u64* out_counts) {
  extern __shared__ u64 exchange[];  // (TILE,)
  __shared__ TileShared shared;
  const i64 tile = take_tile(shared, next_tile), first = tile * TILE;
  const i64 mine = first + threadIdx.x / 32 * 32 * ITEMS + lane_id();
  const u32 rows = (u32)min((i64)TILE, R - first);

  // Rows past the end get the highest digit, rank last in the last tile, and are not written.
  u32 digit[ITEMS / 4];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u32 d = mine + i * 32 < R ? digit_R[mine + i * 32] : 255;
    digit[i / 4] = i % 4 ? digit[i / 4] | d << (8 * (i % 4)) : d;
  }
  const auto digit_of = [&](int i) -> u32 { return digit[i / 4] >> (8 * (i % 4)) & 255; };
  u32 place[ITEMS / 2];
  rank_rows(shared, digit_of, place);
  find_targets(shared, tile, digit_start_D, status_TD);

  u8* digits_of_tile = (u8*)exchange;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    place[i / 2] += place_before(shared, digit_of(i)) << (i % 2 * 16);
    digits_of_tile[PLACE(i)] = digit_of(i);
  }
  __syncthreads();
  u32 digits[ITEMS / 4];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    const u32 d = digits_of_tile[threadIdx.x + i * THREADS];
    digits[i / 4] = i % 4 ? digits[i / 4] | d << (8 * (i % 4)) : d;
  }
  for (int c = 0; c < num_columns; ++c)
    move_column(shared, keys + c * R, out_keys + c * R, R, mine, rows, place, digits, exchange);
  move_column(shared, counts, out_counts, R, mine, rows, place, digits, exchange);
}
