// Philox4x32-10 (Salmon et al., 2011); kernels/common/philox.py is the same generator.
#define DRAWS 0
#define FIRST_TOPICS 1

__device__ __forceinline__ u64 random_bits(u64 seed, u32 stream, u32 sweep, u64 document, u32 position) {
  u32 c0 = (u32)document, c1 = position, c2 = sweep, c3 = (u32)(document >> 32) << 2 | stream;
  u32 k0 = (u32)seed, k1 = (u32)(seed >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    u64 a = (u64)c0 * 0xD2511F53u, b = (u64)c2 * 0xCD9E8D57u;
    c0 = (u32)(b >> 32) ^ c1 ^ k0, c1 = (u32)b, c2 = (u32)(a >> 32) ^ c3 ^ k1, c3 = (u32)a;
    k0 += 0x9E3779B9u, k1 += 0xBB67AE85u;
  }
  return c0 | (u64)c1 << 32;
}
