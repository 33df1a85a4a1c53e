// Counts of all orders from one table of the highest: the n-grams of order n are the distinct prefixes of n words of
// its sorted rows, and so need neither a pass over the text nor a sort.
#include "grid.cuh"
#include "ngram_keys.cuh"
// Distinct prefixes of sorted keys. Row r starts a group of order n if it has at least n words and shares
// fewer than n leading words with the row before it. It ends a group by the same rule with the row after
// it. Lane i of a warp handles order first_order + i, so one call serves up to 32 orders.

#define STEPS 16
#define SEGMENT (32 * STEPS)

struct Row { int words, shared_before, shared_after; };

__device__ __forceinline__ Row load_row(const u64* columns, i64 stride, i64 R, i64 r, int C, int bits) {
  Row row = {0, 0, 0};
  if (r < R) {
    row.words = words_in_key(columns, stride, r, C, bits);
    row.shared_before = r > 0 ? shared_words(columns, stride, r, r - 1, C, bits) : 0;
    row.shared_after = r + 1 < R ? shared_words(columns, stride, r, r + 1, C, bits) : 0;
  }
  return row;
}

// heads_NW[i][w]: number of groups of order first_order + i that start in segment w.
extern "C" __global__ void count_heads(const u64* columns, i64 stride, i64 R, int C, int bits, int first_order,
                                       int num_orders, i64* heads_NW, i64 W) {
  i64 warps = (i64)gridDim.x * (blockDim.x / 32);
  for (i64 w = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32; w < W; w += warps) {
    i64 mine = 0;
    for (int s = 0; s < STEPS; ++s) {
      i64 r = w * SEGMENT + s * 32 + lane_id();
      int words = 0, shared = 0;
      if (r < R) {
        words = words_in_key(columns, stride, r, C, bits);
        shared = r > 0 ? shared_words(columns, stride, r, r - 1, C, bits) : 0;
      }
      for (int i = 0; i < num_orders; ++i) {
        int n = first_order + i;
        u32 heads = __ballot_sync(FULL_WARP, shared < n && n <= words);
        if (lane_id() == i) mine += __popc(heads);
      }
    }
    if (lane_id() < num_orders) heads_NW[lane_id() * W + w] = mine;
  }
}

// Write the groups of each order: keys cut to that many words, and counts. weight_before[r] is the sum of
// the weights of rows 0..r-1; null means that every row has weight 1. counts must be zero.
extern "C" __global__ void write_groups(const u64* columns, i64 stride, i64 R, int C, int bits, int first_order,
                                     int num_orders, const i64* offsets_NW, i64 W, const i64* weight_before,
                                     const u64* key_pointers, const u64* count_pointers, const i64* sizes) {
  i64 warps = (i64)gridDim.x * (blockDim.x / 32);
  for (i64 w = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32; w < W; w += warps) {
    i64 next = lane_id() < num_orders ? offsets_NW[lane_id() * W + w] : 0;
    for (int s = 0; s < STEPS; ++s) {
      i64 r = w * SEGMENT + s * 32 + lane_id();
      Row row = load_row(columns, stride, R, r, C, bits);
      for (int i = 0; i < num_orders; ++i) {
        int n = first_order + i;
        bool head = row.shared_before < n && n <= row.words, tail = row.shared_after < n && n <= row.words;
        u32 heads = __ballot_sync(FULL_WARP, head);
        i64 start = __shfl_sync(FULL_WARP, next, i);
        i64 g = start + __popc(heads & (lanes_below() << 1 | 1)) - 1;  // this row's group
        if (lane_id() == i) next += __popc(heads);
        i64* counts = (i64*)count_pointers[i];
        if (head) {
          u64* keys = (u64*)key_pointers[i];
          i64 G = sizes[i];
          int key_bits = n * bits;
          for (int c = 0; c * 64 < key_bits; ++c) {
            u64 v = columns[c * stride + r];
            int kept = key_bits - c * 64;
            if (kept < 64) v &= ~0ULL << (64 - kept);
            keys[c * G + g] = v;
          }
        }
        if (head || tail) {
          i64 change = 0;
          if (tail) change += weight_before ? weight_before[r + 1] : r + 1;
          if (head) change -= weight_before ? weight_before[r] : r;
          if (head && tail) counts[g] = change;
          else atomicAdd((u64*)&counts[g], (u64)change);
        }
      }
    }
  }
}
