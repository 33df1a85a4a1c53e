#include "grid.cuh"
// Merge two sorted tables A and B segment by segment.
//   keys_a (C, G_a), keys_b (C, G_b) u64, column c of row r at keys[c * stride + r]; counts_a, counts_b (G,) i64
//   ->  keys (C, G), counts (G,) with G = G_a + G_b - keys that a segment has in both tables.
// Row i of a segment of A and row j of B, counted from the segment's first row, go to
//   out(i) = i + |{j: B[j] < A[i]}| - |{j: B[j] < A[i], B[j] in A}|, with B's count added where B has the key,
//   out(j) = j + |{i: A[i] < B[j]}| - |{i: A[i] < B[j], A[i] in B}|, for the keys that A lacks.
// A tile is a segment of at most TILE merged rows. A counter hands out tiles in order. A tile merges its
// rows in shared memory and finds where to write by looking back over the tiles before it (Merrill and
// Garland, "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016), so each row is read once
// and written once.

#define TILE (THREADS * ITEMS)
#define WARPS (THREADS / 32)

// Return < 0, 0 or > 0 if row a sorts before, with or after row b, by columns first to last - 1.
__device__ __forceinline__ int compare_rows(const u64* a, i64 stride_a, const u64* b, i64 stride_b, int first,
                                            int last) {
  for (int c = first; c < last; ++c) {
    u64 x = a[c * stride_a], y = b[c * stride_b];
    if (x != y) return x < y ? -1 : 1;
  }
  return 0;
}

// Return how many of the first d merged rows come from A, with A first among equal keys; compare(i, j)
// orders row i of A and row j of B (Green, McColl and Bader, "GPU Merge Path", 2012).
template <class Index, class Compare>
__device__ __forceinline__ Index split(Index d, Index rows_a, Index rows_b, Compare compare) {
  Index low = max(d - rows_b, (Index)0), high = min(d, rows_a);
  while (low < high) {
    Index i = (low + high) / 2;
    if (compare(i, d - 1 - i) <= 0) low = i + 1;
    else high = i;
  }
  return low;
}

// starts_T2[t]: the first rows of A and B in tile t of T; starts_T2[T]: their ends.
// ends_3S: where each of S segments ends in A, in B and in the list of tiles; an empty segment has no tile.
// Tiles of a segment start TILE - 1 rows apart, or one row earlier to keep equal keys of A and B in one tile.
extern "C" __global__ void split_tiles(const u64* keys_a, i64 stride_a, const u64* keys_b, i64 stride_b, int C,
                                       const i64* ends_3S, i64 S, i64 T, i64* starts_T2) {
  const i64 *ends_a = ends_3S, *ends_b = ends_3S + S, *ends_t = ends_3S + 2 * S;
  GRID_STRIDE_LOOP(t, T + 1) {
    i64 s = 0, high = S;  // becomes the first segment that ends after tile t, S for t = T
    while (s < high) {
      i64 middle = (s + high) / 2;
      if (ends_t[middle] <= t) s = middle + 1;
      else high = middle;
    }
    i64 a = s ? ends_a[s - 1] : 0, b = s ? ends_b[s - 1] : 0;
    if (s < S) {
      const u64 *first_a = keys_a + a, *first_b = keys_b + b;
      auto compare = [=](i64 i, i64 j) { return compare_rows(first_a + i, stride_a, first_b + j, stride_b, 0, C); };
      i64 d = (t - (s ? ends_t[s - 1] : 0)) * (TILE - 1), rows_b = ends_b[s] - b;
      i64 i = split(d, ends_a[s] - a, rows_b, compare), j = d - i;
      if (i > 0 && j < rows_b && compare(i - 1, j) == 0) --i;
      a += i;
      b += j;
    }
    starts_T2[2 * t] = a;
    starts_T2[2 * t + 1] = b;
  }
}

// status_T[t + 1] of tile t: two flag bits above the number of rows that tile t, or all tiles up to it, wrote.
#define AGGREGATE (1ULL << 62)
#define PREFIX (2ULL << 62)
#define COUNT_MASK ((1ULL << 62) - 1)

// Return how many rows the tiles before `tile` write. All lanes of one warp call it and read 32 tiles at a time.
__device__ __forceinline__ u64 rows_before(const volatile u64* status_T, i64 tile) {
  const i64 lane = lane_id();
  u64 before = 0;
  for (i64 t = tile;; t -= 32) {
    u64 status;
    do status = t > lane ? status_T[t - lane] : PREFIX; while (__any_sync(FULL_WARP, !(status >> 62)));
    u32 prefixes = __ballot_sync(FULL_WARP, status >= PREFIX);
    u64 rows = prefixes && lane >= __ffs(prefixes) ? 0 : status & COUNT_MASK;
    for (int d = 16; d; d /= 2) rows += __shfl_xor_sync(FULL_WARP, rows, d);
    before += rows;
    if (prefixes) return before;
  }
}

