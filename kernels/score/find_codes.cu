// The code of each word of a text: its hash in an open-addressing table, then its bytes, where the words are known.
#include "grid.cuh"
#include "delimiters.cuh"
#include "word_table.cuh"
// Return where the word of token t ends: before the white space ahead of the next token. The byte at a position is not white
// space, so the backward search ends.
__device__ __forceinline__ i64 word_end(const u8* text_B, i64 B, const u32* positions_T, i64 T, i64 t) {
  i64 stop = t + 1 < T ? positions_T[t + 1] : B;
  while (is_space(text_B[stop - 1])) --stop;
  return stop;
}

// text_B (B,) u8, positions_T (T,) u32 of words and newlines  ->  codes_T (T,) u32: see find_codes.py.
extern "C" __global__ void find_codes(const u8* text_B, i64 B, const u32* positions_T, i64 T, const u64* slots_C,
                                      i64 C, const i64* offsets_V, const u8* data, i64 data_bytes, u32* codes_T) {
  Words words = {slots_C, C, offsets_V, data, data_bytes};
  GRID_STRIDE_LOOP(t, T) {
    i64 start = positions_T[t];
    u32 code = 0;
    if (text_B[start] != '\n') code = find_word(words, text_B, B, start, word_end(text_B, B, positions_T, T, t)) + 1;
    codes_T[t] = code;
  }
}

// As find_codes, where only the hashes of words are known: slots_C is from index_hashes.
extern "C" __global__ void find_hashed_codes(const u8* text_B, i64 B, const u32* positions_T, i64 T, const u64* slots_C,
                                             i64 C, const i64*, const u8*, i64, u32* codes_T) {
  GRID_STRIDE_LOOP(t, T) {
    i64 start = positions_T[t];
    u32 code = 0;
    if (text_B[start] != '\n') {
      const u64 hash = murmur_hash(text_B, B, start, word_end(text_B, B, positions_T, T, t));
      code = find_hash(hash, slots_C, C) + 1;
    }
    codes_T[t] = code;
  }
}
