// A row as a mixture of levels: level m has the children of the last m words, level 0 all words. See draw_words.py.
// Include after grid.cuh, draws.cuh, floats.cuh, powers.cuh and sorted_search.cuh.
struct Levels {
  const CHILD *first_K, *end_K;  // of the histories of 1 to K words
  const float* backoff_K;        // log10
  i64 K, V;
  const u32* word_G;
  const double* sums_G;
  double inverse;
  double* masses;  // of this thread, in shared memory: of level m and all longer histories at m * blockDim.x
  double total;

  __device__ __forceinline__ i64 first(i64 m) const { return m ? first_K[m - 1] : 0; }
  __device__ __forceinline__ i64 end(i64 m) const { return m ? end_K[m - 1] : V; }
  // Return the log10 of the backoffs of level m, given those of level m + 1.
  __device__ __forceinline__ double backed_off(double log10, i64 m) const {
    return m < K ? __dadd_rn(log10, to_double(backoff_K[m])) : log10;
  }
  // Return the factor of the weights of a level whose backoffs have that log10.
  __device__ __forceinline__ double factor(double log10) const {
    return log10 > MIN_LOG10 ? raised(log10, inverse) : 0;
  }
  __device__ __forceinline__ void weigh() {
    double log10 = total = 0;
    for (i64 m = K; m >= 0; --m) {
      log10 = backed_off(log10, m);
      i64 stop = end(m);
      if (stop > first(m)) total = __dadd_rn(total, __dmul_rn(sums_G[stop - 1], factor(log10)));
      masses[m * blockDim.x] = total;
    }
  }
  // Return the node of try t and its level and word, or -1 if a longer history has the word, too. total is above 0.
  __device__ __forceinline__ i64 draw(u64 stream, u64 t, i64& level, u32& word) const {
    double x = __dmul_rn(uniform_of(stream, 2 * t), total);
    i64 m = K;
    while (m > 0 && masses[m * blockDim.x] <= x) --m;
    i64 low = first(m), high = end(m) - 1;
    double y = __dmul_rn(uniform_of(stream, 2 * t + 1), sums_G[high]);
    while (low < high) {
      i64 middle = (low + high) / 2;
      if (sums_G[middle] > y) high = middle; else low = middle + 1;
    }
    level = m;
    word = m ? word_G[low] : (u32)low;
    return m < K && contains(word_G, first(m + 1), end(m + 1), word) ? -1 : low;
  }
};
