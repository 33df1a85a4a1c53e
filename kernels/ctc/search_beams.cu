// Prefix beam search of the outputs of connectionist temporal classification (Graves et al., 2006) with an n-gram
// model, as `_decode_logits` of pyctcdecode 0.5.0 does it: the score of a beam is the logarithm of the sum over its
// alignments that the search has kept, plus alpha log P(words) and beta for each word.
// A block per utterance, as a frame needs the one before it. 512 candidates at once were the fastest of 256, 512 and
// 1,024 over one and many utterances: see NOTES.md.
#include "grid.cuh"
#include "integer_hash.cuh"
#include "floats.cuh"
#include "edges.cuh"
#include "child_filters.cuh"
#include "state_step.cuh"
#include "ranks.cuh"
#include "powers.cuh"
#include "natural_log.cuh"
#include "word_parts.cuh"
// Shapes as in search_beams.py. A block searches for an utterance, frame by frame; any grid. A frame has `n` beams and
// some tokens, and each pair of them is a candidate. Candidates of equal keys are one: a hash table in shared memory
// adds their probabilities as integers, so their order does not matter. The best K are sorted; they are the next beams.
// Floor: one read of the log-probabilities; T frames, each some 60 barriers and five loads that wait for each other.
#include "ctc_beams.cuh"

