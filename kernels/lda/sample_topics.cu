// A sweep of collapsed Gibbs sampling (Griffiths and Steyvers, "Finding scientific topics", 2004): token w of document
// d draws topic k with the weight
//   (n_dk + alpha_k) (n_wk + beta_w) / (n_k + sum of beta),
// with the counts after the previous sweep (Xie et al., "CuLDA_CGS", 2018, equation 1), so that all tokens draw at
// once.
// Four lanes that also draw took 52 ms, one thread for each pair 25 ms, this design 22 ms: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "philox.cuh"
#include "topic_weights.cuh"
// One slot (a word and a range of its pairs) per block, 32 pairs per warp at a time. First, LANES lanes read the row of each
// pair's document, sum the weights of its topics, and store the sums up to the ends of PARTS parts of the row. Then each
// lane draws the tokens of one pair. A token that moves to another topic of the document reads one part again.
// Arrays of pairs and tokens are read and written once, past the first-level cache's rows: __ldcs and __stcs.

#define PER_LOAD (16 / (u32)sizeof(ENTRY))  // entries of one 16-byte load
#define PER_ROUND (LANES * PER_LOAD)        // entries that the lanes of a pair load at once
#define PAIRS (32 / LANES)                  // whose rows a warp reads at once
#define PARTS 8                             // a power of 2

// The row of a document: entries by rising topic, in whole loads that end in zeros.
struct Row {
  const ENTRY* entries;
  u32 size, bits, mask;
  __device__ __forceinline__ uint4 load(u32 i) const { return ((const uint4*)entries)[i]; }
  __device__ __forceinline__ u32 loads() const { return (size + PER_LOAD - 1) / PER_LOAD; }
  __device__ __forceinline__ u32 rounds() const { return (size + PER_ROUND - 1) / PER_ROUND; }
  __device__ __forceinline__ u32 rounds_of_part() const { return (rounds() + PARTS - 1) / PARTS; }
  // Call fn(count, 4 * topic) for each entry of a load.
  template <class F>
  __device__ __forceinline__ void each(const uint4& load, F fn) const {
    const u32 words[4] = {load.x, load.y, load.z, load.w};
    u32 places = sizeof(ENTRY) == 2 ? (0xffffu >> bits) << 2 : ~3u;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      fn(words[i] & mask, words[i] >> (bits - 2) & places);
      if (sizeof(ENTRY) == 2) fn(words[i] >> 16 & mask, words[i] >> (bits + 14) & places);
    }
  }
};

// Weight of the topic whose number times 4 is `place`.
__device__ __forceinline__ u32 at(const u32* weight_Z, u32 place) { return *(const u32*)((const char*)weight_Z + place); }

// The entries of one topic of a row: the first one, their number, and their counts together. All but the last count
// `mask`. `first` of a single entry may be the first one of its load, since `before` is asked for ends of loads.
struct Own {
  u32 first, entries, count;
  // Search the row for topic z, which it has.
  __device__ __forceinline__ void find(const Row& row, u32 z) {
    u32 left = row.size;
    first = 0;
    while (left > 1) {
      u32 half = left / 2;
      if ((u32)row.entries[first + half - 1] < z << row.bits) first += half;
      left -= half;
    }
    count = row.entries[first] & row.mask;
    entries = 1;
    if (count == row.mask) {
      for (; first + entries < row.size; ++entries) {
        u32 entry = row.entries[first + entries];
        if (entry >> row.bits != z) break;
        count += entry & row.mask;
      }
    }
  }
  // Counts of the topic in the row's entries before e.
  __device__ __forceinline__ u32 before(u32 e, u32 mask) const {
    u32 passed = min(max(e, first) - first, entries);
    return passed == entries ? count : passed * mask;
  }
};

