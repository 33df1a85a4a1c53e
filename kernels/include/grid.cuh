// Integer types by size, the grid-stride loop, and the lanes of a warp: every kernel includes this header first. Indexes
// are 64-bit, so a kernel takes any number of items, and the loop lets any grid serve them.
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define GRID_STRIDE_LOOP(i, n) \
  for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < (n); i += (i64)gridDim.x * blockDim.x)
#define FULL_WARP 0xffffffffu

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31; }
__device__ __forceinline__ u32 lanes_below() { return (1u << lane_id()) - 1; }
