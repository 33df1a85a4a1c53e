"""Topic models of other programs with the priors of ours: tomotopy, scikit-learn, WarpLDA and CuLDA_CGS."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.lda.sweeps import BETA
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.bags.bags import Bags
from mgpu_ngram.core.errors import RunError

SKLEARN_PASSES = 10
CULDA_PROGRAMS = ("culda", "culda_format")  # the latter is its `format`: WarpLDA has one of this name, too
CULDA_TOPICS = 1024  # it has no other number


def is_there(program: str) -> bool:
    """Return whether tomotopy, scikit-learn or WarpLDA can run here."""
    if program == "WarpLDA":
        return shutil.which("warplda") is not None and shutil.which("format") is not None
    return find_spec({"scikit-learn": "sklearn"}.get(program, program)) is not None


def tomotopy_model(bags: Bags, topics: int, seed: int) -> Any:
    """Return a model of tomotopy's collapsed Gibbs sampling, before its first sweep; priors stay as given."""
    import tomotopy

    model = tomotopy.LDAModel(k=topics, alpha=50 / topics, eta=BETA, seed=seed)
    for words in _texts(bags):
        model.add_doc(words)
    model.optim_interval = 0
    model.train(0, workers=cpu_cores())
    return model


def phi_of_tomotopy(model: Any, num_words: int) -> np.ndarray:
    """Return (V, Z) float64; words that do not occur have the prior, as in ours."""
    ids, totals_Z = np.array([int(word) for word in model.used_vocabs]), model.get_count_by_topics()
    phi_VZ = np.stack([model.get_topic_word_dist(k) for k in range(model.k)], axis=1)
    full_VZ = np.full((num_words, model.k), BETA)
    full_VZ[ids] += np.maximum(phi_VZ * (totals_Z + BETA * len(ids)) - BETA, 0)
    return full_VZ / (totals_Z + BETA * num_words)


def sklearn_phi(bags: Bags, topics: int, seed: int) -> np.ndarray:
    """Return (V, Z) float64 after SKLEARN_PASSES of batch variational Bayes; other processes work."""
    from scipy.sparse import csr_matrix
    from sklearn.decomposition import LatentDirichletAllocation

    matrix = csr_matrix((bags.counts_P, bags.words_P, bags.starts_D1), (bags.documents, bags.num_words))
    model = LatentDirichletAllocation(
        topics, doc_topic_prior=50 / topics, topic_word_prior=BETA, learning_method="batch", max_iter=SKLEARN_PASSES,
        n_jobs=cpu_cores(), random_state=seed,
    )  # fmt: skip
    model.fit(matrix)
    return (model.components_ / model.components_.sum(1, keepdims=True)).T


def warplda_texts(bags: Bags, folder: Path) -> None:
    """Write documents as WarpLDA's program `warplda` reads them."""
    folder.mkdir(exist_ok=True)
    with open(folder / "train.txt", "w") as file:
        file.writelines(f"d{d} d{d} {' '.join(words)}\n" for d, words in enumerate(_texts(bags)))
    _run(["format", "-input", "train.txt", "-prefix", "train"], folder)


def warplda_counts(num_words: int, topics: int, sweeps: int, folder: Path) -> tuple[np.ndarray, float]:
    """Train on the documents of `warplda_texts`; return (counts (V, Z) uint32, seconds).

    The seconds include the likelihood that it computes in each iteration, about a quarter of them.
    """
    options = ["--k", str(topics), "--niter", str(sweeps), "--alpha", "50", "--beta", str(BETA)]  # alpha's sum
    said = _run(["warplda", "--prefix", "train", *options], folder)
    seconds = [float(s) for s in re.findall(r"Iteration \d+, ([0-9.]+) s,", said)]
    if not seconds:
        raise RunError("warplda prints no seconds; take it off the PATH to go on without")
    names = (folder / "train.vocab").read_text().split()
    lines = (folder / "train.model").read_text().splitlines()[1:]
    counts_VZ = np.zeros((num_words, topics), np.uint32)
    for name, line in zip(names, lines, strict=False):
        for entry in line.split()[1:]:
            topic, count = entry.split(":")
            counts_VZ[int(name), int(topic)] = int(count)
    return counts_VZ, sum(seconds)


def culda_rates(bags: Bags, sweeps: int, folder: Path) -> list[float]:
    """Return the tokens a second of each sweep that CuLDA_CGS prints for these documents, on one GPU."""
    with open(folder / "culda.txt", "w") as file:
        file.writelines(f"d{d} {' '.join(words)}\n" for d, words in enumerate(_texts(bags)))
    _run(["culda_format", "culda.txt", "culda", "1"], folder)
    priors = ["-a", str(50 / CULDA_TOPICS), "-b", str(BETA)]
    said = _run(
        ["culda", "-g", "1", "-c", "1", "-k", str(CULDA_TOPICS), "-t", str(sweeps), *priors, "-i", "culda"], folder
    )
    rates = [1e6 * float(rate) for rate in re.findall(r"Iteration\s+\d+:.*, ([\d.]+) M", said)]
    if not rates:
        raise RunError("culda prints no rates; take it off the PATH to go on without")
    return rates


def _run(command: list[str], folder: Path) -> str:
    ended = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    said = ended.stdout + ended.stderr
    if ended.returncode:
        last = (said.strip() or "it says nothing").splitlines()[-1]
        raise RunError(f"{command[0]} ended with status {ended.returncode}: {last}; take it off the PATH to go without")
    return said


def _texts(bags: Bags) -> Iterator[list[str]]:
    """Yield the words of each document, as numbers."""
    for a, b in zip(bags.starts_D1[:-1].tolist(), bags.starts_D1[1:].tolist(), strict=True):
        yield [str(w) for w in np.repeat(bags.words_P[a:b], bags.counts_P[a:b]).tolist()]
