// A word drawn from P(w | history)^(1 / temperature) without making the row. The weights of the children of a history
// and of each shorter one have stored sums. A draw picks a history by its sum times its backoffs, then a child by a
// binary search in the sums. A word that follows a longer history, too, is refused and drawn again (rejection sampling,
// von Neumann, "Various Techniques Used in Connection with Random Digits", 1951), so few reads do where V is large.
#include "grid.cuh"
#include "integer_hash.cuh"
#include "draws.cuh"
#include "floats.cuh"
#include "powers.cuh"
#include "sorted_search.cuh"
#include "backoff_levels.cuh"

// Ranges and backoffs (H, K) of the histories of 1 to K words, sums_G (G,) f64 and the rest as in draw_words.py
//   ->  id_H (H,). One thread per history. Shared memory: K + 1 masses for each thread.
extern "C" __global__ void draw_words(const CHILD* first_HK, const CHILD* end_HK, const float* backoff_HK, i64 H, i64 K,
                                      const u32* word_G, const double* sums_G, i64 V, const i64* numbers_H, u64 seed,
                                      double inverse, i64 tries, int* id_H) {
  extern __shared__ double masses[];
  GRID_STRIDE_LOOP(h, H) {
    Levels levels = {first_HK + h * K, end_HK + h * K, backoff_HK + h * K, K, V, word_G, sums_G, inverse,
                     masses + threadIdx.x};
    levels.weigh();
    int id = levels.total > 0 ? NOT_DRAWN : NO_WORD;
    u64 stream = stream_of(seed, (u64)numbers_H[h]);
    for (i64 t = 0; id == NOT_DRAWN && t < tries; ++t) {
      i64 level;
      u32 word;
      if (levels.draw(stream, t, level, word) >= 0) id = (int)word;
    }
    id_H[h] = id;
  }
}
