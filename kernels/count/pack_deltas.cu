// Pages of Parquet's DELTA_BINARY_PACKED (https://github.com/apache/parquet-format, Encodings.md): blocks of 128
// differences of neighbours less their least one, in four parts of one bit width each; numbers of the header are
// ULEB128.
// Two passes, as bytes of a block are known only when it is packed: sizes, then the bytes. With 16 threads of the host
// instead, Parquet of ids took 143 M rows/s; the GPU reaches 510: see engine/count/NOTES.md.
#include "grid.cuh"
#define BLOCK 128        // values of a block, as in pack_deltas.py
#define PARTS 4          // of a block, with a width each
#define WARPS 8          // of a thread block
#define MAX_BYTES 1072  // of a block: header 18, least difference 10, widths 4, values 1,024

__device__ __forceinline__ i64 value_at(const u64* high_R, const u64* low_R, int shift, u64 mask, i64 less, i64 r) {
  u64 bits = shift >= 0 ? high_R[r] >> shift : high_R[r] << -shift | low_R[r] >> (64 + shift);
  return (i64)(bits & mask) - less;
}

// A number with 7 bits in each byte, the lowest first. Return its bytes; write them unless `to` is null.
__device__ __forceinline__ int put(u8* to, u64 value) {
  int size = 1;
  for (; value > 127; value >>= 7, ++size) {
    if (to) *to++ = (u8)(value | 128);
  }
  if (to) *to = (u8)value;
  return size;
}
__device__ __forceinline__ int put_signed(u8* to, i64 value) { return put(to, (u64)value << 1 ^ (u64)(value >> 63)); }

__device__ __forceinline__ i64 warp_least(i64 value) {
  for (int step = 16; step > 0; step /= 2) value = min(value, (i64)__shfl_xor_sync(FULL_WARP, value, step));
  return value;
}
__device__ __forceinline__ i64 warp_most(i64 value) {
  for (int step = 16; step > 0; step /= 2) value = max(value, (i64)__shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

// A warp packs each block of a page. Page p has rows starts_P1[p] on and blocks blocks_P1[p] on, at least one of each;
// blocks_P1 (P + 1,) i64. high_R, low_R, shift, mask, less: as `Numbers` of pack_deltas.py.
//   ->  WRITE 0: bytes_K (K,) i64, the bytes of each block; least_P, most_P (P,) i64, set before to the greatest and the
//       least i64
//       WRITE 1: the bytes of each block before ends_K (K,) i64 in data
extern "C" __global__ void pack_deltas(const u64* high_R, const u64* low_R, i64 shift, u64 mask, i64 less,
                                       const i64* starts_P1, const i64* blocks_P1, i64 P, i64* bytes_K, i64* least_P,
                                       i64* most_P, const i64* ends_K, u8* data) {
  __shared__ u64 shared_differences[WARPS][BLOCK];
#if WRITE
  __shared__ u8 shared_bytes[WARPS][MAX_BYTES];
#endif
  i64 lane = lane_id(), K = blocks_P1[P];
  u64* differences = shared_differences[threadIdx.x / 32];
  for (i64 k = blockIdx.x * (i64)WARPS + threadIdx.x / 32; k < K; k += gridDim.x * (i64)WARPS) {
    i64 p = 0, above = P;  // the last page whose first block is not after k
    while (above - p > 1) {
      i64 middle = (p + above) / 2;
      if (blocks_P1[middle] <= k) p = middle;
      else above = middle;
    }
    i64 start = starts_P1[p], end = starts_P1[p + 1], block = k - blocks_P1[p];
    i64 first = start + 1 + BLOCK * block, size = min((i64)BLOCK, end - first);
    i64 least = 0x7fffffffffffffffLL, low = least, high = -least - 1;
    i64 difference[PARTS];
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      i64 i = 32 * part + lane;
      if (i >= size) continue;
      i64 value = value_at(high_R, low_R, shift, mask, less, first + i);
      low = min(low, value), high = max(high, value);
      difference[part] = (i64)((u64)value - (u64)value_at(high_R, low_R, shift, mask, less, first + i - 1));
      least = min(least, difference[part]);
    }
    least = warp_least(least);
    int width[PARTS], words = 0;
#pragma unroll
    for (int part = 0; part < PARTS; ++part) {
      u64 rest = 32 * part + lane < size ? (u64)difference[part] - (u64)least : 0;
      differences[32 * part + lane] = rest;
      u32 upper = __reduce_or_sync(FULL_WARP, (u32)(rest >> 32)), lower = __reduce_or_sync(FULL_WARP, (u32)rest);
      width[part] = upper ? 64 - __clz(upper) : 32 - __clz(lower);
      words += width[part];
    }
    __syncwarp();
    i64 head = value_at(high_R, low_R, shift, mask, less, start);
#if WRITE
    u8* bytes = shared_bytes[threadIdx.x / 32];
    int at = 0;
    if (lane == 0) {
      if (block == 0) {
        at += put(bytes, BLOCK);
        at += put(bytes + at, PARTS);
        at += put(bytes + at, (u64)(end - start));
        at += put_signed(bytes + at, head);
      }
      if (size > 0) {
        at += put_signed(bytes + at, least);
        for (int part = 0; part < PARTS; ++part) bytes[at++] = (u8)width[part];
      }
    }
    at = __shfl_sync(FULL_WARP, at, 0);
    for (int word = lane; word < words; word += 32) {  // 32 bits of the values of a part
      int part = 0, own = word;
      while (own >= width[part]) own -= width[part++];
      int bits = width[part], i = 32 * own / bits, used = 32 * own - i * bits;
      const u64* values = differences + 32 * part;
      u64 held = values[i] >> used;
      for (int filled = bits - used; filled < 32; filled += bits) held |= values[++i] << filled;
      for (int byte = 0; byte < 4; ++byte) bytes[at + 4 * word + byte] = (u8)(held >> 8 * byte);
    }
    at += 4 * words;
    __syncwarp();
    u8* to = data + ends_K[k] - at;
    for (int i = lane; i < at; i += 32) to[i] = bytes[i];
#else
    low = warp_least(block == 0 ? min(low, head) : low), high = warp_most(block == 0 ? max(high, head) : high);
    if (lane == 0) {
      int bytes = size > 0 ? put_signed(nullptr, least) + PARTS + 4 * words : 0;
      if (block == 0) bytes += put(nullptr, BLOCK) + put(nullptr, PARTS) + put(nullptr, (u64)(end - start)) +
                               put_signed(nullptr, head);
      bytes_K[k] = bytes;
      atomicMin(least_P + p, low);
      atomicMax(most_P + p, high);
    }
#endif
    __syncwarp();  // before the next block overwrites the shared memory
  }
}
