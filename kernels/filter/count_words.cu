#include "common.cuh"
#include "utf8.cuh"
// text_B (B,) u8, ends_S (S,) i64, ascii_S (S,) i32  ->  words_S (S,) i32: words between white space of Unicode; of a
// sentence in ASCII ascii_S. A thread takes a sentence.
extern "C" __global__ void count_words(const u8* text_B, const i64* ends_S, i64 S, const int* ascii_S, int* words_S) {
  GRID_STRIDE_LOOP(s, S) {
    int words = 0;
    bool inside = false, is_ascii = true;
    for (i64 i = s ? ends_S[s - 1] : 0; i < ends_S[s]; i += character_size(text_B[i])) {
      bool white = is_white(code_point(text_B, i));
      words += !inside && !white;
      inside = !white;
      is_ascii &= text_B[i] < 0x80;
    }
    words_S[s] = is_ascii ? ascii_S[s] : words;
  }
}
