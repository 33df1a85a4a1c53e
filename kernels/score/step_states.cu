// log10 P(w | state) and the next state, for many states at once: the state is the longest suffix of the history that
// can matter later (Heafield, "KenLM: Faster and Smaller Language Model Queries", 2011, section 4.1).
#include "grid.cuh"
#include "floats.cuh"
#include "edges.cuh"
#include "child_filters.cuh"
#include "state_step.cuh"

typedef int i32;

// nodes_M (M,) and state_G (G,) i32 of a StateTable, states_B (B,) i32, words_B (B,) WORD
//   ->  prob_B (B,) f32, next_B (B,) i32: see step_states.py. One thread for each state.
// Floor: reads of 32 bytes at random: two for each history that lacks the word at most, mostly one, and three for the
// history that has it.
extern "C" __global__ void step_states(const ulonglong2* slots_E, const ulonglong2* words_V, i64 buckets, i64 word_bits,
                                       i64 key_bits, i64 node_bits, i64 check_bits, i64 filter_bits,
                                       const ulonglong2* nodes_M, i64 M, const i32* state_G, i64 V, const i32* states_B,
                                       const WORD* words_B, i64 B, float unit, float* prob_B, i32* next_B) {
  const States states = {{slots_E, buckets, word_bits, key_bits, node_bits, check_bits, filter_bits},
                         words_V, V, nodes_M, M, state_G};
  GRID_STRIDE_LOOP(b, B) {
    i32 next;
    prob_B[b] = mul(step(states, states_B[b], words_B[b], next), unit);
    next_B[b] = next;
  }
}
