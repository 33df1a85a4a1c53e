// Sums of exponentials of logits, with the arithmetic of decode/exponential_sums.py. Include after grid.cuh,
// floats.cuh and natural_log.cuh.
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
#define CHUNK (4 * GROUP)
#define LIMIT 2097152.0f
#define ROUND 12582912.0f  // 1.5 * 2^23: adding it rounds to an integer
#define LOG2_E 1.44269504f
#define LN_2 0.693147181f
#define FIRST (-(1 << 30))
#define MIN_REFERENCE (-3025551)  // LIMIT * LOG2_E, rounded
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
// a - b in one instruction; the compiler does not see that add(a, -b) is one.
__device__ __forceinline__ float subtract(float a, float b) {
  float c;
  asm("sub.rn.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
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

#ifdef HALF
// Maxima of two float16 each; the first drops a NaN, the second keeps it.
__device__ __forceinline__ u32 greater_of_pairs(u32 a, u32 b) {
  u32 c;
  asm("max.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ __forceinline__ u32 pairs_not_below(u32 a, u32 b) {
  u32 c;
  asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(c) : "r"(a), "r"(b));
  return c;
}
__device__ __forceinline__ u32 pair_of(float a) {
  u32 c;
  asm("cvt.rn.f16x2.f32 %0, %1, %1;" : "=r"(c) : "f"(a));
  return c;
}
#endif

// 16 bytes of a lane
template <typename T> union Load {
  uint4 all;
  u32 pair[4];
  T part[16 / sizeof(T)];
};

// Load the parts of a lane from row + i; past V they are `past`.
template <typename T>
__device__ __forceinline__ void load_tail(Load<T>& load, const T* row, int i, int V, T past) {
#pragma unroll
  for (int e = 0; e < (int)(16 / sizeof(T)); ++e) load.part[e] = i + e < V ? row[i + e] : past;
}

// Copies to shared memory, in sets. A lane waits for its own: with `wait_for_copies<N>`, for all but the N latest sets.
__device__ __forceinline__ void copy_16_bytes(void* to, const void* from) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  u64 policy;  // first out of L2: rows are read once
  asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;"
               : : "r"(at), "l"(from), "l"(policy) : "memory");
}
__device__ __forceinline__ void copy_4_bytes(void* to, const void* from) {
  const u32 at = (u32)__cvta_generic_to_shared(to);
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" : : "r"(at), "l"(from) : "memory");
}
__device__ __forceinline__ void end_set_of_copies() { asm volatile("cp.async.commit_group;" : : : "memory"); }
template <int N> __device__ __forceinline__ void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

// Start to load what is read later.
__device__ __forceinline__ void prefetch(const void* from) { asm volatile("prefetch.global.L1 [%0];" : : "l"(from)); }

// Start to copy 16 bytes of a row from entry i on; past V they are `past`.
template <typename T> __device__ __forceinline__ void copy_part(T* to, const T* row, int i, int V, T past) {
  constexpr int parts = 16 / sizeof(T);
  if (VECTOR && i + parts <= V) {
    copy_16_bytes(to, row + i);
    return;
  }
#pragma unroll
  for (int e = 0; e < parts; ++e) {
    if (sizeof(T) == 4 && i + e < V) copy_4_bytes(to + e, row + i + e);
    else to[e] = i + e < V ? row[i + e] : past;
  }
}

// Start to copy a lane's part of the group of a row that begins at `start`: from `from` to `slot`. Past V it is -inf.
__device__ __forceinline__ void copy_group(in_t* slot, const in_t* from, int start, int V) {
#ifdef HALF
  const in_t past = HALF[0] == 'f' ? 0xFC00 : 0xFF80;
#else
  const in_t past = MINUS_INFINITY;
#endif
  if (VECTOR && start + GROUP <= V) {
#pragma unroll
    for (int u = 0; u < LOADS; ++u) copy_16_bytes(slot + u * RUN, from + u * RUN);
  } else {
    const int left = V - start - (int)lane_id() * PER;
#pragma unroll 1
    for (int u = 0; u < LOADS; ++u) copy_part(slot + u * RUN, from, u * RUN, left, past);
  }
}