// Shapes as in sample_topics.py. `first` is the number of document 0.
//   topics_T, new_VZ  in and out;  changed (1,): number of tokens whose topic changes, is added to
// Shared memory: 8 (PARTS - 1) bytes for each thread; 8 bytes for each group of topics and 8 more; and 4 Z bytes, or
// these in `scratch`, for each block.
extern "C" __global__ void __launch_bounds__(THREADS, 1024 / THREADS) sample_topics(
    const u32* rows_D2, u16* topics_T, const ENTRY* entries_T, u64 first, u32 bits, const i64* slots_S3, i64 S,
    const u32* document_P, const u32* token_P, const u8* count_P, const u32* counts_VZ, const float* inverse_Z,
    const float* less_Z, const float* alpha_Z, float beta, const int* seeds_V, const float* beta_KZ, i64 Z, u32* new_VZ,
    u64 seed, u32 sweep, u32 exclude_self, u32* scratch, u64* changed) {
  extern __shared__ u64 shared[];
  u32 warp = threadIdx.x / 32, lane = lane_id(), pair_lane = lane % LANES;
  u64* through = shared + warp * 32;  // of lane i's row: sum up to the end of part j at i + j * THREADS
  u64* before_G = shared + (PARTS - 1) * THREADS;
  u32 G = (Z + GROUP - 1) / GROUP, moved = 0;
  u32* weight_Z = WEIGHTS_IN_SHARED ? (u32*)(before_G + G + 1) : scratch + blockIdx.x * Z;
  for (i64 s = blockIdx.x; s < S; s += gridDim.x) {
    __syncthreads();  // all threads are done with the slot before
    i64 w = slots_S3[3 * s], end_pair = slots_S3[3 * s + 2];
    const u32* count_Z = counts_VZ + w * Z;
    u32* new_Z = new_VZ + w * Z;
    const float* beta_Z = seeds_V && seeds_V[w] >= 0 ? beta_KZ + seeds_V[w] * Z : nullptr;
    float scale = weigh_word(count_Z, inverse_Z, alpha_Z, beta, beta_Z, Z, weight_Z, before_G);
    u64 all_prior = before_G[G];
    for (i64 p0 = slots_S3[3 * s + 1] + warp * 32; p0 < end_pair; p0 += THREADS) {
      i64 p = p0 + lane;
      u32 d = 0, token = 0, count = 0, z_next = 0;
      uint2 found = {0, 0};
      if (p < end_pair) {
        d = __ldcs(document_P + p), token = __ldcs(token_P + p), count = __ldcs(count_P + p);
        found = __ldcs((const uint2*)rows_D2 + d);
        z_next = __ldcs(topics_T + token);
      }
      Row row = {entries_T + (i64)found.x * ALIGN, found.y, bits, (1u << bits) - 1};
      u64 sum = 0;
      Own own = {0, 1, 0};
      __syncwarp();  // all lanes are done with the sums of the pairs before
#pragma unroll 1  // the code of a turn is long
      for (u32 turn = 0; turn < LANES; ++turn) {
        u32 owner = turn * PAIRS + lane / LANES;
        Row here = row;
        here.entries = entries_T + (i64)__shfl_sync(FULL_WARP, found.x, owner) * ALIGN;
        here.size = __shfl_sync(FULL_WARP, found.y, owner);
        u32 place_z = 4 * __shfl_sync(FULL_WARP, z_next, owner), count_z = 0, load_z = 0;
        u32 i = pair_lane, loads = here.loads(), rounds = here.rounds(), per = here.rounds_of_part();
        u64 lane_sum = 0, pair_sum = 0;
        u64* to = through + owner;
        uint4 none = {0, 0, 0, 0}, ahead = i < loads ? here.load(i) : none;
        u32 most = __reduce_max_sync(FULL_WARP, rounds);  // so that the warp stays together
        for (u32 round = 1, stop = per; round <= most; ++round) {
          uint4 load = ahead;
          ahead = i + LANES < loads ? here.load(i + LANES) : none;
          u32 count_before = count_z;
          here.each(load, [&](u32 n, u32 place) {
            lane_sum += (u64)n * at(weight_Z, place);
            if (place == place_z) count_z += n;
          });
          if (count_z != count_before) load_z = i;
          i += LANES;
          pair_sum = lane_sum;
#pragma unroll
          for (int step = 1; step < LANES; step *= 2) pair_sum += __shfl_xor_sync(FULL_WARP, pair_sum, step);
          if (round == stop) {
            if (pair_lane == 0 && round < rounds) *to = pair_sum;
            to += THREADS;
            stop += per;
          }
        }
#pragma unroll
        for (int step = 1; step < LANES; step *= 2) {
          count_z += __shfl_xor_sync(FULL_WARP, count_z, step);
          load_z += __shfl_xor_sync(FULL_WARP, load_z, step);
        }
        u32 source = lane % PAIRS * LANES;
        pair_sum = __shfl_sync(FULL_WARP, pair_sum, source);
        count_z = __shfl_sync(FULL_WARP, count_z, source);
        load_z = __shfl_sync(FULL_WARP, load_z, source);
        if (lane / PAIRS == turn) sum = pair_sum, own.count = count_z, own.first = load_z * PER_LOAD;
      }
      __syncwarp();  // `through` is written
      u32 rounds = row.rounds(), per = row.rounds_of_part();
      // A count of `mask` or more may take several entries, which are to be found.
      u32 z_before = own.count < row.mask ? z_next : ~0u;
      for (u32 i = 0; i < count; ++i) {
        u32 z = z_next, weight = weight_Z[z];
        if (i + 1 < count) z_next = __ldcs(topics_T + token + i + 1);
        if (z != z_before) own.find(row, z);
        z_before = z;
        u64 others = sum - (u64)own.count * weight, prior = prior_weight(weight, alpha_Z[z]), kept;
        if (exclude_self) {
          float b = beta_Z ? beta_Z[z] : beta;
          u32 less = word_weight(word_share(count_Z[z] - 1, b, less_Z[z]), scale);
          kept = ((u64)(own.count - 1) * less << PRIOR_BITS) + prior_weight(less, alpha_Z[z]);
        } else {
          kept = ((u64)own.count * weight << PRIOR_BITS) + prior;
        }
        u64 total = kept + (others << PRIOR_BITS) + all_prior - prior;
        u32 position = token + i - found.x * ALIGN;
        u64 x = __umul64hi(random_bits(seed, DRAWS, sweep, first + d, position), total);
        if (x < kept) continue;
        x -= kept;
        u32 topic;
        if (x < others << PRIOR_BITS) {
          x >>= PRIOR_BITS;
          u32 part = 0;
          u64 skipped = 0;  // weights of topics but z before the part
#pragma unroll
          for (u32 step = PARTS / 2; step > 0; step /= 2) {
            u32 end = (part + step) * per;
            if (end < rounds) {
              u64 to_here = through[lane + (part + step - 1) * THREADS];
              to_here -= (u64)own.before(end * PER_ROUND, row.mask) * weight;
              if (to_here <= x) part += step, skipped = to_here;
            }
          }
          x -= skipped;
          u32 e = part * per * PER_ROUND, passed;
          u64 running = 0;
          do {
            passed = 0;
            row.each(row.load(e / PER_LOAD), [&](u32 n, u32 place) {
              running += (u64)(place == 4 * z ? 0 : n) * at(weight_Z, place);
              passed += running <= x;
            });
            e += passed;
          } while (passed == PER_LOAD);
          topic = (u32)row.entries[e] >> bits;
        } else {
          x -= others << PRIOR_BITS;
          // Leave out z: sums from its group's end on lack its weight.
          u32 g = 0, left = G, own_group = z / GROUP;
          while (left > 1) {  // the last group that begins at or below x
            u32 half = left / 2;
            u64 start = before_G[g + half] - (g + half > own_group ? prior : 0);
            if (start <= x) g += half;
            left -= half;
          }
          x -= before_G[g] - (g > own_group ? prior : 0);
          topic = g * GROUP;
          u64 running = 0;
          u32 end = min((u32)Z, topic + GROUP);
          for (u32 k = topic; k < end; ++k) {
            running += k == z ? 0 : prior_weight(weight_Z[k], alpha_Z[k]);
            topic += running <= x;
          }
        }
        __stcs(topics_T + token + i, (u16)topic);
        atomicSub(&new_Z[z], 1u);
        atomicAdd(&new_Z[topic], 1u);
        ++moved;
      }
    }
  }
  u64 all_moved = moved;
  for (int d = 16; d > 0; d /= 2) all_moved += __shfl_xor_sync(FULL_WARP, all_moved, d);
  if (lane_id() == 0 && all_moved) atomicAdd(changed, all_moved);
}
