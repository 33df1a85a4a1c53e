// An n-gram key is a string of n * bits bits, first word first, left-aligned in 64-bit columns.
// Column c of row r lies at columns[c * stride + r]; keys compare like tuples of codes.

// Bit p (0 = highest bit of the key) belongs to word p / bits. Pads are zero codes at the end, so the
// lowest set bit lies in the last word.
__device__ __forceinline__ int words_in_key(const u64* columns, i64 stride, i64 r, int num_columns, int bits) {
  for (int c = num_columns - 1; c >= 0; --c) {
    u64 v = columns[c * stride + r];
    if (v) return (c * 64 + 64 - __ffsll(v)) / bits + 1;
  }
  return 0;
}

// Return how many leading words rows r and q share, at most num_columns * 64 / bits.
__device__ __forceinline__ int shared_words(const u64* columns, i64 stride, i64 r, i64 q, int num_columns, int bits) {
  for (int c = 0; c < num_columns; ++c) {
    u64 x = columns[c * stride + r] ^ columns[c * stride + q];
    if (x) return (c * 64 + __clzll(x)) / bits;
  }
  return num_columns * 64 / bits;
}
