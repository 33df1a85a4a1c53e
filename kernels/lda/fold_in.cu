#include "common.cuh"
#include "floats.cuh"

#define THREADS 128    // of a block, as in fold_in.py
#define REFRESH 4      // every such iteration reads all entries, as in fold_in.py
#define GREATEST 8.0f  // steps that a topic moves at once, as in fold_in.py
#define GREATEST_CHANGE 0.01f  // of the sum of a document that is done, as in fold_in.py
#define WORDS 4        // whose sums are added at once, as in words_sum
#define AHEAD 4        // entries of a word that a lane loads at once, which hides the latency of memory

// Sum over the lanes, added in pairs as by the twin.
__device__ __forceinline__ float lanes_sum(float value) {
  for (int step = 16; step > 0; step /= 2) value = add(value, __shfl_xor_sync(FULL_WARP, value, step));
  return value;
}

// The same of WORDS sums, in fewer steps; lane l gets that of word l / 8.
__device__ __forceinline__ float words_sum(const float* sums) {
  u32 lane = lane_id();
  bool upper = lane & 16, odd = lane & 8;
  float a = add(upper ? sums[2] : sums[0], __shfl_xor_sync(FULL_WARP, upper ? sums[0] : sums[2], 16));
  float b = add(upper ? sums[3] : sums[1], __shfl_xor_sync(FULL_WARP, upper ? sums[1] : sums[3], 16));
  float sum = add(odd ? b : a, __shfl_xor_sync(FULL_WARP, odd ? a : b, 8));
  for (int step = 4; step > 0; step /= 2) sum = add(sum, __shfl_xor_sync(FULL_WARP, sum, step));
  return sum;
}

// N of this lane's entries of a word: every 32nd one from `first` on.
template <int N>
struct Entries {
  u32 entries[N];
  __device__ __forceinline__ void load(const u32* entries_E, u32 first, u32 size) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + 32 * i < size) entries[i] = entries_E[first + 32 * i];
    }
  }
  __device__ __forceinline__ float add_to(float sum, const float* theta_Z, u32 first, u32 size) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + 32 * i < size) sum = add(sum, mul(__uint_as_float(entries[i]), theta_Z[entries[i] & 0xffff]));
    }
    return sum;
  }
  // Add rate times the shares to found_Z. A word has a topic once, so the lanes' topics differ.
  __device__ __forceinline__ void give(float rate, float* found_Z, u32 first, u32 size) const {
    float found[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + 32 * i < size) found[i] = found_Z[entries[i] & 0xffff];
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (first + 32 * i < size) found_Z[entries[i] & 0xffff] = add(found[i], mul(__uint_as_float(entries[i]), rate));
    }
  }
};

// The words of a document: pairs first to end - 1. tail_P: of each pair, the sum over entries 32 and more of its word.
struct Words {
  i64 first, end;
  const u32 *words_P, *counts_P;
  const i64* starts_V1;
  const u32* entries_N;
  float* tail_P;
};

// Word p of a document: its tokens, entries and tail; none beyond the end.
struct Word {
  u32 count = 0, size = 0;
  i64 row = 0;
  float tail = 0;
  __device__ __forceinline__ Word(const Words& words, i64 p) {
    if (p < words.end && words.counts_P[p]) {
      u32 word = words.words_P[p];
      count = words.counts_P[p], row = words.starts_V1[word], size = words.starts_V1[word + 1] - row;
      tail = words.tail_P[p];
    }
  }
};

