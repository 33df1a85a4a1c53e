#include "common.cuh"
#include "floats.cuh"
#include "activations.cuh"
// query_RA, slot_R, memory_STA, context_STC, length_S, energy_A  ->  weights_RT (R, T) f32, context_RC (R, C). A block of
// THREADS takes a row: a warp takes a position of the energies, a thread takes columns of the context. Shared memory: T
// floats. Floor: the bytes of memory and context of the sentences; tanh takes about 25 instructions of each number.
// VECTOR: rows start at multiples of 4 numbers.
#define THREADS 128

// Load 4 neighbouring numbers, of which `left` lie within the row; the others are 0.
__device__ __forceinline__ void get(const real* from, i64 left, float (&value)[4]) {
#if VECTOR
#ifdef HALF
  const uint2 both = *(const uint2*)from;
  value[0] = single((u16)both.x), value[1] = single((u16)(both.x >> 16));
  value[2] = single((u16)both.y), value[3] = single((u16)(both.y >> 16));
#else
  const float4 four = *(const float4*)from;
  value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
#endif
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) value[e] = e < left ? single(from[e]) : 0;
#endif
}

extern "C" __global__ void __launch_bounds__(THREADS) attention(
    const real* query_RA, const i64* slot_R, const real* memory_STA, const real* context_STC, const i64* length_S,
    const real* energy_A, i64 R, i64 T, i64 A, i64 C, float* weights_RT, real* context_RC) {
  extern __shared__ float weight_T[];
  const int lane = lane_id(), warp = threadIdx.x / 32;
  for (i64 r = blockIdx.x; r < R; r += gridDim.x) {
    const i64 s = slot_R[r], length = length_S[s];
    for (i64 t = warp; t < length; t += THREADS / 32) {
      const real* memory = memory_STA + (s * T + t) * A;
      float part[PART_LOADS] = {0, 0, 0, 0};
      for (i64 a = lane * 4; a < A; a += 128) {
        float m[4], q[4], v[4];
        get(memory + a, A - a, m);
        get(query_RA + r * A + a, A - a, q);
        get(energy_A + a, A - a, v);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          if (VECTOR || a + e < A) part[e] = multiply_add(tanh_of(add(m[e], q[e])), v[e], part[e]);
        }
      }
      const float energy = sum_parts(part);
      if (lane == 0) weight_T[t] = energy;
    }
    __syncthreads();
    float top = __int_as_float(0xFF800000);
    for (i64 t = lane; t < length; t += 32) top = weight_T[t] > top ? weight_T[t] : top;
#pragma unroll
    for (int half = 16; half; half /= 2) {
      const float other = __shfl_xor_sync(FULL_WARP, top, half);
      top = other > top ? other : top;
    }
    __syncthreads();
    for (i64 t = threadIdx.x; t < length; t += THREADS) weight_T[t] = exponential(add(weight_T[t], -top));
    __syncthreads();
    float sum = 0;
    for (i64 t = lane; t < length; t += 32) sum = add(sum, weight_T[t]);
#pragma unroll
    for (int half = 16; half; half /= 2) sum = add(sum, __shfl_xor_sync(FULL_WARP, sum, half));
    __syncthreads();
    for (i64 t = threadIdx.x; t < T; t += THREADS) {
      const float weight = t < length ? divide(weight_T[t], sum) : 0;
      weight_T[t] = weight;
      weights_RT[r * T + t] = weight;
    }
    __syncthreads();
    for (i64 c = threadIdx.x * 4; c < C; c += THREADS * 4) {
      const real* context = context_STC + s * T * C + c;
      float total[4] = {0, 0, 0, 0};
#pragma unroll 4
      for (i64 t = 0; t < length; ++t, context += C) {
        float value[4];
        get(context, C - c, value);
#pragma unroll
        for (int e = 0; e < 4; ++e) total[e] = multiply_add(weight_T[t], value[e], total[e]);
      }
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (VECTOR || c + e < C) context_RC[r * C + c + e] = stored(total[e]);
      }
    }
    __syncthreads();
  }
}
