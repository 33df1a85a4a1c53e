// Words of nodes first to end - 1, which rise. Include after grid.cuh.
// Return the first node whose word is not below `word`, or `end`.
__device__ __forceinline__ i64 first_from(const u32* word_G, i64 first, i64 end, u32 word) {
  i64 low = first, high = end;
  while (low < high) {
    i64 middle = (low + high) / 2;
    if (word_G[middle] < word) low = middle + 1; else high = middle;
  }
  return low;
}
__device__ __forceinline__ bool contains(const u32* word_G, i64 first, i64 end, u32 word) {
  i64 at = first_from(word_G, first, end, word);
  return at < end && word_G[at] == word;
}
