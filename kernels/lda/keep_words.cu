// The words of a text by the pattern \w\w+, in lowercase; all other bytes become spaces: what scikit-learn's
// CountVectorizer takes for words.
#include "grid.cuh"
// text_B (B,) u8, page_of_U u16, steps_P i32  ->  kept_B (B,) u8, longer (1,) u64, added to.
// Each byte finds its character, and the one on either side: a word has two characters or more.

#define PAGE 256
#define NO_WORD (1 << 24)
#define LONGER (1 << 25)

struct Character {
  i64 start;
  int size;  // bytes; 1 for a byte that is not UTF-8
  int step;  // to its lowercase, NO_WORD or LONGER
  int code;
};

// Return the bytes of the UTF-8 character at a byte; 0 if there is none, or an invalid one.
__device__ __forceinline__ int size_at(const u8* text_B, i64 B, i64 at) {
  u8 first = text_B[at];
  if (first < 0x80) return 1;
  if (first < 0xC2 || first > 0xF4) return 0;
  int size = first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (at + size > B) return 0;
  for (int i = 1; i < size; ++i)
    if ((text_B[at + i] & 0xC0) != 0x80) return 0;
  u8 second = text_B[at + 1];  // no second spelling of a character, no surrogate, none above 0x10FFFF
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F)) return 0;
  if ((first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F)) return 0;
  return size;
}

// Return the character that byte b belongs to.
__device__ __forceinline__ Character character_of(const u8* text_B, i64 B, i64 b, const u16* page_of_U,
                                                  const int* steps_P) {
  Character found = {b, 1, NO_WORD, text_B[b]};
  if (found.code >= 0x80) {
    i64 start = b;
    while (start > 0 && b - start < 3 && (text_B[start] & 0xC0) == 0x80) --start;
    int size = size_at(text_B, B, start);
    if (start + size <= b) return found;
    found.start = start;
    found.size = size;
    found.code = text_B[start] & (0x7F >> size);
    for (int i = 1; i < size; ++i) found.code = found.code << 6 | (text_B[start + i] & 0x3F);
  }
  found.step = steps_P[PAGE * page_of_U[found.code / PAGE] + found.code % PAGE];
  return found;
}

extern "C" __global__ void keep_words(const u8* text_B, i64 B, const u16* page_of_U, const int* steps_P, u8* kept_B,
                                      u64* longer) {
  GRID_STRIDE_LOOP(b, B) {
    Character here = character_of(text_B, B, b, page_of_U, steps_P);
    if (here.step == LONGER && here.start == b) atomicAdd(longer, 1ULL);
    bool kept = here.step < NO_WORD;
    if (kept) {
      i64 after = here.start + here.size;
      kept = (here.start > 0 && character_of(text_B, B, here.start - 1, page_of_U, steps_P).step < NO_WORD) ||
             (after < B && character_of(text_B, B, after, page_of_U, steps_P).step < NO_WORD);
    }
    u8 byte = text_B[b] == '\n' ? '\n' : ' ';
    if (kept) {
      int code = here.code + here.step, later = (int)(here.start + here.size - 1 - b);
      int bits = code >> (6 * later);
      byte = here.size == 1 ? bits : b > here.start ? 0x80 | (bits & 0x3F) : bits | (0xF00 >> here.size & 0xFF);
    }
    kept_B[b] = byte;
  }
}
