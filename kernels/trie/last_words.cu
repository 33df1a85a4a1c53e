// The last words of each row of tokens, in a trie of spellings: whole words, then the one that the row ends within.
#include "grid.cuh"
#include "spellings.cuh"
#include "delimiters.cuh"

// byte_M (M,) u8, first_child_M (M + 1,) i32, offsets_P (P + 1,) i64, data u8, begins_S (S,) i64, tokens_BT (B, T) i64,
// lengths_B (B,) i64  ->  nodes_BK (B, K) i32: the node of the K-th word from the end of each text, ..., of the last
// whole one, and of the partial one; 0 for no word, M for one that the trie lacks. One thread for each word.
// Floor: the latency of some dependent reads for each byte. Few rows have few words, so this is no time.
extern "C" __global__ void last_words(const u8* byte_M, const i32* first_child_M, i64 M, const i64* offsets_P,
                                      const u8* data, i64 P, const i64* begins_S, i64 S, const i64* tokens_BT,
                                      const i64* lengths_B, i64 B, i64 T, i64 K, i32* nodes_BK) {
  GRID_STRIDE_LOOP(n, B * K) {
    const i64 b = n / K, back = K - 1 - (n - b * K), stop = T - lengths_B[b];
    const i64* tokens_T = tokens_BT + b * T;
    i64 passed = 0, first_t = 0, first_i = 0, last_t = 0, last_i = 0;
    bool inside = false, done = false;
    for (i64 t = T - 1; t >= stop && !done; --t) {
      const i64 token = tokens_T[t], piece = token >= 0 && token < P - 1 ? token : P - 1;
      for (i64 s = 0; s < S; ++s) done = done || begins_S[s] == token;
      if (done) break;
      for (i64 i = offsets_P[piece + 1] - 1; i >= offsets_P[piece] && !done; --i) {
        if (is_space(data[i])) {
          if (inside && passed == back) {
            done = true;
          } else {
            passed += inside || passed == 0;
            inside = false;
            done = passed > back;
          }
        } else {
          if (!inside) last_t = t, last_i = i;
          first_t = t, first_i = i, inside = true;
        }
      }
    }
    i64 node = 0;
    if (inside && passed == back) {
      for (i64 t = first_t; t <= last_t; ++t) {
        const i64 token = tokens_T[t], piece = token >= 0 && token < P - 1 ? token : P - 1;
        const i64 begin = t == first_t ? first_i : offsets_P[piece];
        const i64 end = t == last_t ? last_i + 1 : offsets_P[piece + 1];
        for (i64 i = begin; i < end && node < M; ++i) {
          node = spelling_child(byte_M, first_child_M, M, node, data[i]);
        }
      }
    }
    nodes_BK[n] = (i32)node;
  }
}
