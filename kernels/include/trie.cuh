// A trie in breadth-first order and its B+-tree index; core/ngrams/trie.py documents the layout. CHILD is u32 or i64.
struct Trie {
  const u32* word_G;          // word of node g; the children of one node rise by word
  const CHILD* first_child_M; // children of node m: first_child_M[m] to first_child_M[m + 1] - 1
  const u32* samples;         // level t = 1, 2, ... from sample_starts[t - 1] on: every fanout^t-th of word_G
  const i64* sample_starts;
  i64 levels, fanout, M;
};

// i / fanout ** t: the position of row i on level t.
__device__ __forceinline__ CHILD at_level(const Trie& trie, CHILD i, int t) {
  if ((trie.fanout & (trie.fanout - 1)) == 0) return i >> (63 - __clzll(trie.fanout)) * t;
  for (; t > 0; --t) i /= (CHILD)trie.fanout;
  return i;
}

// Return the child of `node` by `word`, or -1. On each level, take the last of at most `fanout` + 1 words <= `word`.
__device__ __forceinline__ i64 find_child(const Trie& trie, i64 node, u32 word) {
  if (node < 0 || node >= trie.M) return -1;
  CHILD first = trie.first_child_M[node], last = trie.first_child_M[node + 1];
  if (first == last) return -1;
  --last;
  int t = 0;
  while (t < trie.levels && at_level(trie, last, t) - at_level(trie, first, t) > trie.fanout) ++t;
  i64 low = at_level(trie, first, t), high = at_level(trie, last, t);
  while (true) {
    const u32* row = t ? trie.samples + trie.sample_starts[t - 1] : trie.word_G;
    while (low < high) {
      i64 middle = (low + high + 1) / 2;
      if (row[middle] <= word) low = middle; else high = middle - 1;
    }
    if (t == 0) return trie.word_G[low] == word ? low : -1;
    --t;
    i64 begin = low * trie.fanout;
    high = min(begin + trie.fanout - 1, (i64)at_level(trie, last, t));
    low = max(begin, (i64)at_level(trie, first, t));
  }
}

// As find_child, but one warp reads the words of a level at once; fanout = 2 ** log2_fanout, at most 32.
// `level_start` is sample_starts[lane]. The levels depend on each other, so every instruction adds latency.
// Indexes have type CHILD: none is within 32 of its maximum.
__device__ __forceinline__ i64 find_child_together(const Trie& trie, int log2_fanout, i64 level_start, i64 node,
                                                   u32 word) {
  if (node < 0 || node >= trie.M) return -1;
  CHILD first = trie.first_child_M[node], last = trie.first_child_M[node + 1];
  if (first == last) return -1;
  --last;
  int shift = 0, t = 0;
  for (; t < trie.levels && (last >> shift) - (first >> shift) > (CHILD)trie.fanout; ++t) shift += log2_fanout;
  CHILD low = first >> shift, high = last >> shift;
  for (;; --t) {
    i64 start = __shfl_sync(FULL_WARP, level_start, t - 1);
    const u32* row = t ? trie.samples + start : trie.word_G;
    CHILD at = low + 1 + lane_id();
    low += __popc(__ballot_sync(FULL_WARP, at <= high && row[at] <= word));
    if (t == 0) return row[low] == word ? (i64)low : -1;
    shift -= log2_fanout;
    CHILD begin = low << log2_fanout;
    high = min(begin + (CHILD)trie.fanout - 1, last >> shift);
    low = max(begin, first >> shift);
  }
}
