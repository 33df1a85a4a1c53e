// A word after a state of a model: see kernels/score/step_states.py. Include after grid.cuh, floats.cuh, edges.cuh and
// child_filters.cuh.
#define MAX_ORDER 96  // as in score_tokens.py

struct States {
  Edges edges;
  const ulonglong2* words_V;
  i64 V;
  const ulonglong2* nodes_M;
  i64 M;
  const int* state_G;
};

// Return the log10 probability of a word after a state, and set the state after it.
__device__ __forceinline__ float step(const States& states, i64 node, i64 word, int& next) {
  if (word < 0 || word >= states.V) word = 0;
  if (node >= states.M) node = -1;
  float prob = edge_values(states.words_V[word]).x, missing[MAX_ORDER];
  u64 found = word;
  int missed = 0;
  while (node >= 0) {
    const ulonglong2 of_node = states.nodes_M[node];
    if (of_node.x >> filter_bit((u32)word, 64) & 1) {
      const ulonglong2 slot = find_edge(states.edges, node, (u32)word);
      if (slot.x) {
        prob = edge_values(slot).x;
        found = slot.x & ((1ULL << states.edges.node_bits) - 1);
        break;
      }
    }
    missing[missed++] = __uint_as_float((u32)of_node.y);
    const u32 suffix = (u32)(of_node.y >> 32);
    node = suffix == 0xFFFFFFFFu ? -1 : (i64)suffix;
  }
  while (missed > 0) prob = add(prob, missing[--missed]);
  next = states.state_G[found];
  return prob;
}
