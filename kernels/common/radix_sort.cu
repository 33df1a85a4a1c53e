#include "common.cuh"
// Stable least-significant-digit radix sort of rows stored as columns (C, R) uint64, one pass over
// memory per 8-bit digit (Adinets and Merrill, "Onesweep", 2022). A counter hands out tiles in order.
// A tile ranks its rows in shared memory, finds where its digits start by looking back over earlier
// tiles, and writes its rows grouped by digit.

#define DIGITS 256
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / 32)
#define PLACE(i) (place[(i) / 2] >> ((i) % 2 * 16) & 0xffff)
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

// status_TD[tile][digit]: two flag bits over a 62-bit row count.
#define AGGREGATE (1ULL << 62)
#define PREFIX (2ULL << 62)
#define COUNT_MASK ((1ULL << 62) - 1)

extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) radix_pass(
    const u64* in, u64* out, i64 R, int num_columns, int key_column, int shift, const u64* digit_start_D,
    volatile u64* status_TD, u32* next_tile) {
  extern __shared__ u64 exchange[];  // (TILE,)
  __shared__ u32 warp_bins[WARPS][DIGITS];
  __shared__ u64 target_D[DIGITS];  // where this tile's rows of digit d go, minus their place in the tile
  __shared__ u32 local_D[DIGITS];
  __shared__ u32 scan_warps[DIGITS / 32];
  __shared__ u32 tile_shared;

  const u32 tid = threadIdx.x, warp = tid / 32, lane = lane_id();
  if (tid == 0) tile_shared = atomicAdd(next_tile, 1u);
  for (int i = tid; i < WARPS * DIGITS; i += THREADS) (&warp_bins[0][0])[i] = 0;
  __syncthreads();
  const i64 tile = tile_shared, first = tile * TILE;
  const i64 mine = first + warp * 32 * ITEMS + lane;
  const u32 rows = (u32)min((i64)TILE, R - first);

  // Rows past the end get the highest digit, rank last in the last tile, and are not written.
  u64 key[ITEMS];
  const u64* keys = in + key_column * R;
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) key[i] = mine + i * 32 < R ? keys[mine + i * 32] : ~0ULL;

  // Rank each row among the warp's rows of the same digit, in row order.
  u32 place[ITEMS / 2];  // two 16-bit places per register: registers limit the rows in flight
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 digit = (key[i] >> shift) & 255, peers = FULL_WARP;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      u32 vote = __ballot_sync(FULL_WARP, (digit >> b) & 1);
      peers &= (digit >> b) & 1 ? vote : ~vote;
    }
    u32 before = warp_bins[warp][digit];
    __syncwarp();
    if ((peers >> lane) == 1) warp_bins[warp][digit] = before + __popc(peers);
    __syncwarp();
    u32 rank = before + __popc(peers & lanes_below());
    place[i / 2] = i % 2 ? place[i / 2] | rank << 16 : rank;
  }
  __syncthreads();

  // Thread d owns digit d: sum over warps, publish to later tiles, scan over digits, look back.
  u32 total = 0;
  if (tid < DIGITS) {
    for (int w = 0; w < WARPS; ++w) {
      u32 n = warp_bins[w][tid];
      warp_bins[w][tid] = total;
      total += n;
    }
    status_TD[tile * DIGITS + tid] = (tile ? AGGREGATE : PREFIX) | total;
    u32 scan = total;
    for (int d = 1; d < 32; d *= 2) {
      u32 up = __shfl_up_sync(FULL_WARP, scan, d);
      if (lane >= d) scan += up;
    }
    if (lane == 31) scan_warps[warp] = scan;
    local_D[tid] = scan - total;
  }
  __syncthreads();
  if (tid < DIGITS) {
    u32 start = local_D[tid];
    for (int w = 0; w < warp; ++w) start += scan_warps[w];
    local_D[tid] = start;
    u64 before = 0;
    for (i64 t = tile - 1; t >= 0; --t) {
      u64 status;
      do status = status_TD[t * DIGITS + tid]; while (!(status >> 62));
      before += status & COUNT_MASK;
      if (status & PREFIX) break;
    }
    if (tile) status_TD[tile * DIGITS + tid] = PREFIX | (before + total);
    target_D[tid] = digit_start_D[tid] + before - start;
  }
  __syncthreads();

#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 digit = (key[i] >> shift) & 255;
    place[i / 2] += (local_D[digit] + warp_bins[warp][digit]) << (i % 2 * 16);
    exchange[PLACE(i)] = key[i];
  }
  __syncthreads();
  // Row p of the sorted tile goes to target_D[its digit] + p, in every column; digits are kept packed.
  u32 digits[ITEMS / 4];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 p = tid + i * THREADS;
    u64 k = exchange[p];
    u32 digit = (k >> shift) & 255;
    digits[i / 4] = i % 4 ? digits[i / 4] | digit << (8 * (i % 4)) : digit;
    if (p < rows) out[key_column * R + target_D[digit] + p] = k;
  }
  for (int c = 0; c < num_columns; ++c) {
    if (c == key_column) continue;
    u64 value[ITEMS];
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) value[i] = mine + i * 32 < R ? in[c * R + mine + i * 32] : 0;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) exchange[PLACE(i)] = value[i];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < ITEMS; ++i) {
      u32 p = tid + i * THREADS;
      if (p < rows) out[c * R + target_D[digits[i / 4] >> (8 * (i % 4)) & 255] + p] = exchange[p];
    }
  }
}
