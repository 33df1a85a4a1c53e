// The 64 best keys of a warp, which are distinct and not 0. Lane l has the keys l and 32 + l, greatest first; 0: none.
// Include after grid.cuh. `wide`: more than 32 keys are wanted.
struct Best {
  u64 key[2];
};

__device__ __forceinline__ void insert(Best& best, u64 key, bool wide) {
  int lane = lane_id(), at = __popc(__ballot_sync(FULL_WARP, best.key[0] > key));
  u64 before = __shfl_up_sync(FULL_WARP, best.key[0], 1);
  if (wide) {
    u64 last = __shfl_sync(FULL_WARP, best.key[0], 31), above = __shfl_up_sync(FULL_WARP, best.key[1], 1);
    int second = __popc(__ballot_sync(FULL_WARP, best.key[1] > key)) - (at < 32);
    if (lane > second) best.key[1] = lane ? above : last;
    if (lane == second) best.key[1] = key;
  }
  if (lane > at) best.key[0] = before;
  if (lane == at) best.key[0] = key;
}

__device__ __forceinline__ u64 key_at(const Best& best, int i, bool wide) {
  return __shfl_sync(FULL_WARP, wide && i >= 32 ? best.key[1] : best.key[0], i & 31);
}

// Set the first 32 keys: those of all lanes, 0 for none. `room`: for 32 keys in shared memory.
__device__ __forceinline__ void sort_keys(Best& best, u64 key, u64* room) {
  int place = 0;
#pragma unroll 8
  for (int other = 0; other < 32; ++other) place += __shfl_sync(FULL_WARP, key, other) > key;
  __syncwarp();
  room[lane_id()] = 0;
  __syncwarp();
  if (key) room[place] = key;
  __syncwarp();
  best.key[0] = room[lane_id()];
}
