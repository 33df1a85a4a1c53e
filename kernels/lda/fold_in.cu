// Topics theta of new documents with fixed phi: the theta with
//   theta_k = alpha_k + sum over words w of c_w theta_k phi_wk / (sum over j of theta_j phi_wj),
// which is CVB0 with fixed phi (Asuncion et al., "On Smoothing and Inference for Topic Models", 2009). Each topic steps
// by a secant, its last move divided by the change of its step, with momentum; most iterations read the largest shares
// of a word only.
// Plain iterations, Aitken, SQUAREM, Anderson and Newton steps were tried: the first design took 108 ms, this one 37
// ms; see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"

#define THREADS 128             // of a block, as in fold_in.py
#define FIRST 2                 // the first iteration that reads all entries, as in fold_in.py
#define REFRESH 6               // the others are multiples of it, as in fold_in.py
#define GREATEST 4.0f           // steps that a topic moves at once, as in fold_in.py
#define MOMENTUM 0.5f           // of the last move, and of the change of its step, as in fold_in.py
#define GREATEST_CHANGE 0.01f   // of the sum of a document that is done, as in fold_in.py
#define ENOUGH 0.85f            // of both limits of change, as in fold_in.py
#define NEAR 12.0f              // limits of change, as in fold_in.py
#define LANES 32
#define TOPICS 4                // of a lane that are read at once
#define WORDS 4                 // whose sums are added at once, as in words_sum
#define KEEP 15                 // groups of a row that a lane keeps from their sum until the word's rate is known; odd
#define AHEAD 7                 // of these, loaded while the word before is used; odd
#define MORE 4                  // further groups that are loaded at once; even

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

// The same of two sums; all lanes get both.
__device__ __forceinline__ void two_sums(float& a, float& b) {
  bool upper = lane_id() & 16;
  float sum = add(upper ? b : a, __shfl_xor_sync(FULL_WARP, upper ? a : b, 16));
  for (int step = 8; step > 0; step /= 2) sum = add(sum, __shfl_xor_sync(FULL_WARP, sum, step));
  float other = __shfl_xor_sync(FULL_WARP, sum, 16);
  a = upper ? other : sum, b = upper ? sum : other;
}

// The sum of rates that the lanes of word l / 8 hold, over the words.
__device__ __forceinline__ float rates_sum(float rates) {
  rates = add(rates, __shfl_xor_sync(FULL_WARP, rates, 16));
  return add(rates, __shfl_xor_sync(FULL_WARP, rates, 8));
}

// The words of a document: `size` pairs from `first` on. tail_P, rate_P: of each pair, the sum over entries LANES and
// more of its word, and its count divided by its probability, by the last iteration that read all entries.
struct Words {
  i64 first;
  u32 size;
  const u32 *words_P, *counts_P;
  const uint2* rows_V;
  const u32* lane_entries;  // entries_N from this lane's number on
  float *tail_P, *rate_P;
};

// Word n of a document. Beyond the end, and with count 0, it has row 0, without entries.
struct Word {
  u32 row = 0, groups = 0;
  float count = 0;
  __device__ __forceinline__ Word(const Words& words, u32 n) {
    u32 found = n < words.size ? words.counts_P[words.first + n] : 0;
    if (found) {
      uint2 row_size = words.rows_V[words.words_P[words.first + n]];
      count = __uint2float_rn(found), row = row_size.x, groups = (row_size.y + LANES - 1) / LANES;
    }
  }
};

// tail_P and rate_P of word n of a document.
struct Known {
  float tail = 0, rate = 0;
  __device__ __forceinline__ Known(const Words& words, u32 n) {
    if (n < words.size) tail = words.tail_P[words.first + n], rate = words.rate_P[words.first + n];
  }
};

// This lane's entry of group 0 of a row; that of group g is LANES * g later.
__device__ __forceinline__ const u32* row_of(const Words& words, u32 row) {
  return words.lane_entries + (u64)row * LANES;
}

// A pointer into shared memory as one register: the compiler would add an offset to each index.
__device__ __forceinline__ float* one_register(float* table) {
#if IN_SHARED
  u32 address = __cvta_generic_to_shared(table);
  asm volatile("" : "+r"(address));
  return (float*)__cvta_shared_to_generic(address);
#else
  return table;
#endif
}

// The lower half. The compiler would join a mask with the scale of an address, which takes one more instruction.
__device__ __forceinline__ u32 topic_of(u32 entry) { return __byte_perm(entry, 0, 0x4410); }

// Whether an entry is one of the word's, not one that fills its last group. In shared memory, the latter have floats of
// their own behind those of the topics, so nothing is asked.
__device__ __forceinline__ bool has_place(u32 entry) { return IN_SHARED || entry > 0xffff; }

