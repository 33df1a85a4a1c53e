// Rows of log10 P(w | state) for all words w, for a batch of states, by backoff (Katz, "Estimation of Probabilities
// from Sparse Data", 1987): the value of the longest suffix of the state that w follows, plus the backoffs of all
// longer ones.
// One kernel walks, searches and merges the children of all orders in shared memory. A kernel for the search alone was
// slower, and so were passes over the row for one order after the other, although memory did not bound them: see
// NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "row_tiles.cuh"

typedef int i32;

#define BOUNDS (PART + 1)  // of a warp's tiles
#define MAX_K 32           // as in row_launch.py

// states_H (H,) i32, nodes_M (M,) and state_G (G,) i32 of a StateTable, first_child_M (M + 1,) CHILD, backoff_M (M,) f32 or
// null, word_G u32 and value_G f32 (G,), value_V (V,) f32  ->  rows and, if STATES, next: see advance_states.py.
// A warp makes PART neighbouring tiles of one row: grid x counts blocks of WARPS warps; y and z count rows. It walks to the
// suffixes of the state, then GROUP lanes search for each bound of the tiles among each suffix's children.
// Floor: bytes of the rows over the rate of writes. For few words, reads that depend on each other: K for the suffixes of
// a state, then a search of its children.
extern "C" __global__ void __launch_bounds__(32 * WARPS, BLOCKS) advance_states(
    const i32* states_H, i64 H, const ulonglong2* nodes_M, i64 M, const CHILD* first_child_M,
    const float* backoff_M, const u32* word_G, const float* value_G, const float* value_V,
    const i32* state_G, i64 V, out_t* rows, i64 width, i64 stride, i32* next, i64 next_width, i64 next_stride) {
  __shared__ float4 tiles[WARPS][TILE / 4];
  __shared__ u32 bounds[WARPS][MAX_K][BOUNDS];  // of each order, how many children lie before a tile
  const int lane = lane_id(), warp = threadIdx.x / 32;
  const i64 h = (i64)blockIdx.z * gridDim.y + blockIdx.y, from = ((i64)blockIdx.x * WARPS + warp) * PART * TILE;
  if (h >= H || from >= width) return;
  float value[CHUNKS][PER];
  get_words(value_V, from, (int)min((i64)TILE, V - from), value);
  i64 node_of_lane = -1;
  int used = 0;  // suffixes of the state, the longest first
#pragma unroll 1
  for (i64 node = states_H[h]; node >= 0 && node < M; ++used) {
    if (lane == used) node_of_lane = node;
    const u32 suffix = (u32)(nodes_M[node].y >> 32);
    node = suffix == 0xFFFFFFFFu ? -1 : (i64)suffix;
  }
  node_of_lane = __shfl_sync(FULL_WARP, node_of_lane, used - 1 - lane);  // the shortest first
  CHILD first = 0;
  u32 number = 0;
  float backoff = MULTIPLY ? 1 : -0.0f;
  if (lane < used) {
    first = first_child_M[node_of_lane];
    number = (u32)(first_child_M[node_of_lane + 1] - first);
    if (backoff_M) backoff = backoff_M[node_of_lane];
  }
  const int searches = used * BOUNDS;
#pragma unroll 1
  for (int base = 0; base < searches; base += 32 / GROUP) {
    const int search = base + lane / GROUP, k = search / BOUNDS, b = search % BOUNDS;
    const u32* words = word_G + __shfl_sync(FULL_WARP, first, k & 31);
    const u32 n = __shfl_sync(FULL_WARP, number, k & 31), word = (u32)min(from + b * TILE, V), after = (u32)V - word;
    u32 low = 0, high = 0;
    if (search < searches) {  // words are distinct: at most `word` children are smaller, and at most `after` not
      low = n - min(n, after);
      high = min(n, word);
    }
    while (__any_sync(FULL_WARP, low < high)) {
      const u32 step = (high - low) / (GROUP + 1) + 1, probe = low + (lane % GROUP + 1) * step - 1;
      const u32 below = __ballot_sync(FULL_WARP, probe < high && __ldg(words + probe) < word);
      low += __popc(below >> lane / GROUP * GROUP & ((1u << GROUP) - 1)) * step;
      high = min(high, low + step - 1);
    }
    if (search < searches && lane % GROUP == 0) bounds[warp][k][b] = low;
  }
  __syncwarp();
  float* tile = (float*)tiles[warp];
#pragma unroll 1
  for (int part = 0; part < PART; ++part) {
    const i64 start = from + part * TILE;
    if (start >= width) return;
    if (part) get_words(value_V, start, (int)min((i64)TILE, V - start), value);
    CHILD begin = 0;
    u32 children = 0;
    if (lane < used) {
      const u32 before = bounds[warp][lane][part];
      begin = first + before;
      children = bounds[warp][lane][part + 1] - before;
    }
    TileChildren<false>{used, begin, children, backoff, word_G, value_G, (u32)start, tile}.merge(value);
    store_tile(rows + h * stride + start, value, (int)min((i64)TILE, width - start));
#if STATES
    const float* state_bits_G = (const float*)state_G;
    get_words(state_bits_G, start, (int)min((i64)TILE, V - start), value);
    TileChildren<true>{used, begin, children, backoff, word_G, state_bits_G, (u32)start, tile}.merge(value);
    const u64 policy = leaves_first();
    const int size = (int)min((i64)TILE, next_width - start);
#pragma unroll
    for (int c = 0; c < CHUNKS; ++c) {
      const int w = (c * 32 + lane) * PER;
      store_bits((u32*)next + h * next_stride + start + w, value[c], size - w, policy);
    }
#endif
  }
}
