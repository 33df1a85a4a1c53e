// Sort rows by digits of 8 bits, the lowest first (Adinets and Merrill, "Onesweep: A Faster Least Significant Digit
// Radix Sort for GPUs", 2022): the histograms of all digits in one pass, then a read and a write of the rows for each
// digit.
#include "grid.cuh"
#include "radix_tiles.cuh"
// Stable least-significant-digit radix sort of rows stored as columns (C, R) uint64, one pass over memory per 8-bit digit.

#define COPIES 4

// histogram_PD[p][d] += rows of `column` whose digit p is d; digit p covers 8 bits from first_bit + 8p.
extern "C" __global__ void digit_histograms(const u64* column, i64 R, int first_bit, int num_digits,
                                            u64* histogram_PD) {
  extern __shared__ u32 bins[];  // (num_digits, DIGITS, COPIES): lanes with a frequent digit add to different copies
  for (int i = threadIdx.x; i < num_digits * DIGITS * COPIES; i += blockDim.x) bins[i] = 0;
  __syncthreads();
  u32 copy = threadIdx.x % COPIES;
  GRID_STRIDE_LOOP(r, R) {
    u64 key = column[r] >> first_bit;
    for (int p = 0; p < num_digits; ++p, key >>= 8) atomicAdd(&bins[(p * DIGITS + (key & 255)) * COPIES + copy], 1u);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < num_digits * DIGITS; i += blockDim.x) {
    u64 sum = 0;
    for (int c = 0; c < COPIES; ++c) sum += bins[i * COPIES + c];
    if (sum) atomicAdd(&histogram_PD[i], sum);
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) radix_pass(
    const u64* in, u64* out, i64 R, int num_columns, int key_column, int shift, const u64* digit_start_D,
    volatile u64* status_TD, u32* next_tile) {
  extern __shared__ u64 exchange[];  // (TILE,)
  __shared__ TileShared shared;
  const i64 tile = take_tile(shared, next_tile), first = tile * TILE;
  const i64 mine = first + threadIdx.x / 32 * 32 * ITEMS + lane_id();
  const u32 rows = (u32)min((i64)TILE, R - first);

  // Rows past the end get the highest digit, rank last in the last tile, and are not written.
  u64 key[ITEMS];
  const u64* keys = in + key_column * R;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) key[i] = mine + i * 32 < R ? keys[mine + i * 32] : ~0ULL;
  const auto digit_of = [&](int i) -> u32 { return (key[i] >> shift) & 255; };
  u32 place[ITEMS / 2];
  rank_rows(shared, digit_of, place);
  find_targets(shared, tile, digit_start_D, status_TD);

#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    place[i / 2] += place_before(shared, digit_of(i)) << (i % 2 * 16);
    exchange[PLACE(i)] = key[i];
  }
  __syncthreads();
  u32 digits[ITEMS / 4];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 p = threadIdx.x + i * THREADS;
    u64 k = exchange[p];
    u32 digit = (k >> shift) & 255;
    digits[i / 4] = i % 4 ? digits[i / 4] | digit << (8 * (i % 4)) : digit;
    if (p < rows) out[key_column * R + shared.target_D[digit] + p] = k;
  }
  for (int c = 0; c < num_columns; ++c)
    if (c != key_column) move_column(shared, in + c * R, out + c * R, R, mine, rows, place, digits, exchange);
}