__device__ __forceinline__ float times(u32 entry, const float* theta_Z) {
  return has_place(entry) ? mul(__uint_as_float(entry), theta_Z[topic_of(entry)]) : 0;
}

// Add `rate` times the share of an entry to found_Z. A word has a topic once, so the lanes' topics differ.
__device__ __forceinline__ void give(u32 entry, float rate, float* found_Z) {
  if (has_place(entry)) {
    float* found = found_Z + topic_of(entry);
    *found = add(*found, mul(__uint_as_float(entry), rate));
  }
}

// Load this lane's entries of group 0 of WORDS words, whose rows lanes `first` and more have.
__device__ __forceinline__ void load_heads(u32* heads, const Words& words, u32 row, u32 first) {
#pragma unroll
  for (int i = 0; i < WORDS; ++i) heads[i] = __ldg(row_of(words, __shfl_sync(FULL_WARP, row, first + i)));
}

// Add the change of each word's rate times its LANES largest shares to found_Z; return the sum of rates.
__device__ __forceinline__ float add_heads(const Words& words, float floor, float scale, const float* theta_Z,
                                           float* found_Z) {
  u32 lane = lane_id();
  float rates = 0;
  Word word(words, lane), ahead(words, LANES + lane);
  Known known(words, lane);
  u32 heads[WORDS];
  load_heads(heads, words, word.row, 0);
  for (u32 n0 = 0; n0 < words.size; n0 += LANES) {
    float rest = add(floor, known.tail);
    u32 left = min(words.size - n0, LANES);
#pragma unroll 1
    for (u32 j = 0; j < left; j += WORDS) {
      u32 next[WORDS];
      load_heads(next, words, j + WORDS < left ? word.row : ahead.row, (j + WORDS) % LANES);
      float sums[WORDS];
#pragma unroll
      for (int i = 0; i < WORDS; ++i) sums[i] = times(heads[i], theta_Z);
      u32 own = j + lane / 8;  // this lane's word in words_sum
      float mass = add(__shfl_sync(FULL_WARP, rest, own), mul(scale, words_sum(sums)));
      float count = __shfl_sync(FULL_WARP, word.count, own), rate = divide(count, mass);
      rate = count > 0 ? rate : 0;
      rates = add(rates, rate);
      float more = add(rate, -__shfl_sync(FULL_WARP, known.rate, own));
#pragma unroll
      for (int i = 0; i < WORDS; ++i) {
        give(heads[i], __shfl_sync(FULL_WARP, more, 8 * i), found_Z);
        __syncwarp();
        heads[i] = next[i];
      }
    }
    word = ahead;
    ahead = Word(words, n0 + 2 * LANES + lane);
    known = Known(words, n0 + LANES + lane);
  }
  return rates_sum(rates);
}

// Load groups FROM to TO - 1 of a row, in pairs.
template <int FROM, int TO>
__device__ __forceinline__ void load_pairs(u32* entries, const u32* row, u32 groups) {
#pragma unroll
  for (int i = FROM; i < TO; i += 2) {
    if (i >= groups) break;
    entries[i] = __ldg(row + LANES * i);
    entries[i + 1] = __ldg(row + LANES * (i + 1));
  }
}

// Return `sum` plus the shares of groups FROM to TO - 1 times theta.
template <int FROM, int TO>
__device__ __forceinline__ float add_pairs(float sum, const u32* entries, u32 groups, const float* theta_Z) {
#pragma unroll
  for (int i = FROM; i < TO; i += 2) {
    if (i >= groups) break;
    sum = add(sum, times(entries[i], theta_Z));
    sum = add(sum, times(entries[i + 1], theta_Z));
  }
  return sum;
}

// Add `rate` times the shares of groups FROM to TO - 1 to found_Z; two are read before they are written.
template <int FROM, int TO>
__device__ __forceinline__ void give_pairs(const u32* entries, u32 groups, float rate, float* found_Z) {
#pragma unroll
  for (int i = FROM; i < TO; i += 2) {
    if (i >= groups) break;
    float found[2];
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (has_place(entries[i + j])) found[j] = found_Z[topic_of(entries[i + j])];
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      u32 entry = entries[i + j];
      if (has_place(entry)) found_Z[topic_of(entry)] = add(found[j], mul(__uint_as_float(entry), rate));
    }
  }
}