// Write the merged rows; `stride` is the stride of `keys`. The first STAGED key columns decide most comparisons and
// lie in shared memory. The other columns are compared in global memory and copied, like counts, by source row.
extern "C" __global__ void __launch_bounds__(THREADS, MIN_BLOCKS) merge_tiles(
    const u64* __restrict__ keys_a, i64 stride_a, const i64* __restrict__ counts_a, const u64* __restrict__ keys_b,
    i64 stride_b, const i64* __restrict__ counts_b, int C, const i64* __restrict__ starts_T2, u64* __restrict__ keys,
    i64 stride, i64* __restrict__ counts, volatile u64* status_T, u32* next_tile) {
  extern __shared__ u64 staged[];  // (STAGED, TILE): a tile's rows of A, then its rows of B
  __shared__ u32 sources[TILE];    // for each output row: its row in the tile, plus 2^16 times the equal row in B or 0
  __shared__ u32 warp_rows[WARPS];
  __shared__ u64 before_shared;
  __shared__ u32 tile_shared;

  const int tid = threadIdx.x, warp = tid / 32, lane = lane_id();
  if (tid == 0) tile_shared = atomicAdd(next_tile, 1u);
  __syncthreads();
  const i64 tile = tile_shared, a = starts_T2[2 * tile], b = starts_T2[2 * tile + 1];
  const int rows_a = (int)(starts_T2[2 * tile + 2] - a), rows = rows_a + (int)(starts_T2[2 * tile + 3] - b);
  keys_a += a, counts_a += a;
  keys_b += b - rows_a, counts_b += b - rows_a;  // row r >= rows_a of the tile is keys_b[r], counts_b[r]

#pragma unroll
  for (int c = 0; c < STAGED; ++c) {
    u64 key[ITEMS];
#pragma unroll
    for (int n = 0; n < ITEMS; ++n) {
      int r = tid + n * THREADS;
      if (r < rows) key[n] = r < rows_a ? keys_a[c * stride_a + r] : keys_b[c * stride_b + r];
    }
#pragma unroll
    for (int n = 0; n < ITEMS; ++n) {
      int r = tid + n * THREADS;
      if (r < rows) staged[c * TILE + r] = key[n];
    }
  }
  __syncthreads();

  // Thread k merges rows k * ITEMS .. (k + 1) * ITEMS - 1; i and rows_a + j are the next rows of the tile.
  auto compare = [=](int i, int j) {
    int order = compare_rows(staged + i, TILE, staged + rows_a + j, TILE, 0, STAGED);
    return order ? order : compare_rows(keys_a + i, stride_a, keys_b + rows_a + j, stride_b, STAGED, C);
  };
  const int first = min(tid * ITEMS, rows), rows_b = rows - rows_a;
  int i = split(first, rows_a, rows_b, compare), j = first - i;
  bool summed = i > 0 && j < rows_b && compare(i - 1, j) == 0;  // row j of B was added to the row of A before it
  u32 source[ITEMS], written = 0;                               // bit n of `written`: step n yields a row
#pragma unroll
  for (int n = 0; n < ITEMS; ++n) {
    if (first + n < rows) {
      if (summed) {
        summed = false;
        ++j;
      } else {
        int order = j == rows_b ? -1 : i == rows_a ? 1 : compare(i, j);
        summed = order == 0;
        written |= 1u << n;
        source[n] = order > 0 ? rows_a + j++ : i++ | (summed ? rows_a + j : 0) << 16;
      }
    }
  }

  u32 scan = __popc(written);
  for (int d = 1; d < 32; d *= 2) {
    u32 up = __shfl_up_sync(FULL_WARP, scan, d);
    if (lane >= d) scan += up;
  }
  if (lane == 31) warp_rows[warp] = scan;
  __syncthreads();
  u32 place = scan - __popc(written), total = 0;
  for (int w = 0; w < WARPS; ++w) {
    if (w < warp) place += warp_rows[w];
    total += warp_rows[w];
  }
  if (tid == 0) status_T[tile + 1] = AGGREGATE | total;
#pragma unroll
  for (int n = 0; n < ITEMS; ++n) {
    if (written >> n & 1) sources[place++] = source[n];
  }
  __syncthreads();

  i64 count[ITEMS];  // these loads are in flight while warp 0 looks back
#pragma unroll
  for (int n = 0; n < ITEMS; ++n) {
    u32 p = tid + n * THREADS;
    source[n] = p < total ? sources[p] : 0;
    int r = source[n] & 0xffff, equal = source[n] >> 16;
    if (p < total) count[n] = (r < rows_a ? counts_a : counts_b)[r] + (equal ? counts_b[equal] : 0);
  }
  if (warp == 0) {
    u64 before = rows_before(status_T, tile);
    if (lane == 0) {
      status_T[tile + 1] = PREFIX | (before + total);
      before_shared = before;
    }
  }
  __syncthreads();
  keys += before_shared, counts += before_shared;
#pragma unroll
  for (int n = 0; n < ITEMS; ++n) {
    u32 p = tid + n * THREADS, r = source[n] & 0xffff;
    if (p < total) {
      counts[p] = count[n];
#pragma unroll
      for (int c = 0; c < STAGED; ++c) keys[c * stride + p] = staged[c * TILE + r];
    }
  }
  for (int c = STAGED; c < C; ++c) {
#pragma unroll 3
    for (u32 p = tid; p < total; p += THREADS) {
      int r = sources[p] & 0xffff;
      keys[c * stride + p] = r < rows_a ? keys_a[c * stride_a + r] : keys_b[c * stride_b + r];
    }
  }
}
