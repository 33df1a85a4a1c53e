"""Write the model of estimate, mix or prune as a model file or an ARPA file; `jobs/convert` writes other formats."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mgpu_ngram.core.models.arpa import write_arpa
from mgpu_ngram.core.models.model_file import save_trie
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.ngrams.trie import Ngrams, Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.trie.levels import levels_of, trie_with_one_unknown
from mgpu_ngram.engine.trie.row_sums import check_row_sums


def write_model(
    path: str | Path, trie: Trie, words: Words, format: str, threads: int, *, header: Sequence[str] | None = None,
    closed: bool = False, is_normal: bool = False,
) -> tuple[int, str]:  # fmt: skip
    """Write a model; return its size in bytes and its fingerprint, "" of an ARPA file.

    trie    on any device; not quantised for an ARPA file
    format  "safetensors" for a model file, or "arpa"
    header  comments of an ARPA file
    closed  leave <unk> out of an ARPA file; longer n-grams must not contain it

    is_normal  check that probabilities sum to 1 (`check_row_sums`)

    An ARPA file may list <UNK> beside <unk>, as those of lmplz; a model file has one word for both, as their readers.
    The file appears at `path` when it is complete.
    """
    if is_normal:
        check_row_sums(trie, words)
    if format == "arpa":
        levels = levels_of(trie.map_arrays(to_host_fast))
        if closed:
            levels = [_without_unknown(levels[0]), *levels[1:]]
        write_arpa(path, words, levels, header, threads)
        return Path(path).stat().st_size, ""
    return save_trie(path, *trie_with_one_unknown(trie, words)), identify(str(path))


def _without_unknown(words: Ngrams) -> Ngrams:
    """Return the 1-grams without the first one, which is <unk>."""
    backoff = None if words.backoff is None else words.backoff[1:]
    return Ngrams(words.ids[:][1:], words.prob[1:], backoff)
