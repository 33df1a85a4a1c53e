// CRC-32 of the segments of a block, as zlib computes it: the remainder of the bytes, as a polynomial over GF(2).
#include "grid.cuh"
// A number stands for a polynomial over GF(2) modulo zlib's; bit 31 is x**0.
#define POLYNOMIAL 0xEDB88320u
#define ROW 512       // bytes that a warp reads at once: 16 a lane
#define SLICE 16384   // bytes of one warp; as in crc32.py

__device__ __forceinline__ u32 multiply(u32 a, u32 b) {
  u32 product = 0;
  for (int bit = 31; bit >= 0; --bit) {
    if (a >> bit & 1) product ^= b;
    b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
  }
  return product;
}

// crc * x**(8 * num_bytes); powers[i] = x**(8 * 2**i).
__device__ u32 shift(u32 crc, i64 num_bytes, const u32* powers) {
  for (; num_bytes; num_bytes >>= 1, ++powers) {
    if (num_bytes & 1) crc = multiply(crc, *powers);
  }
  return crc;
}

// 16 bytes of the block; those outside [start, end) are read as 0.
__device__ __forceinline__ uint4 load(const u8* data_B, i64 at, i64 start, i64 end) {
  if (at >= start && at + 16 <= end) return *(const uint4*)(data_B + at);
  alignas(16) u8 bytes[16];
  for (int i = 0; i < 16; ++i) bytes[i] = at + i >= start && at + i < end ? data_B[at + i] : 0;
  return *(uint4*)bytes;
}

__device__ __forceinline__ u32 look_up(const u32* table, u32 word) {
  return table[word & 255] ^ table[256 + (word >> 8 & 255)] ^ table[512 + (word >> 16 & 255)] ^ table[768 + (word >> 24)];
}

// Segments of data_B (B,) u8 with starts_S, lengths_S (S,) i64  ->  crcs_S (S,) u32, which come as 0.
// A segment is cut into slices from its end, up to a multiple of 16 bytes: a 0 ahead of a text adds nothing
// to a CRC that starts at 0, and one after it is divided out. ends_S (S,) i64 counts slices up to and with
// each segment's. tables (16, 256): v * x**(8 * (ROW - i)) for a byte v at place i of its lane's 16, so a
// lane steps from row to row; unshift (ROW,): x**(-8 * i); powers (64,) as in `shift`.
extern "C" __global__ void crc32(const u8* data_B, const i64* starts_S, const i64* lengths_S, const i64* ends_S,
                                 i64 S, const u32* tables, const u32* unshift, const u32* powers, u32* crcs_S) {
  __shared__ u32 table[16 * 256];
  for (int i = threadIdx.x; i < 16 * 256; i += blockDim.x) table[i] = tables[i];
  __syncthreads();
  i64 warps = (i64)gridDim.x * (blockDim.x / 32), K = ends_S[S - 1];
  for (i64 k = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32; k < K; k += warps) {
    i64 s = 0, high = S - 1;  // the first segment with ends_S[s] > k
    while (s < high) {
      i64 middle = (s + high) / 2;
      if (ends_S[middle] > k) high = middle; else s = middle + 1;
    }
    i64 start = starts_S[s], length = lengths_S[s], end = start + length;
    i64 after = (ends_S[s] - 1 - k) * SLICE, pad = -end & 15, stop = end + pad - after;
    i64 rows = min((i64)SLICE, stop - start + ROW - 1) / ROW;  // 0 or less: the slice lies ahead of the segment
    u32 crc = 0;
    for (i64 row = rows; row > 0; --row) {
      uint4 word = load(data_B, stop - row * ROW + 16 * lane_id(), start, end);
      crc = look_up(table, word.x ^ crc) ^ look_up(table + 1024, word.y) ^ look_up(table + 2048, word.z) ^
            look_up(table + 3072, word.w);
    }
    crc = multiply(crc, unshift[16 * lane_id() + pad]);  // each lane as if its last bytes were the segment's
    for (int d = 16; d; d /= 2) crc ^= __shfl_xor_sync(FULL_WARP, crc, d);
    if (lane_id() == 0) {
      crc = shift(crc, after, powers);
      if (k == (s ? ends_S[s - 1] : 0)) crc ^= shift(~0u, length, powers) ^ ~0u;  // a CRC starts at ~0 and is inverted
      atomicXor(crcs_S + s, crc);
    }
  }
}
