// Rows of a mixture of distributions, as `Mixture` in mixture/mixture_sums.py holds them.
#define COUNTS 1  // bits of `dropped`: blocks of distributions that a row lacks
#define WORDS 2
#define MIXTURE \
  const real *logits, i64 stride, i64 words, i64 N, const float *log_probs_RN, const i64 *gold_R, const u8 *dropped_R
