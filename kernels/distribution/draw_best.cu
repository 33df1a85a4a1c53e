// A word drawn from the k best ones: P(word)^(1 / temperature), normalised over the k words, by one uniform number and
// the sums of the weights in order of rank.
#include "grid.cuh"
#include "integer_hash.cuh"
#include "draws.cuh"
#include "floats.cuh"
#include "powers.cuh"

__device__ __forceinline__ double weight_of(float value, double best, double inverse) {
  double log10 = to_double(value);
  return log10 > MIN_LOG10 ? raised(__dadd_rn(log10, -best), inverse) : 0;
}

// id_HK (H, K) i32 and value_HK (H, K) f32, log10, falling; numbers_H (H,) i64  ->  id_H (H,) i32. One thread per history.
extern "C" __global__ void draw_best(const int* id_HK, const float* value_HK, i64 H, i64 K, const i64* numbers_H,
                                     u64 seed, double inverse, int* id_H) {
  GRID_STRIDE_LOOP(h, H) {
    const float* value = value_HK + h * K;
    double best = to_double(value[0]), total = 0, upto = 0;
    for (i64 k = 0; k < K; ++k) total = __dadd_rn(total, weight_of(value[k], best, inverse));
    double x = __dmul_rn(uniform_of(stream_of(seed, (u64)numbers_H[h]), 0), total);
    int id = -1;
    for (i64 k = 0; k < K; ++k) {
      upto = __dadd_rn(upto, weight_of(value[k], best, inverse));
      if (upto > x) {
        id = id_HK[h * K + k];
        break;
      }
    }
    id_H[h] = id;
  }
}