// Add each word's count, divided by its probability, times its 32 largest shares to found_Z; return the sum of these
// quotients.
__device__ __forceinline__ float add_heads(const Words& words, float floor, const float* theta_Z, float* found_Z) {
  u32 lane = lane_id();
  float rates = 0;
  for (i64 p0 = words.first; p0 < words.end; p0 += 32) {
    Word word(words, p0 + lane);
    float rest = add(floor, word.tail);
    for (u32 j = 0; j < 32 && p0 + j < words.end; j += WORDS) {
      Entries<1> some[WORDS];
      u32 size[WORDS];
      float sums[WORDS];
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        size[i] = min(__shfl_sync(FULL_WARP, word.size, j + i), 32);
        some[i].load(words.entries_N + __shfl_sync(FULL_WARP, word.row, j + i), lane, size[i]);
      }
#pragma unroll
      for (int i = 0; i < WORDS; ++i) sums[i] = some[i].add_to(0, theta_Z, lane, size[i]);
      float mass = add(__shfl_sync(FULL_WARP, rest, j + lane / 8), words_sum(sums));
      u32 count = __shfl_sync(FULL_WARP, word.count, j + lane / 8);
      float rate = count ? divide(__uint2float_rn(count), mass) : 0;
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        float of_word = __shfl_sync(FULL_WARP, rate, 8 * i);
        rates = add(rates, of_word);
        some[i].give(of_word, found_Z, lane, size[i]);
        __syncwarp();
      }
    }
  }
  return rates;
}

// Set tail_P, and add each word's count, divided by its probability, times its other shares to found_Z.
__device__ __forceinline__ void add_tails(const Words& words, float floor, const float* theta_Z, float* found_Z) {
  u32 lane = lane_id();
  for (i64 p0 = words.first; p0 < words.end; p0 += 32) {
    Word word(words, p0 + lane);
    u32 left = __ballot_sync(FULL_WARP, word.size > 32);
    while (left) {
      u32 from[WORDS], size[WORDS], own = 0;  // lanes of the words; own: this lane's one in words_sum
      float heads[WORDS], tails[WORDS];
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        from[i] = left ? __ffs(left) - 1 : 0;
        size[i] = __shfl_sync(FULL_WARP, word.size, from[i]);
        if (!left) size[i] = 0;
        left &= left - 1;
        if (lane / 8 == i) own = from[i];
        const u32* row = words.entries_N + __shfl_sync(FULL_WARP, word.row, from[i]);
        Entries<1> head;
        head.load(row, lane, size[i]);
        heads[i] = head.add_to(0, theta_Z, lane, size[i]);
        tails[i] = 0;
        for (u32 begin = 32; begin < size[i]; begin += 32 * AHEAD) {
          Entries<AHEAD> some;
          some.load(row, lane + begin, size[i]);
          tails[i] = some.add_to(tails[i], theta_Z, lane + begin, size[i]);
        }
      }
      float tail = words_sum(tails), head = words_sum(heads);
      float rate = divide(__uint2float_rn(__shfl_sync(FULL_WARP, word.count, own)), add(add(floor, tail), head));
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        if (lane == 8 * i && size[i]) words.tail_P[p0 + own] = tail;
        float of_word = __shfl_sync(FULL_WARP, rate, 8 * i);
        const u32* row = words.entries_N + __shfl_sync(FULL_WARP, word.row, from[i]);
        for (u32 begin = 32; begin < size[i]; begin += 32 * AHEAD) {
          Entries<AHEAD> some;
          some.load(row, lane + begin, size[i]);
          some.give(of_word, found_Z, lane + begin, size[i]);
        }
        __syncwarp();
      }
    }
  }
}

// The limit of the geometric series of steps `before` and `step`, but at most GREATEST steps away.
__device__ __forceinline__ float moved(float value, float step, float before) {
  float less = add(before, -step), times = GREATEST;
  if (mul(less, before) > 0) times = fminf(fmaxf(divide(before, less), 1.0f), GREATEST);
  return add(value, mul(times, step));
}

