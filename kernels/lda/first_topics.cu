// The first topic of every token: floor(K r / 2^64) for a random number r of Philox4x32-10 (Salmon et al., "Parallel
// Random Numbers: As Easy as 1, 2, 3", 2011), a function of seed, document and token, so it does not depend on the
// workers.
#include "grid.cuh"
#include "philox.cuh"
#define ALIGN 16  // documents start at multiples of this

// rows_D2 (D, 2), lengths_D (D,)  ->  topics_T (T,) of each document's tokens. One document per warp.
extern "C" __global__ void first_topics(const u32* rows_D2, const u32* lengths_D, i64 D, u16* topics_T, u64 num_topics,
                                        u64 seed, u64 first) {
  i64 warps = (i64)gridDim.x * blockDim.x / 32;
  for (i64 d = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32; d < D; d += warps) {
    i64 begin = (i64)rows_D2[2 * d] * ALIGN;
    for (u32 t = lane_id(); t < lengths_D[d]; t += 32)
      topics_T[begin + t] = (u16)__umul64hi(random_bits(seed, FIRST_TOPICS, 0, first + d, t), num_topics);
  }
}
