#include "common.cuh"
#include "utf8.cuh"
#define SPACE 32
#define LONGEST 256

__device__ __forceinline__ u32 offset_of(u32 unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

// Write a space to `to`, if that is not 0, at `at`; returns the end.
__device__ __forceinline__ i64 put_space(u8* to, i64 at, bool escape) {
  if (!escape) {
    if (to) to[at] = SPACE;
    return at + 1;
  }
  if (to) to[at] = 0xE2, to[at + 1] = 0x96, to[at + 2] = 0x81;
  return at + 3;
}

// text_B (B,) u8, ends_S (S,) i64, PieceRules  ->  sizes_S (S,) i64 and failed_S (S,) u8; or, with out_ends_S (S,) i64, the
// sentences in out: see piece_text.py. A thread takes a sentence.
extern "C" __global__ void piece_text(const u8* text_B, const i64* ends_S, i64 S, const u32* units_U, i64 U,
                                      const u8* data, const u8* plain_C, i64 flags, i64* sizes_S, u8* failed_S,
                                      const i64* out_ends_S, u8* out) {
  bool prefix = flags & 1, single = flags & 2, escape = flags & 4;
  GRID_STRIDE_LOOP(s, S) {
    i64 i = s ? ends_S[s - 1] : 0, end = ends_S[s] - 1, at = 0, solid = 0;
    bool begun = false, after_space = single, failed = false;
    u8* to = out_ends_S ? out + (out_ends_S[s] - sizes_S[s]) : 0;
    i64 most = to ? sizes_S[s] : 0;
    if (to && !most) continue;
    while (i < end) {
      if (to && at >= most) break;  // spaces are left
      u8 c = text_B[i];
      if (!c) {
        failed = true;
        break;
      }
      bool is_plain = plain_C[c] && (i + 1 == end || text_B[i + 1] < 0x80);
      i64 read = 0, size = 0;
      const u8* source = text_B + i;
      if (!is_plain && U) {
        u32 node = offset_of(units_U[0]), value = 0;
        for (i64 k = i; k < end; ++k) {
          node ^= text_B[k];
          u32 unit = units_U[node];
          if ((unit & 0x800000FF) != text_B[k]) break;
          node ^= offset_of(unit);
          if (unit >> 8 & 1) {
            read = k + 1 - i;
            value = units_U[node] & 0x7FFFFFFF;
          }
        }
        if (read) {
          source = data + value;
          while (size <= LONGEST && source[size]) ++size;
          if (size > LONGEST) {
            failed = true;
            break;
          }
        }
      }
      if (!read) read = size = character_size(c);
      i += read;
      if (single && !begun && size == 1 && source[0] == SPACE) continue;
      if (prefix && !begun) {
        if (to && at + (escape ? 3 : 1) > most) break;
        at = put_space(to, at, escape);
      }
      begun = true;
      i64 k = 0;
      while (after_space && k < size && source[k] == SPACE) ++k;
      if (k < size) after_space = single && source[size - 1] == SPACE;
      while (k < size) {
        int bytes = source[k] == SPACE ? (escape ? 3 : 1) : character_size(source[k]);
        if (to && at + bytes > most) break;
        if (source[k] == SPACE) {
          at = put_space(to, at, escape);
          ++k;
          continue;
        }
        if (to) for (int j = 0; j < bytes; ++j) to[at + j] = source[k + j];
        bool is_block = escape && bytes == 3 && source[k] == 0xE2 && source[k + 1] == 0x96 && source[k + 2] == 0x81;
        at += bytes;
        k += bytes;
        if (!is_block) solid = at;
      }
    }
    if (!to) {
      sizes_S[s] = failed ? 0 : single ? solid : at;
      failed_S[s] = failed;
    }
  }
}
