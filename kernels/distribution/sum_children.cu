// Sums of P(child | node)^(1 / temperature) up to each child of a node, in which `draw_words` searches.
// They are added one after the other, although lanes could add by shuffles: so a CPU gives the same bits.
#include "grid.cuh"
#include "floats.cuh"
#include "powers.cuh"

// Nodes and first children as in sum_children.py; `groups` is M + 1  ->  sums_G (G,) f64.
// One warp for each group of siblings: lanes compute the weights of 32 nodes at once, and add them one after the other.
extern "C" __global__ void sum_children(const float* prob_G, const u32* word_G, const CHILD* first_child_M, i64 groups,
                                        double inverse, i64 left_out, double* sums_G) {
  int lane = lane_id();
  GRID_STRIDE_LOOP(thread, 32 * groups) {
    i64 m = thread / 32, begin = m ? first_child_M[m - 1] : 0, end = first_child_M[m];
    double total = 0;
    for (i64 base = begin; base < end; base += 32) {
      i64 g = base + lane;
      double weight = 0, upto = 0;
      if (g < end) {
        double log10 = to_double(prob_G[g]);
        if (log10 > MIN_LOG10 && (i64)word_G[g] != left_out) weight = raised(log10, inverse);
      }
      int size = (int)min((i64)32, end - base);
      for (int i = 0; i < size; ++i) {
        total = __dadd_rn(total, __shfl_sync(FULL_WARP, weight, i));
        if (i == lane) upto = total;
      }
      if (g < end) sums_G[g] = upto;
    }
  }
}
