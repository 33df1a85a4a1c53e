// The gradient of the loss of a neural mixture of count distributions and words (Neubig and Dyer, "Generalizing and
// Hybridizing Count-based and Neural Language Models", 2016, equation 4). For a logit z_x,
//   gradient_x = scale * (exp(z_x - log_sum) - posterior_x),
// where posterior_x is the share of the gold word, or of a distribution, in exp(log_gold), and 0 for all other words.
// A tile for each block, 128 threads, 4 loads of 16 bytes for each thread, and no branches where all are words: the
// fastest of eight designs in 16-bit formats; in float32, memory bounds all of them: see NOTES.md.
#include "grid.cuh"
#include "floats.cuh"
#include "activations.cuh"
#include "mixture.cuh"
// A mixture of R rows of X columns, log_sum_R, log_gold_R (R,) f64, scale_R (R,) f32  ->  gradient_RX (R, X).
// A block takes a tile of a row at a time. Grid: any, of THREADS threads.
// VECTOR: rows of both arrays start at multiples of 16 bytes.
// Floor: bytes of the logits, read and written, / 4.3 TB/s. Instructions for a float32 logit: 2 to subtract, 12 for the
// exponential, 1 to scale; at the floor, an H200 issues 62 for each.

#define THREADS 128  // as in mixture_gradient.py
#define LOADS 4  // likewise
#define PER ((int)(16 / sizeof(real)))

union Part {
  uint4 all;
  real part[PER];
};

extern "C" __global__ void __launch_bounds__(THREADS) mixture_gradient(
    MIXTURE, i64 R, i64 X, const double* log_sum_R, const double* log_gold_R, const float* scale_R,
    real* gradient_RX) {
  const i64 tile = THREADS * LOADS * PER, tiles = (X + tile - 1) / tile;
  for (i64 t = blockIdx.x; t < R * tiles; t += gridDim.x) {
    const i64 r = t / tiles, begin = t % tiles * tile, start = begin + threadIdx.x * PER;
    const real* z = logits + r * stride;
    real* gradient = gradient_RX + r * X;
    const u8 dropped = dropped_R ? dropped_R[r] : 0;
    const double log_sum = log_sum_R[r], log_gold = log_gold_R[r];
    const float high = to_float(log_sum), low = to_float(__dadd_rn(log_sum, -to_double(high))), scale = scale_R[r];
    const bool has_posteriors = log_gold > __longlong_as_double(0xFFF0000000000000LL);
    const i64 gold = gold_R[r], first = dropped & WORDS ? words : 0, end = dropped & COUNTS ? words : words + N;
    Part loads[LOADS];
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
      const i64 x = start + u * THREADS * PER;
      if (VECTOR && x + PER <= X) {
        loads[u].all = __ldcs((const uint4*)(z + x));
      } else {
#pragma unroll
        for (int e = 0; e < PER; ++e) loads[u].part[e] = x + e < end ? z[x + e] : real(0);
      }
    }
    auto plain = [&](real logit) { return mul(scale, exponential(add(add(single(logit), -high), -low))); };
    if (VECTOR && begin >= first && begin + tile <= words && (gold < begin || gold >= begin + tile)) {
#pragma unroll
      for (int u = 0; u < LOADS; ++u) {  // words alone: nearly all tiles
#pragma unroll
        for (int e = 0; e < PER; ++e) loads[u].part[e] = stored(plain(loads[u].part[e]));
        __stcs((uint4*)(gradient + start + u * THREADS * PER), loads[u].all);
      }
      continue;
    }
#pragma unroll
    for (int u = 0; u < LOADS; ++u) {
      const i64 x = start + u * THREADS * PER;
      if (x >= X) break;
      const bool is_plain = x >= first && x + PER <= words && (gold < x || gold >= x + PER);
#pragma unroll
      for (int e = 0; e < PER; ++e) {
        float value = plain(loads[u].part[e]);
        if (!is_plain) {
          const i64 at = x + e;
          if (at < first || at >= end) {
            value = 0;
          } else if (has_posteriors && (at >= words || at == gold)) {
            double term = to_double(single(loads[u].part[e]));
            if (at >= words) term = __dadd_rn(term, to_double(log_probs_RN[r * N + at - words]));
            value = add(value, -mul(scale, exponential(to_float(__dadd_rn(term, -log_gold)))));
          }
        }
        loads[u].part[e] = stored(value);
      }
      if (VECTOR && x + PER <= X) {
        __stcs((uint4*)(gradient + x), loads[u].all);
      } else {
#pragma unroll
        for (int e = 0; e < PER; ++e) {
          if (x + e < X) gradient[x + e] = loads[u].part[e];
        }
      }
    }
  }
}
