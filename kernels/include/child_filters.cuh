// Return the bit of a word in a filter of `bits` bits (1 to 64); the same as in kernels/trie/child_filters.py.
__device__ __forceinline__ u64 filter_bit(u32 word, i64 bits) { return (u64)(word * 0x9e3779b1u) * bits >> 32; }
