"""A topic model: topics of words, their priors, and the file that keeps them."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import unreadable
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.core.storage.file_heads import HEAD_BYTES, is_safetensors
from mgpu_ngram.core.storage.output import check_free
from mgpu_ngram.core.storage.safetensors import has_format, load_arrays, save_arrays
from mgpu_ngram.kernels.dispatch import array_module, to_host
from mgpu_ngram.kernels.lda.limits import MAX_ALPHA_SUM, MAX_TOPICS

FORMAT = "mgpu_ngram topic model"
FORMAT_VERSION = 1
MODEL_FILE = "model.safetensors"  # name in the folder of a run
COUNTS_AT_ONCE = 1 << 24  # dense counts that are read or searched at once


@dataclass(frozen=True, eq=False)
class Priors:
    """The parameters of the Dirichlet priors.

    alpha_Z  (Z,) float64: prior of the topics in a document
    beta     prior of the words in a topic
    seeds    special priors of some words: word id -> (Z,) float32
    """

    alpha_Z: np.ndarray
    beta: float
    seeds: dict[int, np.ndarray] = field(default_factory=dict)

    def sums_Z(self, num_words: int) -> np.ndarray:
        """Return (Z,) float64, the sum over words of the priors of each topic."""
        own_KZ = np.array([*self.seeds.values()], np.float64).reshape(len(self.seeds), len(self.alpha_Z))
        sums_Z: np.ndarray = self.beta * (num_words - len(self.seeds)) + own_KZ.sum(0)
        return sums_Z


@dataclass(frozen=True, eq=False)
class TopicModel:
    """The number of tokens of each word and topic, by word, and the priors.

    word_starts_V1  (V + 1,) int64: word v has the entries word_starts_V1[v] to word_starts_V1[v + 1]
    topics_N        (N,) uint16, ascending within a word
    counts_N        (N,) uint32, at least 1
    words           the V words; None: the model has only ids
    sweeps          sweeps of the training
    settings        settings of the training, for people to read: JSON values
    history         metrics after some sweeps: dicts with "sweep" and figures, see `engine.lda.metrics`
    """

    word_starts_V1: np.ndarray
    topics_N: np.ndarray
    counts_N: np.ndarray
    priors: Priors
    words: Words | None = None
    sweeps: int = 0
    settings: dict[str, Any] = field(default_factory=dict)
    history: tuple[dict[str, Any], ...] = ()

    @classmethod
    def of_counts(cls, counts_VZ: Any, priors: Priors, **others: Any) -> TopicModel:
        """Return the model of dense counts (V, Z) uint32, NumPy or CuPy, without a dense copy in host memory."""
        V, Z = counts_VZ.shape
        xp, step = array_module(counts_VZ), max(1, COUNTS_AT_ONCE // Z)
        sizes, topics, counts = [np.zeros(1, np.int64)], [np.zeros(0, np.uint16)], [np.zeros(0, np.uint32)]
        for v in range(0, V, step):
            part = counts_VZ[v : v + step]
            words_N, topics_N = xp.nonzero(part)
            sizes.append(to_host((part > 0).sum(1, dtype=np.int64)))
            topics.append(to_host(topics_N.astype(np.uint16)))
            counts.append(to_host(part[words_N, topics_N]))
        starts_V1 = np.cumsum(np.concatenate(sizes))
        return cls(starts_V1, np.concatenate(topics), np.concatenate(counts), priors, **others)

    @property
    def num_words(self) -> int:
        """Return V, the number of words."""
        return len(self.word_starts_V1) - 1

    @property
    def num_topics(self) -> int:
        """Return Z, the number of topics."""
        return len(self.priors.alpha_Z)

    @property
    def tokens(self) -> int:
        """Return the number of tokens that the model was trained on."""
        return int(self.counts_N.sum(dtype=np.int64))

    def counts_VZ(self, first: int = 0, last: int | None = None) -> np.ndarray:
        """Return the counts of words first to last - 1, by default of all words, as a dense (V, Z) uint32 array."""
        starts_V1 = self.word_starts_V1[first : None if last is None else last + 1]
        entries, sizes_V = slice(int(starts_V1[0]), int(starts_V1[-1])), np.diff(starts_V1)
        counts_VZ = np.zeros((len(sizes_V), self.num_topics), np.uint32)
        counts_VZ[np.repeat(np.arange(len(sizes_V)), sizes_V), self.topics_N[entries]] = self.counts_N[entries]
        return counts_VZ

    def counts_by_words(self) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (first word, dense counts (v, Z) uint32) of consecutive words: about COUNTS_AT_ONCE counts at once."""
        step = max(1, COUNTS_AT_ONCE // self.num_topics)
        for v in range(0, self.num_words, step):
            yield v, self.counts_VZ(v, min(v + step, self.num_words))

    def totals_Z(self) -> np.ndarray:
        """Return (Z,) int64, the tokens of each topic."""
        totals_Z = np.zeros(self.num_topics, np.int64)
        np.add.at(totals_Z, self.topics_N, self.counts_N)
        return totals_Z

    def word_totals_V(self) -> np.ndarray:
        """Return (V,) int64, the tokens of each word."""
        through_N1 = np.concatenate([[0], np.cumsum(self.counts_N, dtype=np.int64)])
        return np.diff(through_N1[self.word_starts_V1])

    def pseudocounts_ZV(self) -> np.ndarray:
        """Return (Z, V) float64: counts plus word priors, which scikit-learn calls components_."""
        table_ZV = np.full((self.num_topics, self.num_words), self.priors.beta)
        for n in range(0, len(self.counts_N), COUNTS_AT_ONCE):
            topics_n, counts_n = self.topics_N[n : n + COUNTS_AT_ONCE], self.counts_N[n : n + COUNTS_AT_ONCE]
            words_n = np.searchsorted(self.word_starts_V1, np.arange(n, n + len(counts_n)), "right") - 1
            table_ZV[topics_n, words_n] += counts_n
        for word, prior_Z in self.priors.seeds.items():
            table_ZV[:, word] += prior_Z - self.priors.beta
        return table_ZV


def save_topic_model(path: str | Path, model: TopicModel, overwrite: bool = False) -> int:
    """Write a model to a safetensors file and return its bytes.

    overwrite  replace a topic model; any other file is never replaced

    Raises InputError if the path is taken and RunError if the disk is full.
    """
    check_free(path, overwrite, "a topic model", lambda file: has_format(file, FORMAT))
    seeds = model.priors.seeds
    arrays = {
        "word_starts_V1": model.word_starts_V1,
        "topics_N": model.topics_N,
        "counts_N": model.counts_N,
        "alpha_Z": model.priors.alpha_Z,
        "seed_words_K": np.array([*seeds], np.int64),
        "seed_priors_KZ": np.array([*seeds.values()], np.float32).reshape(len(seeds), model.num_topics),
    }
    if model.words is not None:
        arrays |= {"word_offsets_V1": model.words.offsets_V, "word_bytes": model.words.data}
    metadata = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "beta": model.priors.beta,
        "sweeps": model.sweeps,
        "settings": model.settings,
        "history": list(model.history),
    }
    return save_arrays(path, arrays, metadata)


