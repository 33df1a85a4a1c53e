// Sortable keys of the windows of a text: the codes of an n-gram side by side, the first one in the highest bits, in as
// many 64-bit columns as it takes. Codes after the end of a sentence are 0, so a cut window sorts before those that
// continue it.
#include "grid.cuh"
#include "token_codes.cuh"
// Row r: the key of the window that starts at positions_R[r] (at r if null), cut at the first code 0 or at T.
extern "C" __global__ void ngram_keys(const token_t* tokens_T, i64 T, const u16* lut_table, const i64* positions_R,
                                      i64 R, int order, int bits, int num_columns, u64* columns) {
  LOAD_LUT(lut, lut_table)
  GRID_STRIDE_LOOP(r, R) {
    i64 at = positions_R ? positions_R[r] : r;
    u64 column = 0;
    int used = 0, c = 0;  // bits filled in column c
    int n = 0;
    for (; n < order && at + n < T; ++n) {
      u64 code = CODE(lut, tokens_T[at + n]);
      if (code == 0) break;
      int shift = 64 - used - bits;
      if (shift > 0) {
        column |= code << shift;
        used += bits;
      } else {
        columns[c++ * R + r] = column | (code >> -shift);
        used = -shift;
        column = used ? code << (64 - used) : 0;
      }
    }
    if (c < num_columns) columns[c++ * R + r] = column;
    for (; c < num_columns; ++c) columns[c * R + r] = 0;
  }
}
