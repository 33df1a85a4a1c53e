// The states of n-gram models after one more word, in a beam search with count distributions: the state of K words is
// the child, by the new word, of the state of K - 1 words of the row that it extends.
#include "grid.cuh"
#include "trie.cuh"

// nodes_RK (R, K) i64 and words_R (R,) i64  ->  new_RK i64, first_RK and end_RK CHILD, backoff_RK float, (R, K) each: see
// next_states.py; backoff_M may be null. One thread for each history of a row: neighbours search different nodes, but no
// search waits for another one.
// Floor: R * K walks of a few dependent lines each, 15.6 G/s: 1 us for 1,280 rows of 4 histories, less than a launch.
extern "C" __global__ void next_states(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                       const i64* sample_starts, i64 levels, i64 fanout, i64 M, const i64* nodes_RK,
                                       const i64* words_R, i64 R, i64 K, i64 begin, const CHILD* first_M,
                                       const float* backoff_M, float neutral, i64* new_RK, CHILD* first_RK,
                                       CHILD* end_RK, float* backoff_RK) {
  const Trie trie = {word_G, first_child_M, samples, sample_starts, levels, fanout, M};
  GRID_STRIDE_LOOP(i, R * K) {
    const i64 r = i / K, word = words_R[r];
    i64 node = -1;
    if (i == r * K) node = word >= 0 ? word : begin;
    else if (word >= 0) node = find_child(trie, nodes_RK[i - 1], (u32)word);
    new_RK[i] = node;
    first_RK[i] = node >= 0 ? first_M[node] : 0;
    end_RK[i] = node >= 0 ? first_M[node + 1] : 0;
    backoff_RK[i] = node >= 0 && backoff_M ? backoff_M[node] : neutral;
  }
}