extern "C" __global__ void __launch_bounds__(THREADS) search_beams(
    const float* log_probs_BTV, i64 B, i64 T, i64 V, const int* lengths_B, const int* starts_B, const u8* kind_V,
    const int* first_V1, const int* symbols_S, const ulonglong2* hash_V, const ulonglong2* lexicon_E,
    const ulonglong2* lexicon_V, i64 lexicon_buckets, i64 lexicon_1, i64 lexicon_2, i64 lexicon_3, i64 lexicon_4,
    i64 lexicon_5, const int* word_G, const ulonglong2* hot_E, const ulonglong2* hot_V, i64 hot_buckets, i64 hot_1,
    i64 hot_2, i64 hot_3, i64 hot_4, i64 hot_5, const double* score_G, const u8* whole_G, const ulonglong2* slots_E,
    const ulonglong2* words_V, i64 buckets, i64 bits_1, i64 bits_2, i64 bits_3, i64 bits_4, i64 bits_5, i64 words,
    const ulonglong2* nodes_M, i64 M, const int* state_G, i64 end, int has_model, double weight, double alpha,
    double beta, double unknown, double unit, double prune, double least, i64 K, i64 H, i64 N, i64 C, i64 E, i64 P,
    Beam* beams_G2K, u64* history_G2KH, int* tokens_GV, u32* steps_GTK, double* scores_BN2, int* states_BN,
    int* found_B, int* paths_BNT, int* errors_B) {
  extern __shared__ u64 room[];
  u64 *key_S = room, *top_S = key_S + 2 * C, *sum_S = top_S + 2 * C;       // the hash table
  u64 *rank_E = sum_S + 2 * C, *rank_P = rank_E + E, *at_P = rank_P + P;   // merged candidates, and their order
  double* logit_E = (double*)(at_P + P);
  u32 *first_S = (u32*)(logit_E + E), *last_S = first_S + 2 * C, *place_E = last_S + 2 * C, *last_E = place_E + E;
  u16 *slot_C = (u16*)(last_E + E), *beam_K = slot_C + C;
  __shared__ u64 of_warps_64[WARPS], best;
  __shared__ int of_warps[WARPS], count, chosen, problems, has_closed;
  const Search search = {kind_V, first_V1, symbols_S, hash_V,
                         {{lexicon_E, lexicon_buckets, lexicon_1, lexicon_2, lexicon_3, lexicon_4, lexicon_5}, lexicon_V},
                         {{hot_E, hot_buckets, hot_1, hot_2, hot_3, hot_4, hot_5}, hot_V},
                         word_G, score_G, whole_G,
                         {{slots_E, buckets, bits_1, bits_2, bits_3, bits_4, bits_5}, words_V, words, nodes_M, M, state_G},
                         end, weight, alpha, beta, unknown, unit, has_model != 0};
  const int tid = threadIdx.x;
  int* const tokens_V = tokens_GV + blockIdx.x * V;
  u32* const steps_TK = steps_GTK + blockIdx.x * T * K;
  for (i64 s = tid; s < 2 * C; s += THREADS) key_S[s] = top_S[s] = sum_S[s] = 0, first_S[s] = ~0u, last_S[s] = 0;

  // Find the slots of the candidates, and the greatest of the log-probabilities that a slot adds.
  auto insert = [&](int candidate, int beam, u64 key, double logit) {
    u32 slot = (u32)key & (u32)(2 * C - 1);
    while (true) {
      const u64 there = atomicCAS(key_S + slot, 0ULL, key);
      if (there == 0 || there == key) break;
      slot = (slot + 1) & (u32)(2 * C - 1);
    }
    atomicMax(top_S + slot, ordered(logit));
    atomicMin(first_S + slot, (u32)beam);
    atomicMax(last_S + slot, (u32)beam);
    slot_C[candidate] = (u16)slot;
  };
  auto add_term = [&](int candidate, double logit) {
    const u32 slot = slot_C[candidate];
    const double d = __dadd_rn(logit, -value_of(top_S[slot]));
    if (d > SMALLEST) atomicAdd(sum_S + slot, (u64)__dmul_rn(power10(__dmul_rn(d, LOG10_E)), UNIT));
  };
  // Keep the merged log-probability and the rank of a slot until all are known.
  auto merged = [&](u32 slot) { return __dadd_rn(value_of(top_S[slot]), log_of((double)sum_S[slot], -52)); };
  auto rank = [&](int candidate, double logit, double total) {
    const u32 slot = slot_C[candidate];
    top_S[slot] = (u64)__double_as_longlong(logit);
    sum_S[slot] = ordered(total);
    atomicMax(&best, sum_S[slot]);
    slot_C[candidate] = (u16)(slot | LEADER);
  };
  auto append = [&](int candidate, u32 place) {
    if (!(slot_C[candidate] & LEADER)) return;
    const u32 slot = slot_C[candidate] & ~LEADER;
    if (sum_S[slot] >= ordered(__dadd_rn(value_of(best), prune))) {
      const int to = atomicAdd(&count, 1);
      rank_E[to] = sum_S[slot];
      logit_E[to] = __longlong_as_double((i64)top_S[slot]);
      place_E[to] = place;
      last_E[to] = last_S[slot];
    }
    key_S[slot] = top_S[slot] = sum_S[slot] = 0;
    first_S[slot] = ~0u;
    last_S[slot] = 0;
  };
  // Sort the candidates that are not too far below the best one; return how many are kept. Entry number r is then
  // at_P[r] & (2^ENTRY_BITS - 1).
  auto select = [&]() {
    if (tid == 0) chosen = 0;
    __syncthreads();
    const u64 threshold = ordered(__dadd_rn(value_of(best), prune));
    for (int e = tid; e < count; e += THREADS) {
      if (rank_E[e] < threshold) continue;
      const int to = atomicAdd(&chosen, 1);
      rank_P[to] = rank_E[e];
      at_P[to] = (u64)place_E[e] << ENTRY_BITS | e;
    }
    __syncthreads();
    const int all = chosen;
    int size = 2;
    while (size < all) size *= 2;
    for (int p = all + tid; p < size; p += THREADS) rank_P[p] = 0, at_P[p] = ~0ULL;
    __syncthreads();
    for (int length = 2; length <= size; length *= 2) {
      for (int step = length / 2; step; step /= 2) {
        for (int pair = tid; pair < size / 2; pair += THREADS) {
          const int a = 2 * pair - (pair & (step - 1)), b = a + step;
          const u64 rank_a = rank_P[a], rank_b = rank_P[b], at_a = at_P[a], at_b = at_P[b];
          const bool falls = rank_a > rank_b || (rank_a == rank_b && at_a < at_b);
          if (falls != ((a & length) == 0)) {
            rank_P[a] = rank_b, rank_P[b] = rank_a;
            at_P[a] = at_b, at_P[b] = at_a;
          }
        }
        __syncthreads();
      }
    }
    return all < (int)K ? all : (int)K;
  };
  auto entry_at = [&](int r) { return (int)(at_P[r] & ((1 << ENTRY_BITS) - 1)); };

  for (i64 b = blockIdx.x; b < B; b += gridDim.x) {
    Beam *now = beams_G2K + blockIdx.x * 2 * K, *next = now + K;
    u64 *past = history_G2KH + blockIdx.x * 2 * K * H, *future = past + K * H;
    const int length = lengths_B[b];
    int n = 1;
    __syncthreads();
    if (tid == 0) {
      now[0] = {0, 0, 0, 0, 0, 0, starts_B[b], ROOT, ROOT, ROOT, 0, -1, 0, 0};
      for (i64 h = 0; h < H; ++h) past[h] = 0;
      beam_K[0] = 0;
      problems = has_closed = 0;
    }
    __syncthreads();
    for (int t = 0; t < length; ++t) {
      // The tokens of the frame: the best one, and all that are likely enough.
      const float* row = log_probs_BTV + (b * T + t) * V;
      auto clipped = [&](i64 v) {
        const float x = row[v];
        return x > MIN_LOG_PROB ? (__float_as_int(x) < 0 ? x : 0.0f) : MIN_LOG_PROB;  // keeps subnormal numbers
      };
      const i64 per = (V + THREADS - 1) / THREADS, from = min(tid * per, V), to = min(from + per, V);
      u64 top = 0;
      for (i64 v = from; v < to; ++v) {
        const float x = row[v];
        if (!(x <= MAX_LOG_PROB)) atomicOr(&problems, x != x ? 1 : 2);
        top = max(top, rank_key(clipped(v), (u32)v));
      }
#pragma unroll
      for (int d = 16; d; d /= 2) top = max(top, __shfl_xor_sync(FULL_WARP, top, d));
      if (lane_id() == 0) of_warps_64[tid / 32] = top;
      __syncthreads();
      for (int w = 0; w < WARPS; ++w) top = max(top, of_warps_64[w]);
      const u32 argmax = key_word(top);
      int mine = 0, num_tokens;
      for (i64 v = from; v < to; ++v) mine += v == argmax || to_double(clipped(v)) >= least;
      int at = count_before(mine, of_warps, num_tokens);
      bool ends = false;
      for (i64 v = from; v < to; ++v) {
        if (v != argmax && to_double(clipped(v)) < least) continue;
        tokens_V[at++] = (int)v;
        ends |= (kind_V[v] & (SPACE | STARTS)) != 0;
      }
      if (tid == 0) count = 0, best = 0;
      ends = __syncthreads_or(ends) || has_closed;
      // The score of each beam's word, if it may end here.
      for (int i = tid; ends && i < n; i += THREADS) {
        Beam& beam = now[beam_K[i]];
        if (!beam.length || beam.flags & SCORED) continue;
        beam.flags |= SCORED | (beam.hot >= 0 && whole_G[beam.hot] ? HOT : 0);
        beam.end_raw = 0;
        beam.end_state = beam.state;
        if (has_model) beam.end_raw = word_score(search, beam.state, beam.node, false, beam.end_state);
      }
      __syncthreads();
      if (tid == 0) has_closed = 0;
      // Candidates, as many tokens at once as the table holds.
      const int at_once = max(1, (int)C / n);
      for (int first = 0; first < num_tokens; first += at_once) {
        const int candidates = min(at_once, num_tokens - first) * n;
        if (count + candidates > (int)E) {  // keep the best K in the first entries
          const int kept = select();
          u64 rank_of[4];
          double logit_of[4];
          u32 place_of[4], last_of[4];
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int r = tid + k * THREADS;
            if (r >= kept) continue;
            const int e = entry_at(r);
            rank_of[k] = rank_E[e], logit_of[k] = logit_E[e], place_of[k] = place_E[e], last_of[k] = last_E[e];
          }
          __syncthreads();
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            const int r = tid + k * THREADS;
            if (r >= kept) continue;
            rank_E[r] = rank_of[k], logit_E[r] = logit_of[k], place_E[r] = place_of[k], last_E[r] = last_of[k];
          }
          if (tid == 0) count = kept;
          __syncthreads();
        }
        for (int c = tid; c < candidates; c += THREADS) {
          const int i = c % n, token = tokens_V[first + c / n], kind = kind_V[token];
          const Beam& beam = now[beam_K[i]];
          u64 text = beam.text, part = beam.part;
          bool closed = beam.flags & CLOSED;
          if (!(kind & BLANK) && token != beam.last) {
            const ulonglong2 hash = hash_V[token];
            if (kind & (SPACE | STARTS) || closed) {
              if (beam.length) text = with_word(text, part);
              part = hash.x;
            } else {
              part = part * hash.y + hash.x;
            }
            closed = kind & CLOSES;
          }
          insert(c, i, key_of(text, part, closed, token), __dadd_rn(beam.logit, to_double(clipped(token))));
        }
        __syncthreads();
        for (int c = tid; c < candidates; c += THREADS) {
          add_term(c, __dadd_rn(now[beam_K[c % n]].logit, to_double(clipped(tokens_V[first + c / n]))));
        }
        __syncthreads();
        for (int c = tid; c < candidates; c += THREADS) {
          const u32 slot = slot_C[c];
          if (first_S[slot] != c % n) continue;
          const int token = tokens_V[first + c / n], kind = kind_V[token];
          const Beam& beam = now[beam_K[last_S[slot]]];
          double raw = beam.raw, part_score = beam.part_score;
          int hot_words = beam.hot_words;
          if (!(kind & BLANK) && token != beam.last) {
            const bool is_new = kind & (SPACE | STARTS) || beam.flags & CLOSED;
            if (is_new && beam.length) {
              raw = __dadd_rn(raw, beam.end_raw);
              hot_words += (beam.flags & HOT) != 0;
            }
            const Part part = is_new ? Part{0, 0, ROOT, ROOT, 0} : Part{0, 0, beam.node, beam.hot, beam.length};
            part_score = extended(search, part, token).score;
          }
          const double logit = merged(slot);
          rank(c, logit, total_of(search, logit, raw, hot_words, part_score));
        }
        __syncthreads();
        for (int c = tid; c < candidates; c += THREADS) append(c, (u32)((first + c / n) * (i64)n + c % n));
        __syncthreads();
      }
      int kept = select();
      for (int r = tid; r < kept; r += THREADS) {
        const int e = entry_at(r), token = tokens_V[place_E[e] / n], kind = kind_V[token], from_beam = beam_K[last_E[e]];
        Beam beam = now[from_beam];
        beam.logit = logit_E[e];
        bool adds_word = false;
        u64 word = 0;
        if (!(kind & BLANK) && token != beam.last) {
          Part part = {beam.part, 0, beam.node, beam.hot, beam.length};
          if (kind & (SPACE | STARTS) || beam.flags & CLOSED) {
            if (beam.length) {
              adds_word = true;
              word = beam.part;
              beam.text = with_word(beam.text, word);
              beam.raw = __dadd_rn(beam.raw, beam.end_raw);
              beam.state = beam.end_state;
              beam.hot_words += (beam.flags & HOT) != 0;
            }
            part = {0, 0, ROOT, ROOT, 0};
          }
          part = extended(search, part, token);
          beam.part = part.hash, beam.part_score = part.score;
          beam.node = part.node, beam.hot = part.hot, beam.length = part.length;
          beam.flags = kind & CLOSES ? CLOSED : 0;
        }
        beam.last = token;
        if (beam.flags & CLOSED) atomicOr(&has_closed, 1);
        next[r] = beam;
        for (i64 h = 0; h < H; ++h) {
          const u64* words_H = past + from_beam * H;
          future[r * H + h] = !adds_word ? words_H[h] : h ? words_H[h - 1] : mix64(word + 1);
        }
        steps_TK[t * K + r] = (u32)token << BEAM_BITS | from_beam;
      }
      __syncthreads();
      n = kept;
      if (H) {  // of beams with equal last words, keep the first
        for (int r = tid; r < kept; r += THREADS) {
          u64 words = 0;
          for (i64 h = 0; h < H; ++h) words = mix64(words ^ future[r * H + h]);
          rank_P[r] = key_of(words, next[r].part, next[r].flags & CLOSED, next[r].last);
        }
        __syncthreads();
        n = 0;
        for (int base = 0; base < kept; base += THREADS) {
          const int r = base + tid;
          bool is_first = r < kept;
          for (int other = 0; is_first && other < r; ++other) is_first = rank_P[other] != rank_P[r];
          int total;
          const int place = n + count_before(is_first, of_warps, total);
          if (is_first) beam_K[place] = (u16)r;
          n += total;
        }
      } else {
        for (int r = tid; r < kept; r += THREADS) beam_K[r] = (u16)r;
      }
      Beam* const spare = now;
      now = next, next = spare;
      u64* const spent = past;
      past = future, future = spent;
      __syncthreads();
    }
    // The ends of texts.
    if (tid == 0) count = 0, best = 0;
    __syncthreads();
    for (int i = tid; i < n; i += THREADS) {
      const Beam& beam = now[beam_K[i]];
      insert(i, i, key_of(beam.length ? with_word(beam.text, beam.part) : beam.text, 0, false, -1), beam.logit);
    }
    __syncthreads();
    for (int i = tid; i < n; i += THREADS) add_term(i, now[beam_K[i]].logit);
    __syncthreads();
    for (int i = tid; i < n; i += THREADS) {
      const u32 slot = slot_C[i];
      if (first_S[slot] != i) continue;
      Beam& beam = now[beam_K[last_S[slot]]];
      beam.end_state = beam.state;
      double raw = beam.raw;
      if (has_model) raw = __dadd_rn(raw, word_score(search, beam.state, beam.node, true, beam.end_state));
      const int hot_words = beam.hot_words + (beam.hot >= 0 && whole_G[beam.hot]);
      const double logit = merged(slot);
      rank(i, logit, total_of(search, logit, raw, hot_words, 0));
    }
    __syncthreads();
    for (int i = tid; i < n; i += THREADS) append(i, (u32)i);
    __syncthreads();
    const int found = min(select(), (int)N);
    if (tid == 0) found_B[b] = found, errors_B[b] = problems;
    for (int r = tid; r < (int)N; r += THREADS) {
      const i64 out = b * N + r;
      int* path_T = paths_BNT + out * T;
      int filled = 0;
      scores_BN2[2 * out] = scores_BN2[2 * out + 1] = 0;
      states_BN[out] = ROOT;
      if (r < found) {
        const int e = entry_at(r);
        int beam = beam_K[last_E[e]];
        scores_BN2[2 * out] = logit_E[e];
        scores_BN2[2 * out + 1] = value_of(rank_E[e]);
        states_BN[out] = now[beam].end_state;
        for (int t = length - 1; t >= 0; --t) {
          const u32 step = steps_TK[t * K + beam];
          path_T[t] = (int)(step >> BEAM_BITS);
          beam = (int)(step & ((1 << BEAM_BITS) - 1));
        }
        filled = length;
      }
      for (int t = filled; t < T; ++t) path_T[t] = -1;
    }
    __syncthreads();
  }
}
