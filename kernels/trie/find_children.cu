// The child of a node by a word: a search of the node's sorted children, K-ary in an index of samples (Kaldewey et al.,
// "Parallel Search on Video Cards", 2009), so that one read of a line decides between many children.
#include "grid.cuh"
#include "trie.cuh"

// nodes_Q (Q,) i64, words_Q (Q,) u32  ->  children_Q (Q,) i64: the child of each node by a word, or -1.
extern "C" __global__ void find_children(const u32* word_G, const CHILD* first_child_M, const u32* samples,
                                         const i64* sample_starts, i64 levels, i64 fanout, i64 M, const i64* nodes_Q,
                                         const u32* words_Q, i64 Q, i64* children_Q) {
  Trie trie = {word_G, first_child_M, samples, sample_starts, levels, fanout, M};
  GRID_STRIDE_LOOP(q, Q) children_Q[q] = find_child(trie, nodes_Q[q], words_Q[q]);
}
