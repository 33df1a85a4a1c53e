"""The sizes of KenLM's binary models by their counts of n-grams, without headers and words (lm/sizes.cc)."""

from __future__ import annotations

from collections.abc import Sequence

from mgpu_ngram.core.kenlm.binary_file import SLOT_V, UNIGRAM_V, slots_of
from mgpu_ngram.core.kenlm.probing import table_dtype
from mgpu_ngram.core.kenlm.trie import BACKOFF_BITS, PROB_BITS, Entries, Packing, Pointers, table_bytes


def probing_bytes(counts: Sequence[int], multiplier: float, rest: bool = False) -> int:
    """Return the bytes of a probing model: the table of words, then the n-grams of each order."""
    size = 8 + SLOT_V.itemsize * slots_of(counts[0], multiplier)
    for n, count in enumerate(counts, 1):
        slots = count + 1 if n == 1 else slots_of(count, multiplier)
        size += slots * table_dtype(n, len(counts), rest).itemsize
    return size


def trie_bytes(counts: Sequence[int], packing: Packing) -> int:
    """Return the bytes of a trie: the hashes of words, the values of codes, then the n-grams of each order."""
    size = 8 * (1 + counts[0]) + UNIGRAM_V.itemsize * (counts[0] + 2)
    probs, backoffs = (packing.prob_bits, packing.backoff_bits) if packing.prob_bits else (PROB_BITS, BACKOFF_BITS)
    if packing.prob_bits:
        size += 8 + 4 * ((len(counts) - 1) * (1 << probs) + (len(counts) - 2) * (1 << backoffs))
    word = counts[0].bit_length()
    for count, children in zip(counts[1:-1], counts[2:], strict=True):
        pointers = Pointers.chopping(count, children, packing.pointer_bits or 0)
        if packing.pointer_bits is not None:
            size += table_bytes(pointers)
        size += Entries(0, word + probs + backoffs + pointers.inline, count).end
    return size + Entries(0, word + probs, counts[-1]).end
