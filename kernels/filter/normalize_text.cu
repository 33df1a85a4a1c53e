// CCNet's normaliser (Wenzek et al., "CCNet", 2020) as a map from characters to characters, and one line for each
// sentence.
// A warp takes a text, 32 bytes at a time, and finds ends of lines and white space to drop by votes. With a thread for
// each text, the GPU waited for the longest one: see engine/filter/NOTES.md.
#include "grid.cuh"
#include "utf8.cuh"
#include "text_windows.cuh"
#define SAME 0u
#define FAILS 0xFFFFFFFFu

// text_B (B,) u8, ends_D (D,) i64, a CharacterMap (pages_U i32, entry_P u32, data u8)  ->  sizes_D, sentences_D (D,) i64 and
// failed_D (D,) u8; or, with out_ends_D (D,) i64, the sentences in out: see normalize_text.py. A warp takes a text.
//
// White space behind the last other character of a window is written and counted in `pending`, not in `at`: what
// follows overwrites it if the sentence ends before another character.
extern "C" __global__ void normalize_text(const u8* text_B, const i64* ends_D, i64 D, const int* pages_U,
                                          const u32* entry_P, const u8* data, i64 by_line, i64 strip, i64* sizes_D,
                                          i64* sentences_D, u8* failed_D, const i64* out_ends_D, u8* out) {
  const bool writes = out_ends_D;
  EACH_WARP(d, D) {
    const i64 begin = d ? ends_D[d - 1] : 0, end = ends_D[d], most = writes ? sizes_D[d] : 0;
    if (writes && !most) continue;  // it failed, or is empty
    u8* to = out + (writes ? out_ends_D[d] - most : 0);
    i64 at = 0, pending = 0, sentences = 0;
    bool begun = false, failed = false;
    for (i64 base = begin; base < end; base += 32) {
      const i64 i = base + lane_id();
      const bool is_lead = i < end && (text_B[i] & 0xC0) != 0x80;
      const u32 c = is_lead ? code_point(text_B, i) : 0;
      const bool ends_line = by_line && is_lead && c == '\n', is_space = strip && is_lead && !ends_line && is_white(c);
      const bool is_solid = is_lead && !ends_line && !is_space;
      const u32 solids = __ballot_sync(FULL_WARP, is_solid), lines = __ballot_sync(FULL_WARP, ends_line);
      const u32 marks = solids | lines, above = marks & ~lanes_below();
      const bool is_kept = is_space && nearest_below(marks, solids, begun) && (!above || solids & above & -above);
      const u32 entry = is_solid || is_kept ? entry_P[256 * (i64)pages_U[c >> 8] + (c & 255)] : SAME;
      if (__any_sync(FULL_WARP, entry == FAILS)) {
        failed = true;
        break;
      }
      const u32 size = ends_line ? 1 : !is_solid && !is_kept ? 0 : entry == SAME ? character_size(text_B[i]) : (entry & 255) - 1;
      const u32 through = sum_through(size), total = __shfl_sync(FULL_WARP, through, 31);
      if (!marks || solids & marks & -marks) at += pending;  // the line goes on, so far as this window tells
      if (writes) {
        const i64 first = at + through - size;
        const u8* from = ends_line || entry == SAME ? text_B + i : data + (entry >> 8);
        if (first + size <= most)
          for (u32 k = 0; k < size; ++k) to[first + k] = from[k];
        __syncwarp();  // the next window may write to the same places
      }
      if (marks) {
        const int last = highest_lane(marks);
        const u32 settled = __shfl_sync(FULL_WARP, through, last);
        at += settled;
        pending = total - settled;
        begun = solids >> last & 1;
        sentences += __popc(lines);
      } else {
        at -= pending;
        pending += total;
      }
    }
    const bool has_text = begin < end && !failed;
    if (lane_id()) continue;
    if (writes) {
      to[at] = '\n';
    } else {
      sizes_D[d] = has_text ? at + 1 : 0;
      sentences_D[d] = has_text ? sentences + 1 : 0;
      failed_D[d] = failed;
    }
  }
}
