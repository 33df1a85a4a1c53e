"""A model from whatever file it is in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mgpu_ngram.core.arpa import Arpa, read_arpa
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.model import Model, is_model_file, load_model
from mgpu_ngram.core.trie import Ngrams
from mgpu_ngram.engine.device import to_device
from mgpu_ngram.engine.trie import FANOUT, BadNgram, build_trie
from mgpu_ngram.kernels.dispatch import to_host


def open_model(
    path: str | Path, device: str = "cpu", threads: int = 1, fanout: int = FANOUT, verify: bool = True
) -> Model:
    """The model of a file that `save_model` wrote, or of an ARPA file, plain or compressed; in host memory.

    device   where the trie of an ARPA file is built
    threads  that parse an ARPA file
    fanout   of the trie that is built; a model file has its own
    verify   compare the checksums of a model file

    Raises InputError for what is neither, is damaged, or is no sound model, with the line where it is an ARPA file.
    """
    if Path(path).is_file() and is_model_file(path):
        return load_model(path, verify)
    arpa = read_arpa(path, threads)
    try:
        trie = build_trie(_levels(arpa, device), fanout)
    except BadNgram as error:
        where = f"{str(path)!r}, line {arpa.line_of(error.order, error.row)}"
        raise InputError(f"{where}: the {error.order}-gram {error.what}") from None
    return Model.of(trie.moved(to_host), arpa.words)


def _levels(arpa: Arpa, device: str) -> Iterator[Ngrams]:
    for level in arpa.levels():
        backoff = None if level.backoff is None else to_device(level.backoff, device)
        yield Ngrams(to_device(level.ids, device), to_device(level.prob, device), backoff)
