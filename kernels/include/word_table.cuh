// A model's word table; kernels/common/word_table.py documents the layout.
// slots_C and data are 16-byte aligned.
struct Words {
  const u64* slots_C;
  i64 C;
  const i64* offsets_V;
  const u8* data;
  i64 data_bytes;
};

#define HELD 24

// Return the bytes text_B[at:stop], at most 8, first byte lowest. Reads aligned 8-byte words, except where such a read
// would pass the end B. text_B is 8-byte aligned.
__device__ __forceinline__ u64 chunk(const u8* text_B, i64 B, i64 at, i64 stop) {
  i64 even = at & ~7LL, bytes = stop - at;
  u64 piece = 0;
  if (even + 16 <= B) {
    const u64* from = (const u64*)(text_B + even);
    int shift = 8 * (int)(at & 7);
    piece = from[0] >> shift;
    if (shift) piece |= from[1] << (64 - shift);
  } else {
    for (int i = 0; i < 8 && i < bytes; ++i) piece |= (u64)text_B[at + i] << (8 * i);
  }
  return bytes >= 8 ? piece : piece & ((1ULL << (8 * bytes)) - 1);
}

__device__ __forceinline__ u64 mix(u64 h, u64 piece) {
  h = (h ^ piece) * 0x9E3779B97F4A7C15ULL;
  h = (h ^ (h >> 32)) * 0xD6E8FEB86659FD93ULL;
  return h ^ (h >> 32);
}

// Return the id of the word text_B[start:stop], or 0 if the table lacks it.
__device__ __forceinline__ u32 find_word(const Words& words, const u8* text_B, i64 B, i64 start, i64 stop) {
  i64 bytes = stop - start;
  u64 first = chunk(text_B, B, start, stop), second = 0, third = 0;
  u64 h = mix(bytes, first);
  if (bytes > 8) {
    second = chunk(text_B, B, start + 8, stop);
    h = mix(h, second);
    if (bytes > 16) {
      third = chunk(text_B, B, start + 16, stop);
      for (i64 at = start + 16; at < stop; at += 8) h = mix(h, chunk(text_B, B, at, stop));
    }
  }
  for (u64 slot = 4 * h & (words.C - 1);; slot = (slot + 4) & (words.C - 1)) {
    ulonglong2 head = *(const ulonglong2*)(words.slots_C + slot), tail = *(const ulonglong2*)(words.slots_C + slot + 2);
    if (tail.y == 0) return 0;
    if (head.x != first || head.y != second || tail.x != third || tail.y >> 32 != (u64)bytes) continue;
    u32 id = (u32)tail.y;
    if (bytes <= HELD) return id;
    i64 at = start + HELD, known = words.offsets_V[id] + HELD, known_stop = known + bytes - HELD;
    while (at < stop && chunk(text_B, B, at, stop) == chunk(words.data, words.data_bytes, known, known_stop)) {
      at += 8;
      known += 8;
    }
    if (at >= stop) return id;
  }
}

// MurmurHash64A of text_B[start:stop], seed 0; kernels/common/murmur.py is its twin.
__device__ __forceinline__ u64 murmur_hash(const u8* text_B, i64 B, i64 start, i64 stop) {
  const u64 m = 0xC6A4A7935BD1E995ULL;
  u64 h = (u64)(stop - start) * m;
  for (; start + 8 <= stop; start += 8) {
    u64 k = chunk(text_B, B, start, stop) * m;
    h = (h ^ (k ^ (k >> 47)) * m) * m;
  }
  if (start < stop) h = (h ^ chunk(text_B, B, start, stop)) * m;
  h = (h ^ (h >> 47)) * m;
  return h ^ (h >> 47);
}

// Return the id of the word of a hash, or 0; slots_C holds (hash, id) pairs.
__device__ __forceinline__ u32 find_hash(u64 hash, const u64* slots_C, i64 C) {
  for (u64 slot = 2 * hash & (C - 1);; slot = (slot + 2) & (C - 1))
    if (!slots_C[slot + 1] || slots_C[slot] == hash) return (u32)slots_C[slot + 1];
}