// Set tail_P and rate_P, and add each word's rate times its shares to found_Z; return the sum of rates. A row of KEEP
// groups or less is read once.
__device__ __forceinline__ float add_rows(const Words& words, float floor, float scale, const float* theta_Z,
                                          float* found_Z) {
  u32 lane = lane_id();
  float rates = 0;
  Word word(words, lane), ahead(words, LANES + lane);
  u32 first[AHEAD], groups = __shfl_sync(FULL_WARP, word.groups, 0);
  const u32* row = row_of(words, __shfl_sync(FULL_WARP, word.row, 0));
  first[0] = __ldg(row);
  load_pairs<1, AHEAD>(first, row, groups);
  for (u32 n0 = 0; n0 < words.size; n0 += LANES) {
    u32 left = min(words.size - n0, LANES);
    float own_tail = 0, own_rate = 0;  // of word n0 + lane
#pragma unroll 1
    for (u32 j = 0; j < left; ++j) {
      u32 entries[KEEP];
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) entries[i] = first[i];
      load_pairs<AHEAD, KEEP>(entries, row, groups);
      bool last = j + 1 == left;
      u32 then = last ? 0 : j + 1, next[AHEAD];
      u32 next_groups = __shfl_sync(FULL_WARP, last ? ahead.groups : word.groups, then);
      const u32* next_row = row_of(words, __shfl_sync(FULL_WARP, last ? ahead.row : word.row, then));
      next[0] = __ldg(next_row);
      load_pairs<1, AHEAD>(next, next_row, next_groups);
      float head = times(entries[0], theta_Z), tail = add_pairs<1, KEEP>(0, entries, groups, theta_Z);
#pragma unroll 1
      for (u32 i = KEEP; i < groups; i += MORE) {
        u32 more[MORE];
        load_pairs<0, MORE>(more, row + LANES * i, groups - i);
        tail = add_pairs<0, MORE>(tail, more, groups - i, theta_Z);
      }
      two_sums(head, tail);
      head = mul(scale, head), tail = mul(scale, tail);
      float count = __shfl_sync(FULL_WARP, word.count, j), rate = divide(count, add(add(floor, tail), head));
      rate = count > 0 ? rate : 0;
      if (lane / 8 == j % WORDS) rates = add(rates, rate);
      if (lane == j) own_tail = tail, own_rate = rate;
      give(entries[0], rate, found_Z);
      give_pairs<1, KEEP>(entries, groups, rate, found_Z);
#pragma unroll 1
      for (u32 i = KEEP; i < groups; i += MORE) {
        u32 more[MORE];
        load_pairs<0, MORE>(more, row + LANES * i, groups - i);
        give_pairs<0, MORE>(more, groups - i, rate, found_Z);
      }
      __syncwarp();
#pragma unroll
      for (int i = 0; i < AHEAD; ++i) first[i] = next[i];
      groups = next_groups, row = next_row;
    }
    if (lane < left) words.tail_P[words.first + n0 + lane] = own_tail, words.rate_P[words.first + n0 + lane] = own_rate;
    word = ahead;
    ahead = Word(words, n0 + 2 * LANES + lane);
  }
  return rates_sum(rates);
}

// The last move and step of a topic, rounded to bfloat16.
__device__ __forceinline__ u32 packed(float move, float step) {
  return __byte_perm(__float_as_uint(move) + 0x8000, __float_as_uint(step) + 0x8000, 0x7632);
}

// The next value after one that is `move` away from the one before, by the secant of their steps.
__device__ __forceinline__ float moved(float value, float move, float step, float before, float momentum,
                                       float greatest) {
  float less = add(before, -step), times = greatest;
  if (mul(move, less) > 0) times = fminf(fmaxf(divide(move, less), 1.0f), greatest);
  return add(add(value, mul(momentum, move)), mul(times, add(step, -mul(momentum, less))));
}

