// Sums of exponentials of logits, with the arithmetic of decode/terms.py. Include after common.cuh and floats.cuh.
// HALF: "f16", "bf16" or not defined (float32). VECTOR: rows start at multiples of 16 bytes.
#ifdef HALF
typedef u16 in_t;
#else
typedef float in_t;
#endif
#define PER ((int)(16 / sizeof(in_t)))  // neighbouring logits of a lane: one load
#define RUN (32 * PER)
#define LOADS 4
#define GROUP (LOADS * RUN)
#define CHUNK 2048
#define LIMIT 2097152.0f
#define ROUND 12582912.0f  // 1.5 * 2^23: adding it rounds to an integer
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
#define FIRST (-(1 << 30))
#define LEAST (-3025551)  // LIMIT * LOG2_E, rounded
#define MINUS_INFINITY __int_as_float(0xFF800000)

// Maxima that keep subnormal numbers; `greater` drops a NaN, `not_below` keeps it.
__device__ __forceinline__ float greater(float a, float b) {
  float c;
  asm("max.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ float not_below(float a, float b) {
  float c;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}
__device__ __forceinline__ bool at_least(float a, float b) {
  u32 c;
  asm("{.reg .pred p; setp.ge.f32 p, %1, %2; selp.u32 %0, 1, 0, p;}" : "=r"(c) : "f"(a), "f"(b));
  return c;
}

__device__ __forceinline__ float to_single(float value) { return value; }
#ifdef HALF
__device__ __forceinline__ float to_single(u16 bits) {
  float c;
  asm("cvt.f32." HALF " %0, %1;" : "=f"(c) : "h"(bits));
  return c;
}
#endif

// 16 bytes of a lane
template <typename T> union Load {
  uint4 all;
  T part[16 / sizeof(T)];
};

// Load 16 bytes that are read once, so they do not displace the bias in the L1 cache.
__device__ __forceinline__ uint4 load_once(const void* from) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(from));
  return v;
}

// Load the parts of a lane from row + i; past V they are `past`.
template <typename T>
__device__ __forceinline__ void load_tail(Load<T>& load, const T* row, int i, int V, T past) {
#pragma unroll
  for (int e = 0; e < (int)(16 / sizeof(T)); ++e) load.part[e] = i + e < V ? row[i + e] : past;
}

// Start to load the group of a row that begins at `start`.
__device__ __forceinline__ void load_group(Load<in_t> (&loads)[LOADS], const in_t* row, int start, int V) {
#ifdef HALF
  const in_t past = HALF[0] == 'f' ? 0xFC00 : 0xFF80;
#else
  const in_t past = MINUS_INFINITY;
#endif
  int i = start + lane_id() * PER;
  if (VECTOR && start + GROUP <= V) {
#pragma unroll
    for (int u = 0; u < LOADS; ++u) loads[u].all = load_once(row + i + u * RUN);
  } else {
#pragma unroll
    for (int u = 0; u < LOADS; ++u) load_tail(loads[u], row, i + u * RUN, V, past);
  }
}

// x += the floats of a row from `start` on; past V, 0.
__device__ __forceinline__ void add_row(float (&x)[LOADS][PER], const float* row, int start, int V) {
  int i = start + lane_id() * PER;
#pragma unroll
  for (int u = 0; u < LOADS; ++u) {
#pragma unroll
    for (int q = 0; q < PER; q += 4) {
      int at = i + u * RUN + q;
      Load<float> load;
      if (VECTOR && at + 4 <= V) load.all = __ldg((const uint4*)(row + at));
      else load_tail(load, row, at, V, 0.0f);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[u][q + e] = add(x[u][q + e], load.part[e]);
    }
  }
}

// Return 2^n for n <= 0, or 0 if it is subnormal.
__device__ __forceinline__ float power(int n) { return __int_as_float(n >= -126 ? (n + 127) << 23 : 0); }

