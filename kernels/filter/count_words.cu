// The number of words of each sentence, as CCNet counts them: runs of characters between white space.
#include "grid.cuh"
#include "utf8.cuh"
#include "text_windows.cuh"
// text_B (B,) u8, ends_S (S,) i64, ascii_S (S,) i32  ->  words_S (S,) i32: words between white space of Unicode; of a
// sentence in ASCII ascii_S. A warp takes a sentence.
extern "C" __global__ void count_words(const u8* text_B, const i64* ends_S, i64 S, const int* ascii_S, int* words_S) {
  EACH_WARP(s, S) {
    const i64 end = ends_S[s];
    int words = 0;
    bool is_inside = false, is_ascii = true;
    for (i64 base = s ? ends_S[s - 1] : 0; base < end; base += 32) {
      const i64 i = base + lane_id();
      const u8 c = i < end ? text_B[i] : 0x80;
      const bool is_lead = (c & 0xC0) != 0x80, is_space = is_lead && is_white(code_point(text_B, i));
      const u32 spaces = __ballot_sync(FULL_WARP, is_space), solids = __ballot_sync(FULL_WARP, is_lead && !is_space);
      const u32 leads = spaces | solids;
      words += __popc(__ballot_sync(FULL_WARP, is_lead && !is_space && !nearest_below(leads, solids, is_inside)));
      if (leads) is_inside = solids >> highest_lane(leads) & 1;
      is_ascii &= !__any_sync(FULL_WARP, i < end && c >= 0x80);
    }
    if (!lane_id()) words_S[s] = is_ascii ? ascii_S[s] : words;
  }
}
