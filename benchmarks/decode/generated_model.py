"""What the parts of `bench decode` share: a generated model and its files, sentences, and checks of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.machine_rates import device_seconds
from mgpu_ngram.benchmarks.harness.rows import Row
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.inputs.frequency_models import zipf_words
from mgpu_ngram.benchmarks.inputs.plain_beam_search import EOS, PlainSearch
from mgpu_ngram.engine.decode.batch import Batching
from mgpu_ngram.engine.decode.open_translation import Translation, TranslationFiles, open_translation
from mgpu_ngram.engine.decode.search_options import Hypothesis, SearchOptions

SEED = 1
SOURCE_WORDS_PER_SECOND = "source words/s"
SENTENCE_WORDS = 25  # without the end of the sentence
SPREAD = 3.0  # standard deviation of the logits, about
FORCE = 1e4  # added to or taken from the logit of the end of a sentence; float16 holds it
DTYPES = {"gpu": ("float32", "float16"), "cpu": ("float32",)}  # dtypes of products; a CPU has no others
TOLERANCES = {"float32": 1e-4, "float16": 1e-2}  # relative tolerance of the cost of given words
SEARCH_TOLERANCE = 1e-4  # of the best cost, in float32; rounding to float16 leads to other words of other costs
CHECKED = 2  # sentences that plain NumPy translates, too


@dataclass(frozen=True)
class GRUShape:
    """The sizes of a GRU model: words of source and target, embeddings, states. Attention has twice the states."""

    vocab_size: int
    embedding: int
    state: int

    def __str__(self) -> str:
        return f"V={self.vocab_size} E={self.embedding} H={self.state}"


SHAPES = {"gpu": GRUShape(50_000, 512, 1024), "cpu": GRUShape(4_000, 64, 128)}
FULL = SHAPES["gpu"]
SENTENCES_AT_ONCE = {"gpu": 1024, "cpu": 64}


def random_tensors(shape: GRUShape) -> dict[str, np.ndarray]:
    """Return the tensors of a model of random weights, by Nematus' names. The end of a sentence never wins."""
    V, E, H, C = shape.vocab_size, shape.embedding, shape.state, 2 * shape.state
    rng = np.random.default_rng(SEED)

    def normal(*size: int, scale: float | None = None) -> np.ndarray:
        factor = size[0] ** -0.5 if scale is None else scale
        return rng.standard_normal(size, np.float32) * np.float32(factor)

    found = {"Wemb": normal(V, E, scale=1), "Wemb_dec": normal(V, E, scale=1)}
    for prefix, X, nl in (("encoder_", E, ""), ("encoder_r_", E, ""), ("decoder_", E, ""), ("decoder_", C, "_nl")):
        w = prefix + ("Wc" if nl else "W")
        found |= {w: normal(X, 2 * H), f"{w}x": normal(X, H)}
        found |= {f"{prefix}U{nl}": normal(H, 2 * H), f"{prefix}Ux{nl}": normal(H, H)}
        found |= {f"{prefix}b{nl}": normal(2 * H, scale=0.1), f"{prefix}bx{nl}": normal(H, scale=0.1)}
    found |= {"decoder_W_comb_att": normal(H, C), "decoder_Wc_att": normal(C, C)}
    found |= {"decoder_b_att": normal(C, scale=0.1), "decoder_U_att": normal(C, 1)}
    found["decoder_c_tt"] = np.zeros(1, np.float32)  # has no effect, but Amun reads it
    found |= {"ff_state_W": normal(C, H), "ff_state_b": normal(H, scale=0.1)}
    for part, X in (("lstm", H), ("prev", E), ("ctx", C)):
        found |= {f"ff_logit_{part}_W": normal(X, E), f"ff_logit_{part}_b": normal(E, scale=0.1)}
    found |= {"ff_logit_W": normal(E, V, scale=2 * SPREAD * E**-0.5), "ff_logit_b": normal(V, scale=0.1)}
    found["ff_logit_b"][EOS] = -FORCE
    return found


