#include "common.cuh"
#include "floats.cuh"
#include "edges.cuh"
#include "filters.cuh"
#define MAX_ORDER 96  // as in score_tokens.py

typedef int i32;

// nodes_M (M,) and state_G (G,) i32 of a StateTable, states_B (B,) i32, words_B (B,) WORD
//   ->  prob_B (B,) f32, next_B (B,) i32: see step_states.py. One thread for each state.
// Floor: reads of 32 bytes at random: two for each history that lacks the word at most, mostly one, and three for the
// history that has it.
extern "C" __global__ void step_states(const ulonglong2* slots_E, const ulonglong2* words_V, i64 buckets, i64 word_bits,
                                       i64 key_bits, i64 node_bits, i64 check_bits, i64 filter_bits,
                                       const ulonglong2* nodes_M, i64 M, const i32* state_G, i64 V, const i32* states_B,
                                       const WORD* words_B, i64 B, float unit, float* prob_B, i32* next_B) {
  Edges edges = {slots_E, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits};
  GRID_STRIDE_LOOP(b, B) {
    i64 word = words_B[b], node = states_B[b];
    if (word < 0 || word >= V) word = 0;
    if (node >= M) node = -1;
    float prob = edge_values(words_V[word]).x, missing[MAX_ORDER];
    u64 found = word;
    int missed = 0;
    while (node >= 0) {
      const ulonglong2 of_node = nodes_M[node];
      if (of_node.x >> filter_bit((u32)word, 64) & 1) {
        const ulonglong2 slot = find_edge(edges, node, (u32)word);
        if (slot.x) {
          prob = edge_values(slot).x;
          found = slot.x & ((1ULL << edges.node_bits) - 1);
          break;
        }
      }
      missing[missed++] = __uint_as_float((u32)of_node.y);
      const u32 suffix = (u32)(of_node.y >> 32);
      node = suffix == 0xFFFFFFFFu ? -1 : (i64)suffix;
    }
    while (missed > 0) prob = add(prob, missing[--missed]);
    prob_B[b] = mul(prob, unit);
    next_B[b] = state_G[found];
  }
}
