// Rows of logits with a bias and an n-gram model, as `sum_chunks` and `best_words` take them.
// Include after exponential_sums.cuh.
// MIX: models are weighted, or there is an n-gram model. BIAS: a bias, without MIX. CHILD (u32 or i64): the type of
// ranges of an n-gram model's children, in place of whole rows `ngrams`. M models with `weights_M`; strides in elements.

#define PARTS 16  // of a chunk: what eight neighbouring lanes read of a group

#ifdef CHILD
// Return the sum of the backoffs of all histories, the longest first; `rest`: of those longer than the lane's.
__device__ __forceinline__ float sum_backoffs(const float* backoff_K, i64 K, float& rest) {
  float all = 0;
  for (i64 n = K - 1; n >= 0; --n) {
    if (n == (int)lane_id()) rest = all;
    all = add(all, backoff_K[n]);
  }
  return all;
}
#define NGRAMS \
  const CHILD *first_RK, const CHILD *end_RK, const float *backoff_RK, const u32 *word_G, const float *value_G, \
      const float *value_V, i64 K
#define NGRAM_ARGUMENTS first_RK, end_RK, backoff_RK, word_G, value_G, value_V, K
#else
#define NGRAMS const void *ngrams, i64 ngram_stride, i64 ngram_wide
#define NGRAM_ARGUMENTS ngrams, ngram_stride, ngram_wide
#endif
#define LOGIT_ROWS \
  const in_t *logits, i64 stride_M, i64 stride_R, i64 M, i64 R, i64 words, const double *weights_M, \
      const float *bias_MV, NGRAMS, float ngram_weight
