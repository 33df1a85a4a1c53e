// n_dk, the tokens of topic k in document d, as a sparse row for each document: what `sample_topics` reads. Rows are
// sparse because a document has few topics (Xie et al., "CuLDA_CGS", 2018). A warp takes a document and counts in
// shared memory; it reads the counts in order of topic, so the entries need no sort.
#include "grid.cuh"
#define ALIGN 16  // documents start at multiples of this

// Shapes as in count_topics.py; one document per warp. The topics are counted in shared memory, `tile` of them at a time:
// 4 * tile bytes for each warp.
extern "C" __global__ void count_topics(u32* rows_D2, const u32* lengths_D, i64 D, const u16* topics_T, ENTRY* entries_T,
                                        u32 bits, i64 num_topics, i64 tile) {
  extern __shared__ u32 counts[];
  u32* count = counts + threadIdx.x / 32 * tile;
  u32 lane = lane_id(), most = (1u << bits) - 1;
  for (i64 k = lane; k < tile; k += 32) count[k] = 0;
  __syncwarp();
  i64 warps = (i64)gridDim.x * blockDim.x / 32;
  for (i64 d = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; d < D; d += warps) {
    i64 begin = (i64)rows_D2[2 * d] * ALIGN, length = lengths_D[d], e = begin;
    for (i64 k0 = 0; k0 < num_topics && e - begin < length; k0 += tile) {
      for (i64 t = lane; t < length; t += 32) {
        i64 k = topics_T[begin + t] - k0;
        if (0 <= k && k < tile) atomicAdd(&count[k], 1u);
      }
      __syncwarp();
      for (i64 k = lane; k < tile; k += 32) {
        u32 here = count[k];
        count[k] = 0;
        u32 some = __ballot_sync(FULL_WARP, here > 0);
        if (!some) continue;
        i64 mine = e + __popc(some & lanes_below());
        u32 entries = here > 0;
        if (__any_sync(FULL_WARP, here > most)) {  // counts that take several entries
          entries = (here + most - 1) / most;
          u32 through = entries;
          for (int step = 1; step < 32; step *= 2) {
            u32 lower = __shfl_up_sync(FULL_WARP, through, step);
            if (lane >= step) through += lower;
          }
          mine = e + through - entries;
          e += __shfl_sync(FULL_WARP, through, 31);
        } else {
          e += __popc(some);
        }
        for (u32 i = 0; i < entries; ++i) {
          u32 part = min(here, most);
          entries_T[mine + i] = (ENTRY)((u32)(k0 + k) << bits | part);
          here -= part;
        }
      }
      __syncwarp();
    }
    i64 stop = begin + (length + ALIGN - 1) / ALIGN * ALIGN;
    i64 zero = e + lane;
    if (zero < stop && zero < (e + 7) / 8 * 8) entries_T[zero] = 0;
    if (lane == 0) rows_D2[2 * d + 1] = (u32)(e - begin);
  }
}
