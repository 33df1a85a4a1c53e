// text_B (B,) u8, positions_V (V,) u32, where chosen words begin
//   ->  word_lengths: length_V (V,) i64;  copy_words: data u8, with word v at offsets_V[v].
// A thread for each word: words are short, and a vocabulary has few of them against the tokens of its text.
#include "grid.cuh"
#include "delimiters.cuh"
extern "C" __global__ void word_lengths(const u8* text_B, i64 B, const u32* positions_V, i64 V, i64* length_V) {
  GRID_STRIDE_LOOP(v, V) {
    i64 start = positions_V[v], end = start;
    while (end < B && !is_delimiter(text_B[end])) ++end;
    length_V[v] = end - start;
  }
}

extern "C" __global__ void copy_words(const u8* text_B, const u32* positions_V, i64 V, const i64* offsets_V, u8* data) {
  GRID_STRIDE_LOOP(v, V) {
    const u8* from = text_B + positions_V[v];
    i64 to = offsets_V[v], length = offsets_V[v + 1] - to;
    for (i64 i = 0; i < length; ++i) data[to + i] = from[i];
  }
}