// Shapes as in fold_in.py; order_D (D,) are the documents in the order in which warps take them, one at a time;
// next (1,) counts those taken; tail_P, rate_P (P,) are 0. A lane has every 32nd topic, and every 32nd entry of a word.
// theta_Z is without the factor `scale`, which is known later. Shared memory: 2 (Z + LANES) floats for each warp;
// `scratch`: 2 Z for each warp. Without IN_SHARED, scratch has all 4 Z.
extern "C" __global__ void __launch_bounds__(THREADS, IN_SHARED ? 5 : 4) fold_in(
    const i64* starts_D1, const u32* words_P, const u32* counts_P, i64 D, const i64* order_D, u64* next,
    const u32* rows_V2, const u32* entries_N, const float* floor_Z, const float* alpha_Z, i64 Z, i64 max_iter,
    float tol, float* scratch, float* tail_P, float* rate_P, float* theta_DZ) {
  extern __shared__ float shared[];
  i64 warp = ((i64)blockIdx.x * blockDim.x + threadIdx.x) / 32;
  u32 lane = lane_id(), places = IN_SHARED ? Z + LANES : Z;
  float* lag_Z = scratch + (IN_SHARED ? 2 : 4) * Z * warp;  // found_Z of the last iteration that read all entries
  u32* past_Z = (u32*)(lag_Z + Z);                          // as `packed`
  float* theta_Z = IN_SHARED ? shared + 2 * places * (threadIdx.x / 32) : lag_Z + 2 * Z;
  float* found_Z = theta_Z + places;
  if (IN_SHARED) theta_Z[Z + lane] = found_Z[Z + lane] = 0;
  const u32* lane_entries = entries_N + lane;
  asm volatile("" : "+l"(lane_entries));  // else each address is computed from the lane and the row
  float sum = 0;
  for (i64 k = lane; k < Z; k += 32) sum = add(sum, alpha_Z[k]);
  float prior = lanes_sum(sum);
  for (;;) {
    u64 taken = lane ? 0 : atomicAdd(next, 1ull);
    taken = __shfl_sync(FULL_WARP, taken, 0);
    if (taken >= D) break;
    i64 d = order_D[taken], tokens = 0;
    Words words = {starts_D1[d], (u32)(starts_D1[d + 1] - starts_D1[d]), words_P, counts_P, (const uint2*)rows_V2,
                   lane_entries, tail_P, rate_P};
    for (u32 n = lane; n < words.size; n += 32) tokens += counts_P[words.first + n];
    for (int step = 16; step > 0; step /= 2) tokens += __shfl_xor_sync(FULL_WARP, tokens, step);
    float scale = add(1.0f, divide(__ll2float_rn(tokens), prior)), total = add(__ll2float_rn(tokens), prior);
    float limit = mul(ENOUGH, fminf(mul(tol, __ll2float_rn(Z)), mul(GREATEST_CHANGE, total)));
    float last = __int_as_float(0x7f800000);  // infinity
    bool always = false;                      // read all entries in every iteration
    sum = 0;
    for (i64 k = lane; k < Z; k += 32) {
      theta_Z[k] = alpha_Z[k];
      found_Z[k] = lag_Z[k] = 0;
      past_Z[k] = 0;
      sum = add(sum, mul(floor_Z[k], alpha_Z[k]));
    }
    float floor_sum = lanes_sum(sum);
    for (i64 iteration = 0; iteration < max_iter; ++iteration) {
      bool refresh = always || iteration == FIRST || (iteration && iteration % REFRESH == 0);
      if (refresh) {
        for (i64 k = lane; k < Z; k += 32) found_Z[k] = 0;
      }
      __syncwarp();
      float *theta = one_register(theta_Z), *found = one_register(found_Z), floor = mul(scale, floor_sum);
      float rates = refresh ? add_rows(words, floor, scale, theta, found) : add_heads(words, floor, scale, theta, found);
      float momentum = iteration ? MOMENTUM : 0, greatest = iteration ? GREATEST : 1, change = 0;
      sum = floor_sum = 0;
      for (i64 k0 = lane; k0 < Z; k0 += LANES * TOPICS) {
        u32 past[TOPICS];
        float lag[TOPICS];
#pragma unroll
        for (int i = 0; i < TOPICS; ++i) {  // all are read before any is written
          i64 k = k0 + LANES * i;
          past[i] = k < Z ? past_Z[k] : 0;
          lag[i] = k < Z && !refresh ? lag_Z[k] : 0;
        }
#pragma unroll
        for (int i = 0; i < TOPICS; ++i) {
          i64 k = k0 + LANES * i;
          if (k >= Z) break;
          float unscaled = theta_Z[k], old = mul(scale, unscaled), found = found_Z[k];
          if (refresh) lag_Z[k] = found;
          else found_Z[k] = lag[i];
          float floor = __ldg(floor_Z + k), alpha = __ldg(alpha_Z + k);
          found = fmaxf(add(found, mul(floor, rates)), 0.0f);  // the rounding of changes may leave less
          float step = add(add(alpha, mul(old, found)), -old), before = __uint_as_float(past[i] & 0xffff0000);
          float move = add(__uint_as_float(past[i] << 16), add(old, -unscaled));
          float value = fmaxf(moved(old, move, step, before, momentum, greatest), alpha);
          past_Z[k] = packed(add(value, -old), step);
          theta_Z[k] = value;
          sum = add(sum, value);
          floor_sum = add(floor_sum, mul(floor, value));
          change = add(change, fabsf(step));
        }
      }
      scale = divide(total, lanes_sum(sum)), floor_sum = lanes_sum(floor_sum), change = lanes_sum(change);
      if (change < limit && (refresh || last < mul(NEAR, limit))) break;
      if (refresh) {
        always |= change >= last;
        last = change;
      }
    }
    for (i64 k = lane; k < Z; k += 32) theta_DZ[d * Z + k] = mul(scale, theta_Z[k]);
    __syncwarp();
  }
}
