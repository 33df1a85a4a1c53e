// The bytes of all pages of a file in the file's order, so that one copy takes them to the host: see
// engine/count/NOTES.md.
#include "grid.cuh"
// first (A,) u8 and second (B,) u8, whose bytes have the numbers 0 to A + B - 1; starts_N, ends_N (N,) i64: range n begins
// at byte starts_N[n] and is copied to the bytes of data before ends_N[n]  ->  data (ends_N[N - 1],) u8. A block writes
// tiles. Words of data are aligned: each is joined from two aligned words, both of which hold a byte of the range.

#define TILE 16384  // as in join_ranges.py

__device__ __forceinline__ void copy_range(u8* to, const u8* from, i64 bytes) {
  const i64 head = min((i64)(-(u64)to & 3), bytes), words = (bytes - head) / 4, tail = head + 4 * words;
  if (threadIdx.x < head) to[threadIdx.x] = from[threadIdx.x];
  if (threadIdx.x < bytes - tail) to[tail + threadIdx.x] = from[tail + threadIdx.x];
  const u32* aligned = (const u32*)((u64)(from + head) & ~3ULL);
  const int shift = 8 * ((u64)(from + head) & 3);
  for (i64 w = threadIdx.x; w < words; w += blockDim.x)
    ((u32*)(to + head))[w] = __funnelshift_r(aligned[w], shift ? aligned[w + 1] : 0, shift);
}

extern "C" __global__ void join_ranges(const u8* first, i64 A, const u8* second, const i64* starts_N,
                                       const i64* ends_N, i64 N, u8* data) {
  const i64 bytes = ends_N[N - 1];
  for (i64 at = blockIdx.x * (i64)TILE; at < bytes; at += gridDim.x * (i64)TILE) {
    const i64 stop = min(at + TILE, bytes);
    i64 n = 0, last = N - 1;  // the first range that ends after `at`
    while (n < last) {
      const i64 middle = (n + last) / 2;
      if (ends_N[middle] > at) last = middle;
      else n = middle + 1;
    }
    for (i64 to = at; to < stop; ++n) {
      const i64 begin = n ? ends_N[n - 1] : 0, end = min(ends_N[n], stop), source = starts_N[n] + to - begin;
      copy_range(data + to, source < A ? first + source : second + (source - A), end - to);
      to = end;
    }
  }
}
