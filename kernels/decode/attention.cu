// Additive attention (Bahdanau, Cho and Bengio, "Neural Machine Translation by Jointly Learning to Align and
// Translate", 2015, appendix A.1.2), for position t of a sentence of T positions:
//   e_t = sum over a of v_a tanh(memory_ta + query_a),  weight_t = exp(e_t) / sum over t' of exp(e_t'),
//   context_c = sum over t of weight_t context_tc.
// As tanh(m + q) = 1 - 2 / (1 + exp(2m) exp(2q)), the exponentials are taken once for each m and each q, not for each
// pair, and the sum of v_a falls out of the softmax. Where an exponential would overflow, the tangents are computed
// themselves.
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
// query_RA, slot_R, memory_STA, context_STC, length_S, energy_A  ->  weights_RT (R, T) f32, context_RC (R, C). Rows are
// taken ROWS at a time from multiples of ROWS on; neighbours with one sentence share a block, which reads memory and
// context once for all of them. A warp takes a position of the energies, a thread takes columns of the context.
// Shared memory: (ROWS + 1) A + ROWS T floats. Floor: the bytes of memory and context of the sentences; an energy takes
// 12 instructions of each number of memory, and 5 more of each row.
// VECTOR: rows start at multiples of 4 numbers.
#define THREADS 256
#define ROWS 4

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

__device__ __forceinline__ void get_shared(const float* from, i64 left, float (&value)[4]) {
#if VECTOR
  const float4 four = *(const float4*)from;
  value[0] = four.x, value[1] = four.y, value[2] = four.z, value[3] = four.w;
#else
#pragma unroll
  for (int e = 0; e < 4; ++e) value[e] = e < left ? from[e] : 0;
#endif
}

struct Inputs {
  const real *query_RA, *memory_TA, *context_TC;  // of the first row, and of the sentence
  i64 length, T, A, C;
  float *grown_NA, *energy_A, *weight_NT;  // shared
  u32 far;                                 // bit n: a number of the query of row n is too large to grow
};

// The energy of a row by the tangents themselves.
__device__ __noinline__ float far_energy(const real* memory_A, const real* query_A, const float* energy_A, i64 A) {
  float part[PART_LOADS] = {0, 0, 0, 0};
  for (i64 a = lane_id() * 4; a < A; a += 128) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (a + e >= A) break;
      const float half = mul(add(1.0f, -tanh_of(add(single(memory_A[a + e]), single(query_A[a + e])))), 0.5f);
      part[e] = multiply_add(half, energy_A[a + e], part[e]);
    }
  }
  return sum_parts(part);
}

template <int N>
__device__ __forceinline__ void energies(const Inputs& in) {
  constexpr int P = N == 1 ? 2 : 1;  // positions at once: one row alone has too few loads under way
  const int lane = lane_id();
  for (i64 t = threadIdx.x / 32 * P; t < in.length; t += THREADS / 32 * P) {
    const real* memory[P];
    float part[P][N][PART_LOADS] = {};
    bool is_far[P] = {};
#pragma unroll
    for (int p = 0; p < P; ++p) memory[p] = in.memory_TA + (t + p < in.length ? t + p : t) * in.A;
#pragma unroll 2
    for (i64 a = lane * 4; a < in.A; a += 128) {
      float m[P][4], v[4];
#pragma unroll
      for (int p = 0; p < P; ++p) get(memory[p] + a, in.A - a, m[p]);
      get_shared(in.energy_A + a, in.A - a, v);
#pragma unroll
      for (int p = 0; p < P; ++p) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          is_far[p] |= !(fabsf(m[p][e]) <= GROW_LIMIT);
          m[p][e] = grown(m[p][e]);
        }
      }
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float q[4];
        get_shared(in.grown_NA + n * in.A + a, in.A - a, q);
#pragma unroll
        for (int p = 0; p < P; ++p) {
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const float value = multiply_add(inverse(multiply_add(m[p][e], q[e], 1.0f)), v[e], part[p][n][e]);
            if (VECTOR || a + e < in.A) part[p][n][e] = value;
          }
        }
      }
    }
#pragma unroll
    for (int p = 0; p < P; ++p) {
      const bool is_far_memory = __any_sync(FULL_WARP, is_far[p]);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        float energy = sum_parts(part[p][n]);
        if (is_far_memory || in.far >> n & 1) energy = far_energy(memory[p], in.query_RA + n * in.A, in.energy_A, in.A);
        if (lane == 0 && t + p < in.length) in.weight_NT[n * in.T + t + p] = energy;
      }
    }
  }
}

