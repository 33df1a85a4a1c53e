"""Write a model as a model file or an ARPA file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from mgpu_ngram.core.arpa import write_arpa
from mgpu_ngram.core.model_file import identify, save_trie
from mgpu_ngram.core.trie import Trie
from mgpu_ngram.core.words import Words
from mgpu_ngram.engine.device import to_host_fast
from mgpu_ngram.engine.trie_levels import levels_of


def write_model(
    path: str | Path, trie: Trie, words: Words, format: str, threads: int, header: Sequence[str] | None = None
) -> tuple[int, str]:
    """Write a model; return its size in bytes and its fingerprint, "" of an ARPA file.

    trie    on any device; not quantised for an ARPA file
    format  "safetensors" for a model file, or "arpa"
    header  comments of an ARPA file

    The file appears at `path` when it is whole.
    """
    trie = trie.map_arrays(to_host_fast)
    if format == "arpa":
        write_arpa(path, words, levels_of(trie), header, threads)
        return Path(path).stat().st_size, ""
    return save_trie(path, trie, words), identify(str(path))