@dataclass
class System:
    """A generated model, and its files in a folder."""

    shape: GRUShape
    tensors: Mapping[str, np.ndarray]
    files: TranslationFiles

    @classmethod
    def make(cls, shape: GRUShape, folder: Path) -> System:
        """Generate the model; its words are those of generated text."""
        tensors = random_tensors(shape)
        stem = f"{shape}".replace(" ", "-")
        model, vocabulary = folder / f"{stem}.npz", folder / f"{stem}.json"
        np.savez(model, **tensors)  # type: ignore[arg-type]
        words = ["</s>", "<unk>", *list(zipf_words(shape.vocab_size - 2))[3:]]
        vocabulary.write_text(json.dumps({word: i for i, word in enumerate(words)}))
        return cls(shape, tensors, TranslationFiles((str(model),), ((str(vocabulary),),), str(vocabulary)))

    @cached_property
    def plain(self) -> PlainSearch:
        """The search of plain NumPy."""
        return PlainSearch(self.tensors)


@dataclass
class DecodeBench:
    """What all parts measure with.

    words     of all sentences of the whole decode, their ends not counted
    clusters  numbers of workers
    """

    suite: Suite
    words: int
    clusters: list[int]
    folder: Path
    _open: dict[str, Translation] = field(default_factory=dict)  # by dtype; the last one

    @property
    def sentences(self) -> int:
        return max(1, self.words // SENTENCE_WORDS)

    @cached_property
    def system(self) -> System:
        """The generated model of all parts but the one with n-grams."""
        self.suite.say("generating a model")
        return System.make(SHAPES[self.suite.device], self.folder)

    @property
    def is_full(self) -> bool:
        """Whether targets hold: for the whole model on a GPU."""
        return self.suite.device == "gpu" and self.system.shape == FULL

    def translation(self, dtype: str = "float32") -> Translation:
        """Return the system on the device; the last one is kept."""
        if dtype not in self._open:
            self._open.clear()
            self.suite.release()
            self._open[dtype] = open_translation(self.system.files, self.suite.device, dtype)
        return self._open[dtype]


def random_sources(length_S: Sequence[int] | np.ndarray, vocab_size: int) -> list[np.ndarray]:
    """Return sentences of so many words drawn at random, each with its end."""
    rng = np.random.default_rng(SEED)
    return [np.append(rng.integers(2, vocab_size, int(length)), EOS) for length in length_S]


def options_of(beam_size: int) -> SearchOptions:
    """Return the options under which each result has as many words as its source, the end of it included."""
    return SearchOptions(beam_size, max_length_multiple=1.0)


def check_results(
    found: Sequence[Sequence[Hypothesis]], sources: Sequence[np.ndarray], plain: PlainSearch, beam_size: int, dtype: str
) -> None:
    """Raise WrongResult unless the first results have the costs that plain NumPy gives them, and in float32 the best.

    Costs are compared, not words: rounding may choose the other of two hypotheses of nearly the same cost.
    """
    if min(map(len, found), default=1) < 1:
        raise WrongResult("a sentence has no result; not timed")
    for s in range(min(CHECKED, len(sources))):
        best = found[s][0]
        words = [word for word in best.words if word != EOS]
        _, expected = plain.best(sources[s], beam_size, len(words))
        own = plain.cost(sources[s], words)
        is_own = abs(best.cost - own) <= TOLERANCES[dtype] * abs(own)
        is_best = dtype != "float32" or best.cost >= expected - SEARCH_TOLERANCE * abs(expected)
        if not (is_own and is_best):
            raise WrongResult(
                f"sentence {s} has cost {best.cost} but NumPy gives {own} to its words and finds {expected}; not timed"
            )


def run_on_device(
    suite: Suite, kernel: str, sizes: str, call: Callable[[], Any], check: Callable[[Any], None], **how: Any
) -> Row:
    """Check what `call` returns, then add a row of its time on the device, without the host's part; `how`: as `add`."""
    check(call())
    return suite.add(kernel, sizes, device_seconds(call, suite.device), **how)


def fastest(rows: Sequence[Row]) -> dict[str, Any]:
    """Return the fastest row as the baseline of another; nothing without rows."""
    timed = [row for row in rows if row.median_seconds is not None]
    if not timed:
        return {}
    best = min(timed, key=lambda row: row.median_seconds or 0.0)
    return {"baseline": best.kernel, "baseline_seconds": best.median_seconds}


def words_in(sources: Sequence[np.ndarray]) -> int:
    """Return the words of sources, their ends not counted."""
    return sum(map(len, sources)) - len(sources)


def sizes_of(shape: GRUShape, sources: Sequence[np.ndarray], beam_size: int, batching: Batching) -> str:
    """Return the sizes of a row of whole decodes."""
    return f"{shape} sentences={len(sources)} words={words_in(sources)} beam={beam_size} batch={batching.sentences}"