def load_topic_model(path: str | Path, verify: bool = True) -> TopicModel:
    """Return the model of a file, with arrays that are views of a memory map; reading executes nothing.

    verify  compare checksums and check every entry, which reads all of the file

    Raises InputError if the file is missing or damaged, holds something else, or is newer than this program.
    """
    arrays, metadata = load_arrays(path, verify)
    if metadata.get("format") != FORMAT:
        found = metadata.get("format") or metadata.get("kind") or "other arrays"
        raise InputError(f"{path} holds {found}, not a topic model; give the output of `mgpu-ngram lda`")
    version = metadata.get("format_version")
    if isinstance(version, int) and version > FORMAT_VERSION:
        raise InputError(
            f"{path} has topic model version {version} but this mgpu_ngram reads up to {FORMAT_VERSION}; "
            "upgrade mgpu_ngram"
        )
    try:
        seeds = dict(zip(arrays["seed_words_K"].tolist(), arrays["seed_priors_KZ"], strict=True))
        model = TopicModel(
            word_starts_V1=arrays["word_starts_V1"],
            topics_N=arrays["topics_N"],
            counts_N=arrays["counts_N"],
            priors=Priors(arrays["alpha_Z"], float(metadata["beta"]), seeds),
            words=_words(arrays),
            sweeps=int(metadata["sweeps"]),
            settings=dict(metadata["settings"]),
            history=tuple(map(dict, metadata["history"])),
        )
        wrong = _contradiction(model, verify) if version == FORMAT_VERSION else f"its version is {version!r}"
    except (KeyError, TypeError, ValueError, IndexError) as error:
        wrong = f"it lacks {error}"
    if wrong:
        raise InputError(f"{path} is damaged: {wrong}; make it again")
    return model