// Shapes as in fold_in.py; order_D (D,) are the documents in the order in which warps take them, one at a time;
// next (1,) counts those taken; tail_P (P,) is 0. A lane has every 32nd topic, and every 32nd entry of a word.
// Shared memory: 2 Z floats for each warp; `scratch`: 2 Z for each warp. Without IN_SHARED, scratch has all 4 Z.
extern "C" __global__ void __launch_bounds__(THREADS, IN_SHARED ? 6 : 4) fold_in(
    const i64* starts_D1, const u32* words_P, const u32* counts_P, i64 D, const i64* order_D, u64* next,
    const i64* starts_V1, const u32* entries_N, const float* floor_Z, const float* alpha_Z, i64 Z, i64 max_iter,
    float tol, float* scratch, float* tail_P, float* theta_DZ) {
  extern __shared__ float shared[];
  i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  u32 lane = lane_id();
  float* step_Z = scratch + (IN_SHARED ? 2 : 4) * Z * warp;
  float* tail_Z = step_Z + Z;
  float* theta_Z = IN_SHARED ? shared + 2 * Z * (threadIdx.x / 32) : tail_Z + Z;
  float* found_Z = theta_Z + Z;
  float sum = 0;
  for (i64 k = lane; k < Z; k += 32) sum = add(sum, alpha_Z[k]);
  float prior = lanes_sum(sum);
  for (;;) {
    u64 taken = lane ? 0 : atomicAdd(next, 1ull);
    taken = __shfl_sync(FULL_WARP, taken, 0);
    if (taken >= D) break;
    i64 d = order_D[taken], tokens = 0;
    Words words = {starts_D1[d], starts_D1[d + 1], words_P, counts_P, starts_V1, entries_N, tail_P};
    for (i64 p = words.first + lane; p < words.end; p += 32) tokens += counts_P[p];
    for (int step = 16; step > 0; step /= 2) tokens += __shfl_xor_sync(FULL_WARP, tokens, step);
    float scale = add(1.0f, divide(__ll2float_rn(tokens), prior)), total = add(__ll2float_rn(tokens), prior);
    for (i64 k = lane; k < Z; k += 32) {
      theta_Z[k] = found_Z[k] = mul(alpha_Z[k], scale);
      tail_Z[k] = 0;
    }
    float limit = fminf(mul(tol, __ll2float_rn(Z)), mul(GREATEST_CHANGE, total));
    float last = __int_as_float(0x7f800000);  // infinity
    bool always = false;                      // refresh in every iteration
    for (i64 iteration = 0; iteration < max_iter; ++iteration) {
      bool refresh = iteration >= REFRESH && (always || iteration % REFRESH == 0);
      sum = 0;
      for (i64 k = lane; k < Z; k += 32) {
        sum = add(sum, mul(floor_Z[k], theta_Z[k]));
        found_Z[k] = refresh ? 0 : tail_Z[k];
      }
      float floor = lanes_sum(sum);
      __syncwarp();
      if (refresh) {
        add_tails(words, floor, theta_Z, found_Z);
        for (i64 k = lane; k < Z; k += 32) tail_Z[k] = found_Z[k];
        __syncwarp();
      }
      float rates = add_heads(words, floor, theta_Z, found_Z), change = 0;
      for (i64 k = lane; k < Z; k += 32) {
        float old = theta_Z[k];
        float value = add(alpha_Z[k], mul(old, add(found_Z[k], mul(floor_Z[k], rates))));
        change = add(change, fabsf(add(value, -old)));
        found_Z[k] = value;
      }
      if (refresh) {
        change = lanes_sum(change);
        if (change < limit) break;
        always |= change >= last;
        last = change;
      }
      if (iteration % 2 == 0) {
        for (i64 k = lane; k < Z; k += 32) {
          step_Z[k] = add(found_Z[k], -theta_Z[k]);
          theta_Z[k] = found_Z[k];
        }
      } else {
        sum = 0;
        for (i64 k = lane; k < Z; k += 32) {
          float old = theta_Z[k];
          float value = fmaxf(moved(old, add(found_Z[k], -old), step_Z[k]), alpha_Z[k]);
          theta_Z[k] = value;
          sum = add(sum, value);
        }
        float share = divide(total, lanes_sum(sum));
        for (i64 k = lane; k < Z; k += 32) theta_Z[k] = mul(theta_Z[k], share);
      }
      __syncwarp();
    }
    for (i64 k = lane; k < Z; k += 32) theta_DZ[d * Z + k] = found_Z[k];
    __syncwarp();
  }
}
