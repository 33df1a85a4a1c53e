// A 64-bit hash of each word of a text, by which `intern` numbers them: h = seed, then h = mix64(h xor p) for each
// piece p of 8 bytes. mix64 is the finaliser of MurmurHash3 (Appleby, https://github.com/aappleby/smhasher). A thread
// takes a word: words are short, so most have one piece.
#include "grid.cuh"
#include "integer_hash.cuh"
#include "delimiters.cuh"
// One 64-bit hash per token; 0 for a newline. Words of up to 8 bytes never collide, because mix64 is a
// bijection and no word holds a NUL.
extern "C" __global__ void hash_words(const u8* text_B, i64 B, const u32* positions_T, i64 T, u64 seed, u64* hash_T) {
  GRID_STRIDE_LOOP(t, T) {
    i64 at = positions_T[t];
    u8 c = text_B[at];
    u64 hash = 0;
    if (c != '\n') {
      hash = seed;
      do {
        u64 piece = 0;
        int i = 0;
        for (; i < 8 && !is_delimiter(c); ++i) {
          piece |= (u64)c << (8 * i);
          ++at;
          c = at < B ? text_B[at] : ' ';
        }
        hash = mix64(hash ^ piece);
      } while (!is_delimiter(c));
      if (hash == 0) hash = 1;
    }
    hash_T[t] = hash;
  }
}
