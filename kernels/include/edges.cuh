// The edge table of a trie: (node, word) -> child, its probability and backoff. See kernels/trie/edges.py.
struct Edges {
  const ulonglong2* slots_E;  // tag, filter of the child's children, child (all 0: empty); then the values
  i64 buckets, word_bits, key_bits, node_bits, check_bits, filter_bits;
};

// A bijection on `bits`-bit numbers.
__device__ __forceinline__ u64 scramble(u64 x, i64 bits) {
  u64 mask = bits == 64 ? ~0ULL : (1ULL << bits) - 1;
  i64 half = bits / 2;
  x ^= x >> half; x = x * 0x9e3779b97f4a7c15ULL & mask;
  x ^= x >> half; x = x * 0xd6e8feb86659fd93ULL & mask;
  return x ^ (x >> half);
}

// Return the slot of (node, word); .x is 0 if the table lacks the edge. Slots of greater keys and empty slots have
// smaller tags, so the first smaller tag ends the search.
__device__ __forceinline__ ulonglong2 find_edge(const Edges& edges, u64 node, u32 word) {
  u64 x = scramble(node << edges.word_bits | word, edges.key_bits) << (64 - edges.key_bits);
  u64 slot = 2 * __umul64hi(x, edges.buckets), tag = ~(x * edges.buckets) >> (64 - edges.check_bits);
  while (true) {
    ulonglong2 found = edges.slots_E[slot];
    u64 stored = found.x >> (edges.node_bits + edges.filter_bits);
    if (stored < tag) found.x = 0;
    if (stored <= tag) return found;
    ++slot;
    tag += 1ULL << edges.check_bits;
  }
}

// Return (log10 probability, log10 backoff) of a slot.
__device__ __forceinline__ float2 edge_values(ulonglong2 slot) {
  return {__uint_as_float((u32)slot.y), __uint_as_float((u32)(slot.y >> 32))};
}
