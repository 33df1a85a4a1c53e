"""Sentence markers: lmplz's rules for lines and for the words <unk>, <s> and </s> in a text, and the words' markers.

`tokenise_words` and `tokenise_ids` follow the rules. Ids get their markers there; words get them when they are counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.core.counts.shards import PartLimits
from mgpu_ngram.core.counts.vocabulary import SPECIALS
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.count.lexicon import END_CODE, START_CODE, UNFINISHED_CODE
from mgpu_ngram.kernels.common.count_true import count_true
from mgpu_ngram.kernels.count.hash_words import hash_ids, hash_words
from mgpu_ngram.kernels.dispatch import array_module, to_host


@dataclass(frozen=True)
class LmplzText:
    """The rules by which KenLM's lmplz reads text (lm/builder/corpus_count.cc), and the number of shards.

    A line is <s>, its words and </s>. A last line without a newline has no </s>; if it has no words
    either, it is not a line. A text must not contain <unk>, <s> and </s> as words. Token ids are words,
    spelled in decimal, and the separator id is their newline; without a separator a file is one line, with </s>.

    With `srilm`, words are read as SRILM's ngram-count does: <unk> is an unknown word, and a last line without a
    newline has </s>. `inside` has <unk> and the words of a given vocabulary: all have ids, and the other words of the
    text have the id of <unk>.
    """

    skip_symbols: bool  # leave <unk>, <s> and </s> out of the text; else they are refused
    parts: PartLimits  # a part is a shard
    srilm: bool = False
    inside: Words | None = None

    @property
    def refused(self) -> tuple[bytes, ...]:
        """Return the specials that a text must not contain, or that are dropped from it."""
        return SPECIALS[1:] if self.srilm and not self.skip_symbols else SPECIALS

    def num_shards(self, tokens: int, symbols: int) -> int:
        return self.parts.num_parts(tokens, symbols)


def special_hashes(unit: str, seed: int, xp: Any) -> np.ndarray:
    """Return (3,) uint64, in host memory: the hashes of <unk>, <s> and </s> as words or token ids, by `xp`."""
    if unit == "id":
        return hash_ids((1 << 32) + np.arange(3, dtype=np.uint64))  # ids have 32 bits
    starts = np.cumsum([0, *(len(s) + 1 for s in SPECIALS[:-1])]).astype(np.uint32)
    text = xp.asarray(np.frombuffer(bytearray(b" ").join(SPECIALS), np.uint8))
    return to_host(hash_words(text, xp.asarray(starts), seed))


def mark_sentences(codes_T: Any) -> Any:
    """Insert <s> before and </s> after each line of a stream of whole lines, each ended by a 0. A line that ends with
    UNFINISHED_CODE gets a 0 instead of </s>.
    """
    xp = array_module(codes_T)
    unfinished = codes_T == UNFINISHED_CODE
    ends = (codes_T == 0) | unfinished
    lines_before_T = xp.cumsum(ends) - ends
    place_T = xp.arange(len(codes_T)) + 2 * lines_before_T + 1
    marked = xp.empty(len(codes_T) + 2 * count_true(ends), np.uint32)
    marked[place_T] = xp.where(codes_T == 0, END_CODE, xp.where(unfinished, np.uint32(0), codes_T))
    end_places = place_T[ends]
    marked[end_places + 1] = 0
    if len(end_places):
        marked[0] = START_CODE
        marked[end_places[:-1] + 2] = START_CODE
    return marked
