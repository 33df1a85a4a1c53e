// A trie in breadth-first order and its B+-tree index, as core/trie.py lays them out. CHILD is u32 or i64.
struct Trie {
  const u32* word_G;          // of node g; the children of a node are in order
  const CHILD* first_child_M; // children of node m: first_child_M[m] to first_child_M[m + 1] - 1
  const u32* samples;         // level t = 1, 2, ... from sample_starts[t - 1] on: every fanout^t-th of word_G
  const i64* sample_starts;
  i64 levels, fanout, M;
};

// The child of `node` by `word`, -1 without one. At every level: the last of at most `fanout` + 1 words not above it.
__device__ __forceinline__ i64 find_child(const Trie& trie, i64 node, u32 word) {
  if (node < 0 || node >= trie.M) return -1;
  i64 first = trie.first_child_M[node], last = (i64)trie.first_child_M[node + 1] - 1;
  if (first > last) return -1;
  i64 t = 0, step = 1;
  while (t < trie.levels && last / step - first / step > trie.fanout) { step *= trie.fanout; ++t; }
  i64 low = first / step, high = last / step;
  while (true) {
    const u32* row = t ? trie.samples + trie.sample_starts[t - 1] : trie.word_G;
    while (low < high) {
      i64 middle = (low + high + 1) / 2;
      if (row[middle] <= word) low = middle; else high = middle - 1;
    }
    if (t == 0) return trie.word_G[low] == word ? low : -1;
    --t;
    step /= trie.fanout;
    i64 begin = low * trie.fanout;
    high = min(begin + trie.fanout - 1, last / step);
    low = max(begin, first / step);
  }
}
