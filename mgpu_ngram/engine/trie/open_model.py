"""Open a model from a file of any supported format."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.kenlm.binary_file import KenlmFile
from mgpu_ngram.core.kenlm.intermediate import read_intermediate
from mgpu_ngram.core.kenlm.probing import KenlmProbing
from mgpu_ngram.core.kenlm.trie import KenlmTrie
from mgpu_ngram.core.models.arpa import Arpa, read_arpa
from mgpu_ngram.core.models.model_file import BackoffModel, load_model
from mgpu_ngram.core.models.model_head import ModelHead, read_head
from mgpu_ngram.core.models.repeated_ngrams import warn_of_repeated
from mgpu_ngram.core.ngrams.trie import Ngrams, renumbered
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.file_heads import INTERMEDIATE, KENLM
from mgpu_ngram.engine.memory.copies import to_device_fast, to_host_fast
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.trie.build import FANOUT, BadNgram, build_trie
from mgpu_ngram.engine.trie.levels import with_one_unknown
from mgpu_ngram.kernels.compile_cpu import import_early
from mgpu_ngram.kernels.score.score_by_keys import KeyTables


def open_model(
    file: str | Path | ModelHead,
    device: str = "cpu",
    threads: int = 1,
    fanout: int = FANOUT,
    verify: bool = True,
    watch: Stopwatch | None = None,
    read: Callable[[str | Path, int], Arpa] = read_arpa,
) -> BackoffModel:
    """Return the model of a file from `save_model`, an ARPA file, plain or compressed, a KenLM binary model, or
    KenLM's intermediate model (PREFIX.kenlm_intermediate, beside its other files).

    The model is in host memory. A KenLM binary model must be a local file and hold its words.

    file     path, or the head of the file if the caller has read it
    device   device that builds the trie, for files other than model files
    threads  threads that parse an ARPA file, and find the n-grams of a probing model
    fanout   fanout of the trie, for files other than model files, which have their own
    verify   compare the checksums of a model file
    watch    records the seconds to `read` a file and to `build` a trie
    read     `read_arpa`, or a partial of it with options

    Raises InputError for another kind of file, a damaged file or an inconsistent model; for an ARPA file with the line.
    """
    head = read_head(file)
    path = head.path
    watch = watch or Stopwatch(device)
    if head.is_model_file:
        if device == "cpu":
            import_early()
        model = load_model(path, verify)
        watch.lap("read")
        return model
    if head.kind == KENLM:
        return _open_kenlm(head, device, threads, fanout, watch)
    if head.kind == INTERMEDIATE:
        return _open_intermediate(head, device, fanout, watch)
    arpa, repeated = read(path, threads), dict[int, int]()
    try:
        trie = build_trie(_moved(arpa.levels(), device, watch), fanout, repeated)
    except BadNgram as error:
        where = f"{str(path)!r}, line {arpa.line_of(error.order, error.row)}"
        raise InputError(f"{where}: the {error.order}-gram {error.what}") from None
    warn_of_repeated(path, {1: arpa.repeated} | repeated)
    model = BackoffModel.of(trie.map_arrays(to_host_fast), arpa.words)
    watch.lap("build")
    return model


def _open_kenlm(head: ModelHead, device: str, threads: int, fanout: int, watch: Stopwatch) -> BackoffModel:
    file = KenlmFile(head.path, head.head)
    move = partial(to_device_fast, device=device)
    sections = KenlmTrie(file) if file.header.is_trie else KenlmProbing(file, threads, move)
    words, levels, repeated = file.read_words(sections.end), sections.levels(), dict[int, int]()
    hidden = int(np.count_nonzero(file.id_V != np.arange(len(file.id_V))))
    if hidden:
        is_read_V = file.id_V == np.arange(len(file.id_V))
        words, levels = words.kept(is_read_V), renumbered(levels, (np.cumsum(is_read_V) - 1)[file.id_V], is_read_V)
    try:
        trie = build_trie(_moved(levels, device, watch), fanout, repeated)
    except BadNgram as error:
        raise file.damaged(f"one of its {error.order}-grams {error.what.partition(';')[0]}") from None
    warn_of_repeated(head.path, {1: hidden} | repeated)
    model = BackoffModel.of(trie.map_arrays(to_host_fast), words)
    watch.lap("build")
    return model


@dataclass(frozen=True)
class KeyedModel:
    """A probing model in the form of KenLM's file: it scores text, but the words of its n-grams are unknown.

    tables  views of the file, which is memory-mapped
    words   V words
    ngrams  number of n-grams, without n-grams that KenLM filled in
    """

    path: str | Path
    tables: KeyTables
    words: Words
    ngrams: int

    @property
    def order(self) -> int:
        return len(self.tables.slots_N)


def open_keyed(file: str | Path | ModelHead) -> KeyedModel:
    """Return the model of a KenLM probing file; `file` as in `open_model`.

    Raises InputError for a damaged header, damaged words, or a file that is too short.
    """
    head = read_head(file)
    mapped = KenlmFile(head.path, head.head)
    probing = KenlmProbing(mapped)
    return KeyedModel(head.path, probing.tables(), mapped.read_words(probing.end), sum(mapped.header.counts))


def _open_intermediate(head: ModelHead, device: str, fanout: int, watch: Stopwatch) -> BackoffModel:
    words, levels = with_one_unknown(*read_intermediate(head.path, head.head))
    try:
        trie = build_trie(_moved(levels, device, watch), fanout, {})
    except BadNgram as error:
        raise InputError(
            f"{str(head.path)!r} is damaged: row {error.row:,} of order {error.order} {error.what}"
        ) from None
    model = BackoffModel.of(trie.map_arrays(to_host_fast), words)
    watch.lap("build")
    return model


def _moved(levels: Iterator[Ngrams], device: str, watch: Stopwatch) -> Iterator[Ngrams]:
    for level in levels:
        watch.lap("read")
        backoff = None if level.backoff is None else to_device(level.backoff, device)
        yield Ngrams(to_device(level.ids, device), to_device(level.prob, device), backoff)
        watch.lap("build")
