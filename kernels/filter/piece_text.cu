// The normaliser of a SentencePiece model (`Normalizer::Normalize`): the longest rule at each place, in a double array
// of bytes (Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989; darts-clone's units).
#include "grid.cuh"
#include "utf8.cuh"
#include "text_windows.cuh"
#define SPACE 32
#define LONGEST 256

__device__ __forceinline__ u32 offset_of(u32 unit) { return (unit >> 10) << ((unit & 0x200) >> 6); }

// What stands for a part of a text: `size` bytes, which a rule gave if it read another number of bytes than a character has.
struct Part {
  const u8* source;
  int read, size;
};

// Return what stands for the part of text_B[:end] that begins at i: of the longest rule, else one character. The size is above LONGEST
// if it is too long.
__device__ __forceinline__ Part part_at(const u8* text_B, i64 i, i64 end, const u32* units_U, i64 U, const u8* data,
                                        const u8* plain_C) {
  const int own = character_size(text_B[i]);
  Part part = {text_B + i, 0, 0};
  if (U && !(plain_C[text_B[i]] && (i + 1 == end || text_B[i + 1] < 0x80))) {
    u32 node = offset_of(units_U[0]), value = 0;
    for (i64 k = i; k < end; ++k) {
      node ^= text_B[k];
      const u32 unit = units_U[node];
      if ((unit & 0x800000FF) != text_B[k]) break;
      node ^= offset_of(unit);
      if (unit >> 8 & 1) {
        part.read = (int)(k + 1 - i);
        value = units_U[node] & 0x7FFFFFFF;
      }
    }
    if (part.read) {
      part.source = data + value;
      while (part.size <= LONGEST && part.source[part.size]) ++part.size;
    }
  }
  if (!part.read) part.read = part.size = own;
  return part;
}

// text_B (B,) u8, ends_S (S,) i64, PieceRules  ->  sizes_S (S,) i64 and failed_S (S,) u8; or, with out_ends_S (S,) i64, the
// sentences in out: see piece_text.py. A warp takes a sentence.
extern "C" __global__ void piece_text(const u8* text_B, const i64* ends_S, i64 S, const u32* units_U, i64 U,
                                      const u8* data, const u8* plain_C, i64 flags, i64* sizes_S, u8* failed_S,
                                      const i64* out_ends_S, u8* out) {
  const bool prefix = flags & 1, single = flags & 2, escape = flags & 4, writes = out_ends_S;
  const int mark = escape ? 3 : 1;  // bytes that a space becomes
  EACH_WARP(s, S) {
    const i64 begin = s ? ends_S[s - 1] : 0, end = ends_S[s] - 1, most = writes ? sizes_S[s] : 0;
    if (writes && !most) continue;
    u8* to = out + (writes ? out_ends_S[s] - most : 0);
    i64 next = begin, at = 0, solid = 0;  // the next part, the bytes so far, those to the last character that is not a space
    bool begun = false, after_space = single, failed = false;
    for (i64 base = begin; base < end && !(writes && at >= most); base += 32) {
      const i64 i = base + lane_id();
      const bool is_lead = i < end && (text_B[i] & 0xC0) != 0x80;
      Part part = {text_B, 1, 0};
      if (is_lead) part = part_at(text_B, i, end, units_U, U, data, plain_C);
      u32 starts = 0;  // the lanes where parts begin
      if (__all_sync(FULL_WARP, !is_lead || part.read == character_size(text_B[i]))) {
        starts = __ballot_sync(FULL_WARP, is_lead && i >= next);
        if (starts) next = base + highest_lane(starts) + __shfl_sync(FULL_WARP, part.read, highest_lane(starts));
      } else {
        while (next < base + 32 && next < end) {
          starts |= 1u << (next - base);
          next += __shfl_sync(FULL_WARP, part.read, (int)(next - base));
        }
      }
      const bool is_start = starts >> lane_id() & 1;
      if (__any_sync(FULL_WARP, is_start && (!text_B[i] || part.size > LONGEST))) {
        failed = true;
        break;
      }
      const bool is_space = part.size == 1 && part.source[0] == SPACE;
      const u32 begins = __ballot_sync(FULL_WARP, is_start && !(single && is_space));
      const bool has_begun = begun || begins & lanes_below();
      const bool is_kept = is_start && (has_begun || !(single && is_space));
      const bool adds_mark = prefix && is_kept && !has_begun;
      const u32 filled = __ballot_sync(FULL_WARP, is_kept && part.size);
      const u32 spaces = __ballot_sync(FULL_WARP, is_kept && part.size && part.source[part.size - 1] == SPACE);
      int first = 0, size = adds_mark ? mark : 0, solid_size = 0;
      if (is_kept) {
        if (single && nearest_below(filled, spaces, after_space))
          while (first < part.size && part.source[first] == SPACE) ++first;
        for (int k = first; k < part.size;) {
          const u8* from = part.source + k;
          const int bytes = character_size(*from);
          size += *from == SPACE ? mark : bytes;
          const bool is_block = escape && bytes == 3 && from[0] == 0xE2 && from[1] == 0x96 && from[2] == 0x81;
          if (*from != SPACE && !is_block) solid_size = size;
          k += bytes;
        }
      }
      const u32 through = sum_through(size), solids = __ballot_sync(FULL_WARP, solid_size);
      if (writes && is_kept) {
        i64 place = at + through - size;
        for (int k = adds_mark ? first - 1 : first; k < part.size;) {
          const bool is_mark = k < first || part.source[k] == SPACE;
          const int bytes = is_mark ? mark : character_size(part.source[k]);
          if (place + bytes > most) break;  // spaces are left
          if (is_mark && escape)
            to[place] = 0xE2, to[place + 1] = 0x96, to[place + 2] = 0x81;
          else
            for (int j = 0; j < bytes; ++j) to[place + j] = is_mark ? SPACE : part.source[k + j];
          place += bytes;
          k += is_mark ? 1 : bytes;
        }
      }
      if (solids) {
        const int last = highest_lane(solids);
        solid = at + __shfl_sync(FULL_WARP, through - size + solid_size, last);
      }
      at += __shfl_sync(FULL_WARP, through, 31);
      begun |= begins != 0;
      if (filled) after_space = single && spaces >> highest_lane(filled) & 1;
    }
    if (!writes && !lane_id()) {
      sizes_S[s] = failed ? 0 : single ? solid : at;
      failed_S[s] = failed;
    }
  }
}
