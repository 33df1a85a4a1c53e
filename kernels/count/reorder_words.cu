// Words of keys in another order, such as the order of the text for windows that were sorted last context word first:
// word n of a result is bits place_n b to (place_n + 1) b - 1 of the key, for words of b bits (see ngram_keys.cu).
// A thread takes a row and fills one column at a time in a register, so it writes each column once, and neighbours
// write neighbouring rows.
#include "grid.cuh"

// columns (num_columns, R), a row apart by `stride`; place_N (N,): where word n of the result stands  ->  (num_columns, R).
extern "C" __global__ void reorder_words(const u64* columns, i64 stride, i64 R, int num_columns, int bits,
                                         const int* place_N, int N, u64* reordered) {
  const u64 mask = ~0ULL >> (64 - bits);
  GRID_STRIDE_LOOP(r, R) {
    u64 column = 0;
    int used = 0, c = 0;  // bits filled in column c
    for (int n = 0; n < N; ++n) {
      const int begin = __ldg(place_N + n) * bits;
      const int at = begin / 64, spare = 64 - begin % 64 - bits;
      u64 code = columns[at * stride + r];
      code = spare >= 0 ? code >> spare : code << -spare | columns[(at + 1) * stride + r] >> (64 + spare);
      code &= mask;
      const int shift = 64 - used - bits;
      if (shift > 0) {
        column |= code << shift;
        used += bits;
      } else {
        reordered[c++ * R + r] = column | (code >> -shift);
        used = -shift;
        column = used ? code << (64 - used) : 0;
      }
    }
    if (c < num_columns) reordered[c * R + r] = column;
  }
}
