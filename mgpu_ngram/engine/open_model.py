"""Open a model from any kind of file that holds one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mgpu_ngram.core.arpa import Arpa, read_arpa
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.files import check_path
from mgpu_ngram.core.model_file import BackoffModel, is_model_file, load_model
from mgpu_ngram.core.trie import Ngrams
from mgpu_ngram.engine.device import Stopwatch, to_device, to_host_fast
from mgpu_ngram.engine.trie import FANOUT, BadNgram, build_trie
from mgpu_ngram.kernels.compile import import_early


def open_model(
    path: str | Path,
    device: str = "cpu",
    threads: int = 1,
    fanout: int = FANOUT,
    verify: bool = True,
    watch: Stopwatch | None = None,
) -> BackoffModel:
    """Return the model of a file from `save_model`, or of an ARPA file, plain or compressed; in host memory.

    device   where to build the trie of an ARPA file
    threads  threads that parse an ARPA file
    fanout   of the trie of an ARPA file; a model file has its own
    verify   compare the checksums of a model file
    watch    records the seconds to `read` a file and to `build` a trie

    Raises InputError for another kind of file, a damaged file or an inconsistent model; for an ARPA file with the line.
    """
    check_path(path, "path")
    watch = watch or Stopwatch(device)
    if Path(path).is_file() and is_model_file(path):
        if device == "cpu":
            import_early()
        model = load_model(path, verify)
        watch.lap("read")
        return model
    arpa = read_arpa(path, threads)
    try:
        trie = build_trie(_levels(arpa, device, watch), fanout)
    except BadNgram as error:
        where = f"{str(path)!r}, line {arpa.line_of(error.order, error.row)}"
        raise InputError(f"{where}: the {error.order}-gram {error.what}") from None
    model = BackoffModel.of(trie.map_arrays(to_host_fast), arpa.words)
    watch.lap("build")
    return model


def _levels(arpa: Arpa, device: str, watch: Stopwatch) -> Iterator[Ngrams]:
    for level in arpa.levels():
        watch.lap("read")
        backoff = None if level.backoff is None else to_device(level.backoff, device)
        yield Ngrams(to_device(level.ids, device), to_device(level.prob, device), backoff)
        watch.lap("build")