def find_topic_model(path: str | Path) -> str:
    """Return the absolute path of the file of a model: of the file itself, or of the folder that a training wrote.

    Raises InputError if no topic model can be read there.
    """
    found = os.path.join(path, MODEL_FILE) if os.path.isdir(path) else str(path)
    if not os.path.isfile(found):
        missing = f"{path} has no {MODEL_FILE}" if os.path.isdir(path) else f"the topic model {path} does not exist"
        raise InputError(f"{missing}; give the output of `mgpu-ngram lda`")
    try:
        with open(found, "rb") as file:
            head = file.read(HEAD_BYTES)
    except OSError as error:
        raise unreadable(error) from None
    if not is_safetensors(head):
        raise InputError(f"{path} is not a topic model; give the output of `mgpu-ngram lda`")
    return os.path.abspath(found)


def identify_topic_model(path: str | Path) -> str:
    """Return the identity of a model file: the CRC-32 of its header, which holds the CRC-32 of each array."""
    with open(path, "rb") as file:
        size = int.from_bytes(file.read(8), "little")
        return f"{zlib.crc32(file.read(size)):08x}"


def describe_topic_model(path: str | Path) -> dict[str, Any]:
    """Return the sizes, priors, metrics and settings of a model file, as JSON values by name; compares no checksums."""
    model = load_topic_model(path, verify=False)
    alpha_Z = model.priors.alpha_Z
    return {
        "format": FORMAT,
        "topics": model.num_topics,
        "words": model.num_words,
        "vocabulary": model.words is not None,
        "tokens": model.tokens,
        "sweeps": model.sweeps,
        "alpha": {"least": float(alpha_Z.min()), "most": float(alpha_Z.max()), "sum": float(alpha_Z.sum())},
        "beta": model.priors.beta,
        "seed_words": len(model.priors.seeds),
        "metrics": dict(model.history[-1]) if model.history else {},
        "settings": model.settings,
    }


def _words(arrays: dict[str, np.ndarray]) -> Words | None:
    return Words(arrays["word_offsets_V1"], arrays["word_bytes"]) if "word_offsets_V1" in arrays else None


def _contradiction(model: TopicModel, verify: bool) -> str:
    """Return how the arrays of a file contradict each other; "" if they do not."""
    V, Z, N = model.num_words, model.num_topics, len(model.topics_N)
    arrays = model.word_starts_V1, model.topics_N, model.counts_N, model.priors.alpha_Z
    kinds = [f"{a.dtype.name} {a.ndim}D" for a in arrays]
    if kinds != ["int64 1D", "uint16 1D", "uint32 1D", "float64 1D"]:
        return f"its arrays are {', '.join(kinds)}"
    if not 1 <= Z <= MAX_TOPICS or len(model.counts_N) != N or V < 1:
        return f"it has {Z:,} topics, {V:,} words, {N:,} topics of words and {len(model.counts_N):,} counts"
    if model.words is not None and len(model.words) != V:
        return f"it has {len(model.words):,} words and counts of {V:,}"
    if model.words is not None and not _are_sound(model.words, verify):
        return "its words do not follow each other"
    alpha_Z = model.priors.alpha_Z
    if not (0 < model.priors.beta < np.inf and (alpha_Z > 0).all() and alpha_Z.sum() <= MAX_ALPHA_SUM):
        return f"a prior is not above 0, or the topic priors sum to more than {MAX_ALPHA_SUM:,}"
    for word, prior_Z in model.priors.seeds.items():
        if not (isinstance(word, int) and 0 <= word < V and prior_Z.shape == (Z,) and prior_Z.dtype == np.float32):
            return f"its seed word {word} is outside the vocabulary, or has no prior for each topic"
    starts = model.word_starts_V1
    if starts[0] != 0 or starts[-1] != N or (verify and (np.diff(starts) < 0).any()):
        return "its words' entries do not follow each other"
    if verify and N and (int(model.topics_N.max()) >= Z or not model.counts_N.all()):
        return f"a topic is above {Z - 1:,} or a count is 0"
    return ""


def _are_sound(words: Words, verify: bool) -> bool:
    """Return whether the offsets of words are; `verify` looks at each of them."""
    offsets_V, data = words.offsets_V, words.data
    if (offsets_V.dtype, data.dtype) != (np.int64, np.uint8) or (offsets_V.ndim, data.ndim) != (1, 1):
        return False
    return offsets_V[0] == 0 and offsets_V[-1] == len(data) and not (verify and (np.diff(offsets_V) < 0).any())
