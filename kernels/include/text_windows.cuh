// A warp that reads a text in windows of 32 bytes, a byte a lane. Masks have a bit for each lane.
#define EACH_WARP(i, n) \
  for (i64 i = (blockIdx.x * (i64)blockDim.x + threadIdx.x) / 32; i < (n); i += gridDim.x * (i64)blockDim.x / 32)

// Return the sum of the values of this lane and those below.
__device__ __forceinline__ u32 sum_through(u32 value) {
#pragma unroll
  for (int d = 1; d < 32; d *= 2) {
    u32 lower = __shfl_up_sync(FULL_WARP, value, d);
    if (lane_id() >= d) value += lower;
  }
  return value;
}

__device__ __forceinline__ int highest_lane(u32 mask) { return 31 - __clz(mask); }

// Return whether the nearest lane below this one that is in `among` is in `wanted`, too; `before` if there is none.
__device__ __forceinline__ bool nearest_below(u32 among, u32 wanted, bool before) {
  u32 below = among & lanes_below();
  return below ? wanted >> highest_lane(below) & 1 : before;
}
