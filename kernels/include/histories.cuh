// Include after grid.cuh and trie.cuh.
// Walks down a trie along the words before a text position, first word first. LANES = 1: one thread per walk.
// LANES = 32: one warp per walk, for at most 32 words and a fanout that is a power of 2 up to 32.
struct Walker {
  Trie trie;
  const u32* codes_T;  // word + 1, 0 between sentences
  i64 begin;           // the word before every sentence, or -1
  i64 t;               // the position
#if LANES == 32
  int log2_fanout;
  i64 level_start;  // sample_starts[lane]
  u32 code_of_lane;

  // Call before all walks from `position`. Loads up to K words at once; lane 0 holds the last word.
  __device__ __forceinline__ void stand_at(i64 position, i64 K) {
    t = position;
    log2_fanout = 63 - __clzll(trie.fanout);
    level_start = lane_id() < trie.levels ? trie.sample_starts[lane_id()] : 0;
    code_of_lane = lane_id() < K && t > lane_id() ? codes_T[t - 1 - lane_id()] : 0;
  }
  __device__ __forceinline__ u32 code(i64 at) const { return __shfl_sync(FULL_WARP, code_of_lane, (int)(t - 1 - at)); }
  __device__ __forceinline__ i64 child(i64 node, u32 word) const {
    return find_child_together(trie, log2_fanout, level_start, node, word);
  }
#else
  __device__ __forceinline__ void stand_at(i64 position, i64 K) { t = position; }
  __device__ __forceinline__ u32 code(i64 at) const { return codes_T[at]; }
  __device__ __forceinline__ i64 child(i64 node, u32 word) const { return find_child(trie, node, word); }
#endif

  // Return the node of the last k + 1 words before the position, or -1.
  __device__ __forceinline__ i64 walk(i64 k) const {
    i64 at = t - 1 - k;
    if (at < -1) return -1;  // -1 is before the first sentence
    u32 next = at >= 0 ? code(at) : 0;
    i64 node = next ? (i64)next - 1 : begin;
    while (node >= 0 && ++at < t) {
      next = code(at);
      node = next ? child(node, next - 1) : -1;
    }
    return node;
  }
};
