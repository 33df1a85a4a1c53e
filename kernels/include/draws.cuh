// Random numbers by counter, those of kernels/common/draws.py. Include after grid.cuh.
#define GAMMA 0x9e3779b97f4a7c15ULL  // SplitMix64's
__device__ __forceinline__ u64 stream_of(u64 seed, u64 number) { return mix64(mix64(seed + GAMMA) + number + GAMMA); }
__device__ __forceinline__ u64 random_of(u64 stream, u64 draw) { return mix64(stream + draw + GAMMA); }
__device__ __forceinline__ double uniform_of(u64 stream, u64 draw) {
  return __dmul_rn((double)(random_of(stream, draw) >> 11), 0x1p-53);
}
