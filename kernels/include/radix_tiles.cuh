// Stable distribution of rows by a digit of 8 bits, in one pass over memory (Adinets and Merrill, "Onesweep", 2022).
// A counter hands out tiles in order. A tile ranks its rows in shared memory, finds where its digits start by looking
// back over earlier tiles, and writes its rows grouped by digit. Lane t of a warp has rows t, t + 32, ... of those of
// the warp. Needs THREADS and ITEMS.

#define DIGITS 256
#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / 32)
#define PLACE(i) (place[(i) / 2] >> ((i) % 2 * 16) & 0xffff)

// status_TD[tile][digit]: two flag bits over a 62-bit row count.
#define AGGREGATE (1ULL << 62)
#define PREFIX (2ULL << 62)
#define COUNT_MASK ((1ULL << 62) - 1)

struct TileShared {
  u32 warp_bins[WARPS][DIGITS];
  u64 target_D[DIGITS];  // where this tile's rows of digit d go, minus their place in the tile
  u32 local_D[DIGITS];
  u32 scan_warps[DIGITS / 32];
  u32 tile;
};

// Returns the number of the tile that this block handles.
__device__ __forceinline__ i64 take_tile(TileShared& shared, u32* next_tile) {
  if (threadIdx.x == 0) shared.tile = atomicAdd(next_tile, 1u);
  for (int i = threadIdx.x; i < WARPS * DIGITS; i += THREADS) (&shared.warp_bins[0][0])[i] = 0;
  __syncthreads();
  return shared.tile;
}

// Ranks each row among the warp's rows of the same digit, in row order. digit_of(i)  digit of the thread's row i
// -> place, two 16-bit places per register: registers limit the rows in flight
template <class Digit>
__device__ __forceinline__ void rank_rows(TileShared& shared, Digit digit_of, u32 (&place)[ITEMS / 2]) {
  const u32 warp = threadIdx.x / 32, lane = lane_id();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 digit = digit_of(i), peers = FULL_WARP;
#pragma unroll
    for (int b = 0; b < 8; ++b) {
      u32 vote = __ballot_sync(FULL_WARP, (digit >> b) & 1);
      peers &= (digit >> b) & 1 ? vote : ~vote;
    }
    u32 before = shared.warp_bins[warp][digit];
    __syncwarp();
    if ((peers >> lane) == 1) shared.warp_bins[warp][digit] = before + __popc(peers);
    __syncwarp();
    u32 rank = before + __popc(peers & lanes_below());
    place[i / 2] = i % 2 ? place[i / 2] | rank << 16 : rank;
  }
  __syncthreads();
}

// Thread d owns digit d: sums over warps, publishes to later tiles, scans over digits, looks back. -> target_D, local_D
__device__ __forceinline__ void find_targets(TileShared& shared, i64 tile, const u64* digit_start_D,
                                             volatile u64* status_TD) {
  const u32 tid = threadIdx.x, warp = tid / 32, lane = lane_id();
  u32 total = 0;
  if (tid < DIGITS) {
    for (int w = 0; w < WARPS; ++w) {
      u32 n = shared.warp_bins[w][tid];
      shared.warp_bins[w][tid] = total;
      total += n;
    }
    status_TD[tile * DIGITS + tid] = (tile ? AGGREGATE : PREFIX) | total;
    u32 scan = total;
    for (int d = 1; d < 32; d *= 2) {
      u32 up = __shfl_up_sync(FULL_WARP, scan, d);
      if (lane >= d) scan += up;
    }
    if (lane == 31) shared.scan_warps[warp] = scan;
    shared.local_D[tid] = scan - total;
  }
  __syncthreads();
  if (tid < DIGITS) {
    u32 start = shared.local_D[tid];
    for (int w = 0; w < warp; ++w) start += shared.scan_warps[w];
    shared.local_D[tid] = start;
    u64 before = 0;
    for (i64 t = tile - 1; t >= 0; --t) {
      u64 status;
      do status = status_TD[t * DIGITS + tid]; while (!(status >> 62));
      before += status & COUNT_MASK;
      if (status & PREFIX) break;
    }
    if (tile) status_TD[tile * DIGITS + tid] = PREFIX | (before + total);
    shared.target_D[tid] = digit_start_D[tid] + before - start;
  }
  __syncthreads();
}

// The place of a row in the sorted tile, minus its rank among the rows of its warp and digit.
__device__ __forceinline__ u32 place_before(const TileShared& shared, u32 digit) {
  return shared.local_D[digit] + shared.warp_bins[threadIdx.x / 32][digit];
}

// Writes a column of the tile. Row p of the sorted tile goes to target_D[its digit] + p; `digits` holds those of the
// thread's rows tid, tid + THREADS, ... of the sorted tile, four per register.
__device__ __forceinline__ void move_column(const TileShared& shared, const u64* in, u64* out, i64 R, i64 mine,
                                            u32 rows, const u32 (&place)[ITEMS / 2], const u32 (&digits)[ITEMS / 4],
                                            u64* exchange) {
  u64 value[ITEMS];
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) value[i] = mine + i * 32 < R ? in[mine + i * 32] : 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) exchange[PLACE(i)] = value[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < ITEMS; ++i) {
    u32 p = threadIdx.x + i * THREADS;
    if (p < rows) out[shared.target_D[digits[i / 4] >> (8 * (i % 4)) & 255] + p] = exchange[p];
  }
}
