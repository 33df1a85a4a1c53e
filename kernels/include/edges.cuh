// The edge table of a trie: (node, word) -> child, its probability and backoff. As kernels/trie/edges.py lays it out.
struct Edges {
  const uint4* slots_E;  // child (0: empty), tag, bits of log10 probability, bits of log10 backoff
  i64 buckets, word_bits, key_bits, check_bits;
};

// A bijection of numbers of `bits` bits.
__device__ __forceinline__ u64 scramble(u64 x, i64 bits) {
  u64 mask = bits == 64 ? ~0ULL : (1ULL << bits) - 1;
  i64 half = bits / 2;
  x ^= x >> half; x = x * 0x9e3779b97f4a7c15ULL & mask;
  x ^= x >> half; x = x * 0xd6e8feb86659fd93ULL & mask;
  return x ^ (x >> half);
}

// The slot of (node, word); .x is 0 where there is none.
__device__ __forceinline__ uint4 find_edge(const Edges& edges, u32 node, u32 word) {
  u64 x = scramble((u64)node << edges.word_bits | word, edges.key_bits);
  u64 slot = 2 * __umul64hi(x << (64 - edges.key_bits), edges.buckets);
  u32 tag = (u32)(x & ((1ULL << edges.check_bits) - 1)), step = 1u << edges.check_bits;
  while (true) {
    uint4 found = edges.slots_E[slot];
    if (found.x == 0 || found.y == tag) return found;
    ++slot;
    tag += step;
  }
}