// Turn the energies of a row into weights. A warp takes a row.
__device__ __forceinline__ void weigh(float* weight_T, i64 length, i64 T, float* weights_T) {
  const int lane = lane_id();
  float top = __int_as_float(0xFF800000), sum = 0;
  for (i64 t = lane; t < length; t += 32) top = weight_T[t] > top ? weight_T[t] : top;
#pragma unroll
  for (int half = 16; half; half /= 2) {
    const float other = __shfl_xor_sync(FULL_WARP, top, half);
    top = other > top ? other : top;
  }
  for (i64 t = lane; t < length; t += 32) {
    weight_T[t] = exponential(add(weight_T[t], -top));
    sum = add(sum, weight_T[t]);
  }
#pragma unroll
  for (int half = 16; half; half /= 2) sum = add(sum, __shfl_xor_sync(FULL_WARP, sum, half));
  for (i64 t = lane; t < T; t += 32) weights_T[t] = weight_T[t] = t < length ? divide(weight_T[t], sum) : 0;
}

template <int N>
__device__ __forceinline__ void attend(const Inputs& in, float* weights_NT, real* context_NC) {
  energies<N>(in);
  __syncthreads();
  const int warp = threadIdx.x / 32;
  if (warp < N) weigh(in.weight_NT + warp * in.T, in.length, in.T, weights_NT + warp * in.T);
  __syncthreads();
  for (i64 c = threadIdx.x * 4; c < in.C; c += THREADS * 4) {
    const real* context = in.context_TC + c;
    float total[N][4] = {};
#pragma unroll 4
    for (i64 t = 0; t < in.length; ++t, context += in.C) {
      float value[4];
      get(context, in.C - c, value);
#pragma unroll
      for (int n = 0; n < N; ++n) {
        const float weight = in.weight_NT[n * in.T + t];
#pragma unroll
        for (int e = 0; e < 4; ++e) total[n][e] = multiply_add(weight, value[e], total[n][e]);
      }
    }
#pragma unroll
    for (int n = 0; n < N; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (VECTOR || c + e < in.C) context_NC[n * in.C + c + e] = stored(total[n][e]);
      }
    }
  }
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) attention(
    const real* query_RA, const i64* slot_R, const real* memory_STA, const real* context_STC, const i64* length_S,
    const real* energy_A, i64 R, i64 T, i64 A, i64 C, float* weights_RT, real* context_RC) {
  extern __shared__ float4 shared[];
  for (i64 r = blockIdx.x; r < R; r += gridDim.x) {
    const i64 s = slot_R[r];
    if (r % ROWS && slot_R[r - 1] == s) continue;  // the block of the row before takes it
    int rows = 1;
    while (r + rows < R && (r + rows) % ROWS && slot_R[r + rows] == s) ++rows;
    Inputs in;
    in.query_RA = query_RA + r * A, in.memory_TA = memory_STA + s * T * A, in.context_TC = context_STC + s * T * C;
    in.length = length_S[s], in.T = T, in.A = A, in.C = C;
    in.energy_A = (float*)shared, in.grown_NA = in.energy_A + A, in.weight_NT = in.grown_NA + ROWS * A;
    in.far = 0;
    for (i64 a = threadIdx.x; a < A; a += THREADS) in.energy_A[a] = mul(-2.0f, single(energy_A[a]));
    for (int n = 0; n < rows; ++n) {
      bool is_far = false;
      for (i64 a = threadIdx.x; a < A; a += THREADS) {
        const float q = single(in.query_RA[n * A + a]);
        is_far |= !(fabsf(q) <= GROW_LIMIT);
        in.grown_NA[n * A + a] = grown(q);
      }
      in.far |= (u32)(__syncthreads_or(is_far) != 0) << n;
    }
    if (rows == 4) attend<4>(in, weights_RT + r * T, context_RC + r * C);
    else if (rows == 3) attend<3>(in, weights_RT + r * T, context_RC + r * C);
    else if (rows == 2) attend<2>(in, weights_RT + r * T, context_RC + r * C);
    else attend<1>(in, weights_RT + r * T, context_RC + r * C);
    __syncthreads();
  }
}