// Load the floats of a row from `start` on; past V, 0.
__device__ __forceinline__ void load_row(float (&x)[LOADS][PER], const float* row, int start, int V) {
  const int i = start + lane_id() * PER;
#pragma unroll
  for (int u = 0; u < LOADS; ++u) {
#pragma unroll
    for (int q = 0; q < PER; q += 4) {
      Load<float> load;
      if (VECTOR && start + GROUP <= V) load.all = __ldg((const uint4*)(row + i + u * RUN + q));
      else load_tail(load, row, i + u * RUN + q, V, 0.0f);
#pragma unroll
      for (int e = 0; e < 4; ++e) x[u][q + e] = load.part[e];
    }
  }
}

__device__ __forceinline__ void add_all(float (&x)[LOADS][PER], const float (&terms)[LOADS][PER]) {
#pragma unroll
  for (int u = 0; u < LOADS; ++u) {
#pragma unroll
    for (int e = 0; e < PER; ++e) x[u][e] = add(x[u][e], terms[u][e]);
  }
}

// Return 2^n for n <= 0, or 0 if it is subnormal.
__device__ __forceinline__ float power(int n) { return __int_as_float(n >= -126 ? (n + 127) << 23 : 0); }

// The unit 2^reference of a chunk's sums, the least x that counts, and what makes an integer of x * LOG2_E.
struct Scale {
  int reference;
  float low, shift;
};

__device__ __forceinline__ Scale scale_of(int reference) {
  float low = mul((float)(reference - 126), LN_2);
#ifdef HALF
  if (HALF[0] == 'f') low = fmaxf(ceilf(low * 0.03125f) * 32, -65504.0f);  // a float16
#endif
  return {reference, low, ROUND + (float)(127 - reference)};
}

// Make the reference at least the greatest power of the warp. top: the lane's greatest x.
__device__ __forceinline__ void raise_to(float top, Scale& scale, float (&sums)[PER]) {
  const float limited = fminf(fmaxf(top, -LIMIT), LIMIT);
  // Floats near ROUND rise as their bits do.
  const int power_of_top = __float_as_int(multiply_add(limited, LOG2_E, ROUND)) - __float_as_int(ROUND);
  if (__any_sync(FULL_WARP, power_of_top > scale.reference)) {
    const int now = __reduce_max_sync(FULL_WARP, power_of_top);
    const float factor = power(scale.reference - now);
#pragma unroll
    for (int e = 0; e < PER; ++e) sums[e] = mul(sums[e], factor);
    scale = scale_of(now);
  }
  if (top > LIMIT) sums[0] = __int_as_float(0x7FC00000);
}

// Add exp(x) / 2^reference to a sum; x is at least scale.low, or NaN.
__device__ __forceinline__ void add_term(float x, const Scale& scale, float& sum) {
  const float whole = multiply_add(x, LOG2_E, scale.shift);
  const float f = multiply_add(x, LOG2_E, subtract(scale.shift, whole));
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
  sum = multiply_add(p, __int_as_float(__float_as_int(whole) << 23), sum);
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

// Store a chunk: its reference in the upper half, its sum in the lower; all NaN are one.
__device__ __forceinline__ void store_chunk(const float (&sums)[PER], int reference, u64* chunk) {
  const float sum = sum_chunk(sums);
  const u32 bits = sum == sum ? __float_as_uint(sum) : 0x7FC00000;
  if (lane_id() == 0) *chunk = (u64)reference << 32 | bits;
}

// Return the logarithm of the sum of C chunks, or NaN if no logit is above -LIMIT.
__device__ __forceinline__ double log_of_chunks(const u64* chunk_C, i64 C) {
  int reference = FIRST;
  for (i64 c = lane_id(); c < C; c += 32) reference = max(reference, (int)(__ldg(chunk_C + c) >> 32));
  reference = __reduce_max_sync(FULL_WARP, reference);
  double total = 0;
  for (i64 c = lane_id(); c < C; c += 32) {
    const u64 chunk = __ldg(chunk_C + c);
    const i64 n = max((int)(chunk >> 32) - reference, -1000);
    const double sum = to_double(__uint_as_float((u32)chunk));
    total = __dadd_rn(total, __dmul_rn(sum, __longlong_as_double((n + 1023) << 52)));
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) total = __dadd_rn(total, __shfl_xor_sync(FULL_WARP, total, step));
  if (reference <= MIN_REFERENCE || total != total) return __longlong_as_double(0x7FF8000000000000LL);
  return log_of(total, reference);
}