// Add exp(x) / 2^reference to the sums of a chunk. top: the lane's greatest x. All lanes have the same reference.
__device__ __forceinline__ void add_terms(const float (&x)[LOADS][PER], float top, int& reference, float (&sums)[PER]) {
  float limited = fminf(fmaxf(top, -LIMIT), LIMIT);
  // Floats near ROUND rise as their bits do.
  int whole_bits = __reduce_max_sync(FULL_WARP, __float_as_int(multiply_add(limited, LOG2_E, ROUND)));
  int now = max(reference, whole_bits - __float_as_int(ROUND));
  if (now != reference) {
    float factor = power(reference - now);
#pragma unroll
    for (int e = 0; e < PER; ++e) sums[e] = mul(sums[e], factor);
    reference = now;
  }
  if (top > LIMIT) sums[0] = __int_as_float(0x7FC00000);
  float low = mul((float)(reference - 126), LN_2), shift = ROUND + (float)(127 - reference);
#pragma unroll
  for (int u = 0; u < LOADS; ++u) {
#pragma unroll
    for (int e = 0; e < PER; ++e) {
      float value = not_below(x[u][e], low);
      float whole = multiply_add(value, LOG2_E, shift);
      float f = multiply_add(value, LOG2_E, add(shift, -whole));
#ifdef HALF
      float p = multiply_add(0.009570102030302785f, f, 0.0559178611401972f);
      p = multiply_add(p, f, 0.24024744832123746f);
      p = multiply_add(p, f, 0.6931218146366507f);
      p = multiply_add(p, f, 0.9999992614421854f);
#else
      float p = multiply_add(0.0013276472110761196f, f, 0.009675541426496306f);
      p = multiply_add(p, f, 0.05550713273940666f);
      p = multiply_add(p, f, 0.2402211972214386f);
      p = multiply_add(p, f, 0.6931469670639854f);
      p = multiply_add(p, f, 1.0000000716550264f);
#endif
      sums[e] = multiply_add(p, __int_as_float(__float_as_int(whole) << 23), sums[e]);
    }
  }
}

// Return the sum of the sums of a chunk, added in pairs.
__device__ __forceinline__ float sum_chunk(const float (&sums)[PER]) {
  float s = add(add(sums[0], sums[1]), add(sums[2], sums[3]));
#ifdef HALF
  s = add(s, add(add(sums[4], sums[5]), add(sums[6], sums[7])));
#endif
#pragma unroll
  for (int step = 1; step < 32; step *= 2) s = add(s, __shfl_xor_sync(FULL_WARP, s, step));
  return s;
}

// Return the logarithm of the sum of C chunks, or NaN if no logit is above -LIMIT.
__device__ __forceinline__ double log_of_chunks(const float* sum_C, const int* reference_C, i64 C) {
  int reference = FIRST;
  for (i64 c = lane_id(); c < C; c += 32) reference = max(reference, __ldcg(reference_C + c));
  reference = __reduce_max_sync(FULL_WARP, reference);
  double total = 0;
  for (i64 c = lane_id(); c < C; c += 32) {
    i64 n = max(__ldcg(reference_C + c) - reference, -1000);
    total = __dadd_rn(total, __dmul_rn(to_double(__ldcg(sum_C + c)), __longlong_as_double((n + 1023) << 52)));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total = __dadd_rn(total, __shfl_xor_sync(FULL_WARP, total, step));
  if (reference <= LEAST || total != total) return __longlong_as_double(0x7FF8000000000000LL);
  i64 bits = __double_as_longlong(total), exponent = (bits >> 52) - 1023;
  double fraction = __longlong_as_double((bits & 0xFFFFFFFFFFFFFLL) | 0x3FF0000000000000LL);
  if (fraction > 1.4142135623730951) {
    fraction *= 0.5;
    ++exponent;
  }
  double s = __ddiv_rn(fraction - 1, fraction + 1), square = __dmul_rn(s, s), series = 0;
#pragma unroll
  for (int k = 10; k >= 0; --k) series = __dadd_rn(__dmul_rn(series, square), 1.0 / (2 * k + 1));
  return __dadd_rn(__dmul_rn((double)(reference + exponent), 0.6931471805599453),
                   __dmul_rn(__dmul_rn(2.0, s), series));
}
