#include "common.cuh"
#include "text.cuh"
#include "utf8.cuh"
#include "words.cuh"
#define ENDS 256u
#define SPELT 0u
#define MOST 100000.0f

// Return where the piece that starts at i ends, with the unknown pieces after an unknown one. next[i] is the end of a piece.
__device__ __forceinline__ int piece_end(const int* next, const u32* piece, int i, int size, u32 unknown) {
  int end = next[i];
  if (piece[end] == unknown)
    while (end < size && piece[next[end]] == unknown) end = next[end];
  return end;
}

// Return the end of the word that starts at the first byte of text_B[first:stop] that is no white space, and move `first`
// there; `first` is `stop` if there is none.
__device__ __forceinline__ i64 next_word(const u8* text_B, i64& first, i64 stop) {
  while (first < stop && is_space(text_B[first])) ++first;
  i64 last = first;
  while (last < stop && !is_space(text_B[last])) ++last;
  return last;
}

// text_B (B,) u8, ends_S (S,) i64, Pieces  ->  piece_N (B + S,) u32 and next_N (B + S,) i32: the piece that ends at each
// position of a sentence, which has one more than bytes, and where the piece that starts there ends; counts_S (S,) i64 codes,
// with the 0; failed_S (S,) u8, which are left out if true before. best_N (B + S,) f32 is scratch. See best_pieces.py. A thread takes a sentence.
extern "C" __global__ void find_best_pieces(const u8* text_B, i64 B, const i64* ends_S, i64 S, const u32* units_U,
                                            const u32* piece_U, const float* score_U, float unknown_score, const u32* code_P, u32 unknown, float* best_N,
                                            u32* piece_N, int* next_N, i64* counts_S, u8* failed_S) {
  u32 root = units_U[0] >> 9;
  GRID_STRIDE_LOOP(s, S) {
    i64 begin = s ? ends_S[s - 1] : 0;
    int size = (int)(ends_S[s] - begin);
    const u8* text = text_B + begin;
    float* best = best_N + begin + s;
    u32* pieces = piece_N + begin + s;
    int* next = next_N + begin + s;
    for (int i = 0; i <= size; ++i) next[i] = -1;
    best[0] = 0.0f;
    bool failed = failed_S[s];
    for (int i = 0; i < size && !failed;) {
      float so_far = best[i];
      if (fabsf(so_far) > MOST) {
        failed = true;
        break;
      }
      int width = character_size(text[i]);
      bool has_single = false;
      u32 base = root;
      for (int end = i + 1; end <= size; ++end) {
        u32 c = text[end - 1], node = base ^ c, unit = units_U[node];
        if ((unit & 255) != c) break;
        base = unit >> 9;
        if (!(unit & ENDS)) continue;
        float candidate = __fadd_rn(score_U[node], so_far);
        if (next[end] < 0 || candidate > best[end]) {
          best[end] = candidate;
          next[end] = i;
          pieces[end] = piece_U[node];
        }
        has_single |= end - i == width;
      }
      if (!has_single) {
        int end = i + width;
        float candidate = __fadd_rn(unknown_score, so_far);
        if (next[end] < 0 || candidate > best[end]) {
          best[end] = candidate;
          next[end] = i;
          pieces[end] = unknown;
        }
      }
      i += width;
    }
    failed_S[s] = failed;
    if (failed) {
      counts_S[s] = 0;
      continue;
    }
    for (int end = size, after = -1; end >= 0;) {
      int start = end ? next[end] : -1;
      next[end] = after;
      after = end;
      end = start;
    }
    i64 codes = 1;
    for (int i = 0; i < size;) {
      int end = piece_end(next, pieces, i, size, unknown);
      if (code_P[pieces[end]] != SPELT) {
        ++codes;
      } else {
        for (i64 first = i, last; (last = next_word(text, first, end)) > first; first = last) ++codes;
      }
      i = end;
    }
    counts_S[s] = codes;
  }
}

// What find_best_pieces returned, and the words of a model  ->  codes_T (T,) u32, of which sentence s has the counts_S[s]
// that end at ends_of_codes_S[s].
extern "C" __global__ void write_piece_codes(const u8* text_B, i64 B, const i64* ends_S, i64 S, const u32* code_P,
                                             u32 unknown, const u64* slots_C, i64 C, const i64* offsets_V, i64 V1,
                                             const u8* data, i64 data_bytes, const u32* piece_N, const int* next_N,
                                             const i64* counts_S, const i64* ends_of_codes_S, u32* codes_T) {
  Words words = {slots_C, C, offsets_V, data, data_bytes};
  GRID_STRIDE_LOOP(s, S) {
    if (!counts_S[s]) continue;
    i64 begin = s ? ends_S[s - 1] : 0, t = ends_of_codes_S[s] - counts_S[s];
    int size = (int)(ends_S[s] - begin);
    const u32* pieces = piece_N + begin + s;
    const int* next = next_N + begin + s;
    for (int i = 0; i < size;) {
      int end = piece_end(next, pieces, i, size, unknown);
      u32 code = code_P[pieces[end]];
      if (code != SPELT) {
        codes_T[t++] = code;
      } else {
        for (i64 first = begin + i, last; (last = next_word(text_B, first, begin + end)) > first; first = last)
          codes_T[t++] = 1 + (V1 ? find_word(words, text_B, B, first, last)
                                 : find_hash(murmur_hash(text_B, B, first, last), slots_C, C));
      }
      i = end;
    }
    codes_T[t] = 0;
  }
}
