// Rows in blocks, which follow each other. Include after grid.cuh.
// Return the last block from `low` to `high` that begins at `row` or before, of blocks with rising first rows; block
// `low` does. Of blocks that begin at one row, only the last can have rows.
template <typename Row>
__device__ __forceinline__ i64 block_of(const Row* first_B, i64 low, i64 high, i64 row) {
  while (low < high) {
    i64 middle = (low + high + 1) / 2;
    if ((i64)__ldg(first_B + middle) <= row) low = middle; else high = middle - 1;
  }
  return low;
}
