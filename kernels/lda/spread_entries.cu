// The entries of each word (topic and share) in an order in which 32 neighbours fall into different banks of shared
// memory, where `fold_in` reads theta. It made `fold_in` 50 ms instead of 57: see NOTES.md.
#include "grid.cuh"

#define LANES 32   // as in spread_entries.py
#define IN_BANK 3  // of the first LANES entries, as in spread_entries.py

// starts_V1 (V + 1,), entries_N (N,) -> spread_N (N,): see spread_entries.py. A thread takes a word.
extern "C" __global__ void spread_entries(const i64* starts_V1, const u32* entries_N, i64 V, u32* spread_N) {
  GRID_STRIDE_LOOP(v, V) {
    i64 first = starts_V1[v], end = starts_V1[v + 1];
    u32 in_bank[LANES], others[LANES], ranks[LANES], heads = 0;
    for (u32 b = 0; b < LANES; ++b) in_bank[b] = others[b] = ranks[b] = 0;
    for (i64 e = first; e < end; ++e) {
      u32 bank = entries_N[e] % LANES;
      if (heads < LANES && in_bank[bank] < IN_BANK) ++heads, ++in_bank[bank];
      else ++others[bank];
    }
    for (u32 b = 0; b < LANES; ++b) in_bank[b] = 0;
    u32 found = 0;
    for (i64 e = first; e < end; ++e) {
      u32 bank = entries_N[e] % LANES;
      if (found < LANES && in_bank[bank] < IN_BANK) {
        ++in_bank[bank];
        spread_N[first + found++] = entries_N[e];
      } else {
        u32 rank = ranks[bank]++;
        i64 at = first + heads;
        for (u32 b = 0; b < LANES; ++b) at += min(others[b], rank + (b < bank));
        spread_N[at] = entries_N[e];
      }
    }
  }
}
