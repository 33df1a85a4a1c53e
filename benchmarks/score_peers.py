"""KenLM's Python module beside this engine, where it is installed."""

from __future__ import annotations

from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.models import write_model
from mgpu_ngram.benchmarks.score_models import UNIT, Subject, edge_table
from mgpu_ngram.benchmarks.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.timing import measure
from mgpu_ngram.kernels.dispatch import to_host

PEER = "kenlm module, 1 thread"
TOLERANCE = 1e-5  # relative: it adds up a sentence in float32


def kenlm_seconds(suite: Suite, subject: Subject, codes_T: Any, folder: Path) -> float | None:
    """A row: the module on the same text, in words, as it takes no ids; returns its seconds, None without it."""
    try:
        import kenlm
    except ImportError:
        suite.say("kenlm is not installed, so its rate is left out; pip install kenlm")
        return None
    suite.say("kenlm reads the model")
    path = folder / "peer.arpa"
    write_model(path, subject.training_T, subject.words, subject.trie.order)
    model = kenlm.Model(str(path))
    sentences = _sentences(to_host(codes_T), list(subject.words))
    expected = float(edge_table(subject.trie).score(codes_T)[0].sum(dtype=np.float64))
    found = sum(map(model.score, sentences))
    if abs(found - expected) > TOLERANCE * abs(expected):
        raise WrongResult(f"kenlm gives log10 {found} but this engine {expected} for the same text; not timed")
    seconds = measure(lambda: sum(map(model.score, sentences)), "cpu", warm_up=False)
    how: dict[str, Any] = {"items": len(codes_T), "unit": UNIT, "notes": "words in; probing"}
    suite.add(f"score/table3 {PEER}", subject.sizes(codes_T), seconds, **how)
    return median(seconds)


def _sentences(codes_T: np.ndarray, words: list[str]) -> list[str]:
    ends = np.flatnonzero(codes_T == 0)[:-1] + 1
    return [" ".join(words[code - 1] for code in part[:-1].tolist()) for part in np.split(codes_T, ends)]
