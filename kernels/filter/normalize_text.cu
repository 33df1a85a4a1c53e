#include "common.cuh"
#include "utf8.cuh"
#define SAME 0u
#define FAILS 0xFFFFFFFFu

// text_B (B,) u8, ends_D (D,) i64, a CharacterMap (pages_U i32, entry_P u32, data u8)  ->  sizes_D, sentences_D (D,) i64 and
// failed_D (D,) u8; or, with out_ends_D (D,) i64, the sentences in out: see normalize_text.py. A thread takes a text.
extern "C" __global__ void normalize_text(const u8* text_B, const i64* ends_D, i64 D, const int* pages_U,
                                          const u32* entry_P, const u8* data, i64 by_line, i64 strip, i64* sizes_D,
                                          i64* sentences_D, u8* failed_D, const i64* out_ends_D, u8* out) {
  GRID_STRIDE_LOOP(d, D) {
    i64 begin = d ? ends_D[d - 1] : 0, end = ends_D[d], start = begin, size = 0, sentences = 0;
    bool failed = false;
    u8* to = out_ends_D ? out + (out_ends_D[d] - sizes_D[d]) : 0;
    if (to && !sizes_D[d]) continue;  // it failed, or is empty
    while (begin < end && !failed) {
      i64 stop = end;
      if (by_line) for (stop = start; stop < end && text_B[stop] != '\n';) ++stop;
      i64 i = start, last = stop;
      if (strip) {
        while (i < last && is_white(code_point(text_B, i))) i += character_size(text_B[i]);
        while (i < last) {
          i64 at = last - 1;
          while ((text_B[at] & 0xC0) == 0x80) --at;
          if (!is_white(code_point(text_B, at))) break;
          last = at;
        }
      }
      while (i < last) {
        u32 c = code_point(text_B, i), entry = entry_P[256 * (i64)pages_U[c >> 8] + (c & 255)];
        int old = character_size(text_B[i]), bytes = entry == SAME ? old : (int)(entry & 255) - 1;
        if (entry == FAILS) {
          failed = true;
          break;
        }
        if (to) {
          const u8* from = entry == SAME ? text_B + i : data + (entry >> 8);
          for (int k = 0; k < bytes; ++k) to[size + k] = from[k];
        }
        size += bytes;
        i += old;
      }
      if (to) to[size] = '\n';
      ++size;
      ++sentences;
      start = stop + 1;
      if (stop == end) break;
    }
    if (!to) {
      sizes_D[d] = failed ? 0 : size;
      sentences_D[d] = failed ? 0 : sentences;
      failed_D[d] = failed;
    }
  }
}
