"""Results of a search as text: plain lines, n-best lists and alignments in the formats of Amun."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mgpu_ngram.core.nmt.bpe import without_bpe, words_in_line
from mgpu_ngram.core.nmt.vocabulary import NmtVocabulary
from mgpu_ngram.engine.decode.search_options import Hypothesis


def text_of(hypothesis: Hypothesis, vocabulary: NmtVocabulary, join_bpe: bool = False) -> str:
    """Return the words without the end of the sentence; `join_bpe` joins split words."""
    line = " ".join(vocabulary.decode(hypothesis.words))
    return without_bpe(line) if join_bpe else line


def hard_alignment(hypothesis: Hypothesis, eos: int) -> str:
    """Return "target-source" pairs: the source word of the greatest weight for each target word."""
    rows = _rows(hypothesis, eos)
    return " ".join(f"{t}-{row.argmax()}" for t, row in enumerate(rows))


def soft_alignment(hypothesis: Hypothesis, eos: int) -> str:
    """Return the weights of all source words for each target word: commas between source words."""
    return " ".join(",".join(f"{weight:g}" for weight in row) for row in _rows(hypothesis, eos))


def _rows(hypothesis: Hypothesis, eos: int) -> Any:
    """Return the attention of each target word but the end of the sentence; nothing without attention."""
    if hypothesis.alignment_LT is None:
        return []
    return hypothesis.alignment_LT[: len(hypothesis.words) - (hypothesis.words[-1] == eos)]


LINE_ALIGNMENTS = {"hard": hard_alignment, "soft": soft_alignment}  # those that fit in a line


def nematus_alignment(number: int, hypothesis: Hypothesis, text: str, source: str) -> list[str]:
    """Return the lines of a matrix of weights, a row for each target word with its end, and an empty line."""
    length, matrix = len(hypothesis.words), hypothesis.alignment_LT
    sizes = f"{len(words_in_line(source)) + 1} {length}"
    header = f"{number} ||| {text} ||| {-hypothesis.cost / length:g} ||| {source} ||| {sizes}"
    rows = [] if matrix is None else matrix
    return [header, *(" ".join(f"{weight:g}" for weight in row) for row in rows), ""]


def n_best_lines(
    number: int,
    hypotheses: Sequence[Hypothesis],
    vocabulary: NmtVocabulary,
    names: Sequence[str] = ("F0",),
    alignment: str = "",
    decimals: int = 3,
    join_bpe: bool = False,
    is_empty: bool = True,
) -> list[str]:
    """Return a line for each result: number, text, alignment, sum of each model, score.

    names      names of the models; with several models, results need `parts`
    is_empty   whether the sentence has no words
    alignment  "hard", "soft", or "" for none

    Without results there is one line, without words, so that lists stay in step with the sentences: an empty sentence
    has the score 0, another one -inf.
    """
    lines = []
    if not hypotheses:
        nothing = f"{0 if is_empty else -math.inf:.{decimals}f}"
        fields = [str(number), "", *([""] if alignment else []), " ".join(f"{name}= {nothing}" for name in names)]
        return [" ||| ".join([*fields, nothing])]
    for hypothesis in hypotheses:
        parts = hypothesis.parts or (hypothesis.cost,)
        sums = " ".join(f"{name}= {part:.{decimals}f}" for name, part in zip(names, parts, strict=True))
        fields = [str(number), text_of(hypothesis, vocabulary, join_bpe)]
        if alignment:
            fields.append(LINE_ALIGNMENTS[alignment](hypothesis, vocabulary.eos))
        lines.append(" ||| ".join([*fields, sums, f"{hypothesis.score:.{decimals}f}"]))
    return lines


def wipo_lines(lines: Sequence[str]) -> list[str]:
    """Return the n-best lines of a sentence after their number, with "OUT: " before each."""
    return [f"OUT: {len(lines)}", *(f"OUT: {line}" for line in lines)]
