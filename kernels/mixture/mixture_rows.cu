// All probabilities of a neural mixture (Neubig and Dyer, 2016, equation 4), of logits z of V words and of N
// distributions:
//   P(w) = exp(z_w - log_sum) + sum over n of exp(z_n - log_sum) P_n(w).
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
// Logits of R rows, rows (R, N, V) of count distributions, log_sum_R (R,) f64  ->  probs_RV (R, V) f32. Strides are in
// elements. HALF_ROWS: the format of the rows, as HALF is that of the logits. VECTOR: rows of all arrays start at
// multiples of 16 bytes. A block takes TILE words of a row at a time. Grid: any, of THREADS threads.
// Floor: bytes of the logits, the rows and the result / 4.3 TB/s.

#define THREADS 256
#define LOADS 4
#define TILE (THREADS * LOADS * 4)  // as in mixture_rows.py

#ifdef HALF_ROWS
typedef u16 row_t;
__device__ __forceinline__ float probability(u16 bits) {
  float value;
  asm("cvt.f32." HALF_ROWS " %0, %1;" : "=f"(value) : "h"(bits));
  return value;
}
#else
typedef float row_t;
__device__ __forceinline__ float probability(float value) { return value; }
#endif

template <typename T> struct alignas(4 * sizeof(T)) Four {
  T part[4];
};

// Load four neighbours; from `left` on, 0.
template <typename T> __device__ __forceinline__ Four<T> load_four(const T* from, i64 left) {
  Four<T> four;
  if (VECTOR && left >= 4) return *(const Four<T>*)from;
#pragma unroll
  for (int e = 0; e < 4; ++e) four.part[e] = e < left ? from[e] : T(0);
  return four;
}

extern "C" __global__ void __launch_bounds__(THREADS) mixture_rows(
    const real* logits, i64 stride, i64 words, i64 N, const row_t* rows, i64 stride_R, i64 stride_N, i64 R,
    const double* log_sum_R, float* probs_RV) {
  const i64 tiles = (words + TILE - 1) / TILE;
  for (i64 t = blockIdx.x; t < R * tiles; t += gridDim.x) {
    const i64 r = t / tiles, start = t % tiles * TILE + threadIdx.x * 4;
    const real* z = logits + r * stride;
    const double log_sum = log_sum_R[r];
    const float high = to_float(log_sum), low = to_float(__dadd_rn(log_sum, -to_double(high)));
    Four<real> logit[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
      const i64 v = start + u * THREADS * 4;
      logit[u] = load_four(z + v, words - v);
    }
    Four<float> prob[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        prob[u].part[e] = exponential(add(add(single(logit[u].part[e]), -high), -low));
      }
    }
    for (i64 n = 0; n < N; ++n) {
      const float weight = exponential(add(add(single(z[words + n]), -high), -low));
      const row_t* row = rows + r * stride_R + n * stride_N;
      Four<row_t> four[LOADS];
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
        const i64 v = start + u * THREADS * 4;
        four[u] = load_four(row + v, words - v);
      }
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          prob[u].part[e] = multiply_add(weight, probability(four[u].part[e]), prob[u].part[e]);
        }
      }
    }
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
      const i64 v = start + u * THREADS * 4;
      float* to = probs_RV + r * words + v;
      if (VECTOR && v + 4 <= words) {
        *(Four<float>*)to = prob[u];
      } else {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (v + e < words) to[e] = prob[u].part[e];
        }
      }
    }
  }
}
