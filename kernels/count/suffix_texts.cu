// The suffixes of Parquet's DELTA_BYTE_ARRAY (https://github.com/apache/parquet-format, Encodings.md): of each text,
// only what follows the bytes that it shares with the text before. Rows are sorted by ids, so shared words are found in
// the keys, and texts that are not written are not read.
#include "grid.cuh"
#include "ngram_keys.cuh"

// The id of word n of row r: its code less 1; 2^32 - 1 for code 0.
__device__ __forceinline__ u32 id_at(const u64* keys, i64 stride, int bits, i64 r, int n) {
  int column = n * bits / 64, spare = 64 - n * bits % 64 - bits;  // spare < 0: the code continues in the next column
  u64 code = keys[column * stride + r];
  code = spare >= 0 ? code >> spare : code << -spare | keys[(column + 1) * stride + r] >> (64 + spare);
  return (u32)(code & ((1ULL << bits) - 1)) - 1;
}

// Leading words of row r that are those of the row before; 0 in the first row of a page, at most order - 1.
__device__ __forceinline__ int shared_with_row_before(const u64* keys, i64 stride, int columns, int bits, int order,
                                                      i64 r, const i64* starts_P1, i64 P) {
  i64 p = 0, above = P;  // the last page whose first row is not after r
  while (above - p > 1) {
    i64 middle = (p + above) / 2;
    if (starts_P1[middle] <= r) p = middle;
    else above = middle;
  }
  return r == starts_P1[p] ? 0 : min(shared_words(keys, stride, r, r - 1, columns, bits), order - 1);
}

// keys (columns, R) u64, `stride` apart; starts_P1 (P + 1,) i64, the first rows of pages; offsets_V (V + 1,) i64.
//   ->  prefix_R, suffix_R (R,) i64: bytes of the words that a row shares with the row before, each with a space, and of
//       the others; *most: the greatest id
extern "C" __global__ void suffix_lengths(const u64* keys, i64 stride, i64 columns, i64 R, i64 bits, i64 order,
                                          const i64* starts_P1, i64 P, const i64* offsets_V, i64 V, i64* prefix_R,
                                          i64* suffix_R, u32* most) {
  u32 greatest = 0;
  GRID_STRIDE_LOOP(r, R) {
    int shared = shared_with_row_before(keys, stride, columns, bits, order, r, starts_P1, P);
    i64 prefix = 0, suffix = -1;
    for (int n = 0; n < order; ++n) {
      u32 id = id_at(keys, stride, bits, r, n);
      greatest = max(greatest, id);
      i64 bytes = id < V ? offsets_V[id + 1] - offsets_V[id] + 1 : 0;
      if (n < shared) prefix += bytes;
      else suffix += bytes;
    }
    prefix_R[r] = prefix, suffix_R[r] = suffix;
  }
  if (greatest) atomicMax(most, greatest);
}

// data_V u8: the words; ends_R (R,) i64: where the suffix of each row ends in data. Other arguments as above.
//   ->  data u8: the suffixes, words separated by spaces
extern "C" __global__ void suffix_texts(const u64* keys, i64 stride, i64 columns, i64 R, i64 bits, i64 order,
                                        const i64* starts_P1, i64 P, const i64* offsets_V, const u8* data_V,
                                        const i64* suffix_R, const i64* ends_R, u8* data) {
  GRID_STRIDE_LOOP(r, R) {
    int shared = shared_with_row_before(keys, stride, columns, bits, order, r, starts_P1, P);
    u8* to = data + ends_R[r] - suffix_R[r];
    for (int n = shared; n < order; ++n) {
      if (n > shared) *to++ = ' ';
      u32 id = id_at(keys, stride, bits, r, n);
      for (i64 i = offsets_V[id]; i < offsets_V[id + 1]; ++i) *to++ = data_V[i];
    }
  }
}
