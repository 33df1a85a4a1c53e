// The number of times that each id occurs. CuPy's bincount takes 3 to 5 s to compile, this kernel 0.1 s: see
// kernels/NOTES.md.
#include "grid.cuh"
#if ID_BYTES == 4
typedef u32 id_t;
#else
typedef i64 id_t;
#endif

// ids_T (T,)  ->  counts_V (V,) i64, which come as 0. Equal ids of a warp are added at once: often one id has most.
extern "C" __global__ void count_ids(const id_t* ids_T, i64 T, i64* counts_V) {
  GRID_STRIDE_LOOP(t, T) {
    u32 same = __match_any_sync(__activemask(), ids_T[t]);
    if (lane_id() == __ffs(same) - 1) atomicAdd((u64*)counts_V + ids_T[t], (u64)__popc(same));
  }
}
