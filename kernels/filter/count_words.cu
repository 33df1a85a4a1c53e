#include "common.cuh"
#include "utf8.cuh"
// text_B (B,) u8, ends_S (S,) i64  ->  words_S (S,) i32: words between white space of Unicode. A thread takes a sentence.
extern "C" __global__ void count_words(const u8* text_B, const i64* ends_S, i64 S, int* words_S) {
  GRID_STRIDE_LOOP(s, S) {
    int words = 0;
    bool inside = false;
    for (i64 i = s ? ends_S[s - 1] : 0; i < ends_S[s]; i += character_size(text_B[i])) {
      bool white = is_white(code_point(text_B, i));
      words += !inside && !white;
      inside = !white;
    }
    words_S[s] = words;
  }
}
