"""A model on the device to a file: a model file, and an ARPA file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.estimate.ids import ORDER, ROUNDS, make_model, zipf_stream
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import NGRAMS_PER_SECOND
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.models.arpa import read_arpa
from mgpu_ngram.core.models.model_file import load_model
from mgpu_ngram.engine.count.sentence_markers import mark_sentences
from mgpu_ngram.engine.memory.copies import to_host_fast
from mgpu_ngram.engine.trie.levels import levels_of
from mgpu_ngram.jobs.estimate.assemble import Estimate, save
from mgpu_ngram.kernels.dispatch import to_host

TOKENS = 26_000_000  # at most: 63 M n-grams
TARGET_BYTES = 2e9  # a second, of a model file on an H200's host
TARGET_NGRAMS = 10e6  # a second, of an ARPA file, by
TARGET_CORES = 16
UNITS = {"safetensors": "B/s", "arpa": NGRAMS_PER_SECOND}


def write(suite: Suite, tokens: int, folder: Path) -> None:
    """Rows: both files, from the device."""
    tokens = min(tokens, TOKENS)
    suite.say(f"writing a model of {tokens:,} words")
    codes_T, words = zipf_stream(tokens, suite.xp)
    trie = make_model(mark_sentences(codes_T), len(words), suite.budget()).trie
    del codes_T
    suite.release()
    model, G = Estimate(trie, words, {}), len(trie)
    for format, name in (("safetensors", "model file"), ("arpa", "ARPA file")):
        path = folder / f"written.{format}"
        size_bytes, fingerprint, _ = save(model, path, format, None, cpu_cores())
        _check(path, format, model, fingerprint)
        rounds = []
        for _ in range(ROUNDS):
            path.unlink()  # or freeing its memory would be part of the time
            rounds.append(save(model, path, format, None, cpu_cores())[2]["write"])
        path.unlink()
        target = TARGET_BYTES if format == "safetensors" else TARGET_NGRAMS
        has_target = suite.device == "gpu" and (format == "safetensors" or cpu_cores() >= TARGET_CORES)
        suite.add(
            f"estimate/write {name}", f"n={ORDER} G={G} bytes={size_bytes}", rounds,
            items=size_bytes if format == "safetensors" else G, unit=UNITS[format],
            target=target if has_target else None,
            notes=f"to {folder.parent}, by {cpu_cores()} cores; {size_bytes:,} bytes",
        )  # fmt: skip


def _check(path: Path, format: str, model: Estimate, fingerprint: str) -> None:
    """Raise WrongResult unless the file holds the model."""
    if format == "safetensors":
        if load_model(path).fingerprint != fingerprint:
            raise WrongResult("a model file that was written holds another model; not timed")
        return
    found = read_arpa(path, cpu_cores())
    expected: Any = levels_of(model.trie.map_arrays(to_host_fast))
    for n, (got, level) in enumerate(zip(found.levels(), expected, strict=True), 1):
        same = np.array_equal(got.ids, level.ids[:]) and np.array_equal(got.prob, to_host(level.prob))
        if not same or (level.backoff is not None and not np.array_equal(got.backoff, level.backoff)):
            raise WrongResult(f"an ARPA file that was written has other {n}-grams; not timed")
