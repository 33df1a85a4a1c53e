"""How sentences share a device: sizes of batches, a batch that drains, and new sentences in free places."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.decode import amun as decode_amun
from mgpu_ngram.benchmarks.decode.generated_model import (
    FORCE,
    SEED,
    SENTENCES_AT_ONCE,
    SOURCE_WORDS_PER_SECOND,
    DecodeBench,
    check_results,
    random_sources,
    sizes_of,
    words_in,
)
from mgpu_ngram.benchmarks.decode.whole import WholeDecode, decode_row
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs.plain_beam_search import EOS
from mgpu_ngram.engine.decode.batch import BATCHINGS, Batching, decode
from mgpu_ngram.engine.decode.search_options import Hypothesis, SearchOptions
from mgpu_ngram.engine.decode.state_trees import state_module
from mgpu_ngram.engine.decode.step_function import StepFunction
from mgpu_ngram.kernels.dispatch import array_module

BATCHES = {"gpu": (1, 4, 16, 64, 256, 1024), "cpu": (1, 8, 64)}
BATCH_TARGET = 40  # times the rate of one sentence at once, on one H200
MIN_SENTENCES = 16  # sentences of a measurement
DRAINED = {"gpu": 1280, "cpu": 48}  # sentences of a batch, as in the paper's Figure 2
DRAIN_BEAM, REFILL_BEAM = 5, 5
REFILLED = {"gpu": 10_000, "cpu": 96}
REFILL_TARGET = 1.3  # times the rate of drained batches, on one H200
STEPS_OF_ROW = 8  # steps whose mean is one row
MEAN_WORDS, SPREAD, SHORTEST, LONGEST = 22, 0.5, 3, 80  # of sentences: a log-normal law
TARGET_SPREAD = 0.25  # of the words of a translation over those of its source: a log-normal law


def lengths(sentences: int) -> np.ndarray:
    """Return numbers of words as in text: log-normal, 3 to 80."""
    drawn = MEAN_WORDS * np.exp(SPREAD * np.random.default_rng(SEED).standard_normal(sentences))
    return np.rint(drawn).clip(SHORTEST, LONGEST).astype(np.int64)


def batch(bench: DecodeBench) -> None:
    """Rows by sentences at once, the paper's Figure 3: batches in the order of the text, and refilled ones."""
    suite, system, translation = bench.suite, bench.system, bench.translation()
    first: dict[str, float] = {}
    has_amun = decode_amun.is_there(bench, decode_amun.BATCH)
    for size in BATCHES[suite.device]:
        count = min(bench.sentences, max(MIN_SENTENCES, 4 * size))
        sources = random_sources(lengths(count), system.shape.vocab_size)
        for kind in BATCHINGS:
            suite.say(f"batches of {size}, {kind}")
            batching = Batching(size, pool=0 if kind == "refill" else size, kind=kind)
            work = WholeDecode(f"decode/batch {kind}", system, translation, system.plain, 1)
            row = decode_row(suite, work, sources, batching)
            if row.rate and first.setdefault(kind, row.rate):
                row.baseline, row.speedup = "batch=1", row.rate / first[kind]
                is_target = bench.is_full and kind == "refill" and size == max(BATCHES["gpu"])
                row.target = BATCH_TARGET * first[kind] if is_target else None
        if has_amun:
            decode_amun.add_row(bench, decode_amun.BATCH, sources, 1, size)


@dataclass(frozen=True)
class ScheduledSentence:
    """A source and the number of words of its translations, their end included."""

    ids: np.ndarray
    words: int

    def __len__(self) -> int:
        return len(self.ids)


def scheduled_sentences(sentences: int, vocab_size: int) -> list[ScheduledSentence]:
    """Return sentences whose translations are shorter or longer than they are."""
    sources = random_sources(lengths(sentences), vocab_size)
    ratio_S = np.exp(TARGET_SPREAD * np.random.default_rng(SEED + 1).standard_normal(sentences))
    words_S = [1 + max(1, round((len(ids) - 1) * ratio)) for ids, ratio in zip(sources, ratio_S, strict=True)]
    return [ScheduledSentence(ids, words) for ids, words in zip(sources, words_S, strict=True)]


class Marks:
    """Moments on a device, without waiting for it."""

    def __init__(self, device: str):
        self._device, self._marks = device, list[Any]()

    def mark(self) -> None:
        """Note this moment."""
        if self._device == "cpu":
            self._marks.append(time.perf_counter())
        else:
            import cupy

            self._marks.append(cupy.cuda.get_current_stream().record(cupy.cuda.Event()))

    def seconds(self) -> list[float]:
        """Return the seconds between neighbouring moments."""
        if self._device == "cpu":
            return np.diff(self._marks).tolist()
        import cupy

        self._marks[-1].synchronize()
        pairs = zip(self._marks, self._marks[1:], strict=False)
        return [cupy.cuda.get_elapsed_time(a, b) / 1000 for a, b in pairs]


class Scheduled:
    """Steps whose hypotheses end by a schedule: their end has probability 0 until it is due, and then 1.

    marks  notes the beginning of each step; None: nothing does, and steps may be captured
    """

    def __init__(self, steps: StepFunction, marks: Marks | None = None):
        self._steps, self._marks = steps, marks
        self.vocab_size, self.eos, self.unk, self.start_word = steps.vocab_size, steps.eos, steps.unk, steps.start_word

    @property
    def version(self) -> int | None:
        return None if self._marks else getattr(self._steps, "version", None)

    def prepare(self, sources: Sequence[ScheduledSentence]) -> None:
        if hasattr(self._steps, "prepare"):
            self._steps.prepare([source.ids for source in sources])

    def start(self, state: Any, sources: Sequence[ScheduledSentence], slots: Sequence[int]) -> Any:
        before = None if state is None else state["model"]
        model = self._steps.start(before, [source.ids for source in sources], slots)
        xp = state_module(model)
        left_R = xp.asarray(np.array([source.words - 1 for source in sources], np.int32))
        return {"model": model, "left": left_R if state is None else xp.concatenate([state["left"], left_R])}

    def step(self, state: Any, words_R: Any) -> tuple[Any, Any]:
        if self._marks is not None:
            self._marks.mark()
        model, scores = self._steps.step(state["model"], words_R)
        xp, left_R = array_module(words_R), state["left"]
        scores.logits_RV[:, self.eos] = xp.where(left_R > 0, -FORCE, 2 * FORCE)  # the bias is -FORCE
        return {"model": model, "left": left_R - 1}, scores


def check_scheduled(
    found: Sequence[Sequence[Hypothesis]], sentences: Sequence[ScheduledSentence], bench: DecodeBench, k: int
) -> None:
    """Raise WrongResult unless results have the scheduled lengths, and the first ones the costs of plain NumPy."""
    for s, (results, sentence) in enumerate(zip(found, sentences, strict=True)):
        words = results[0].words if results else ()
        if len(words) != sentence.words or words[-1] != EOS:
            raise WrongResult(f"sentence {s} has {len(words)} words but is scheduled for {sentence.words}; not timed")
    check_results(found, [sentence.ids for sentence in sentences], bench.system.plain, k, "float32")


def scheduled(
    bench: DecodeBench, sentences: Sequence[ScheduledSentence], k: int, batching: Batching, marks: Marks | None = None
) -> list[list[Hypothesis]]:
    """Return the results of sentences that end by their schedule."""
    [steps] = bench.translation().steps()
    return decode([Scheduled(steps, marks)], sentences, SearchOptions(k, max_length_multiple=4.0), batching)


def drain(bench: DecodeBench) -> None:
    """Rows by step of a batch, the paper's Figure 2: its seconds by the way of batching."""
    suite, shape = bench.suite, bench.system.shape
    size = min(DRAINED[suite.device], 2 * bench.sentences)
    for kind in BATCHINGS:
        suite.say(f"steps of a batch, {kind}")
        # Only a pool with more sentences than a batch lets new ones enter.
        sentences = scheduled_sentences(3 * size if kind == "refill" else size, shape.vocab_size)
        batching = Batching(size, kind=kind)
        check_scheduled(scheduled(bench, sentences, DRAIN_BEAM, batching), sentences, bench, DRAIN_BEAM)
        marks = Marks(suite.device)
        scheduled(bench, sentences, DRAIN_BEAM, batching, marks)
        marks.mark()
        seconds = marks.seconds()
        sizes = sizes_of(shape, [sentence.ids for sentence in sentences], DRAIN_BEAM, batching)
        for first in range(0, len(seconds), STEPS_OF_ROW):
            some = seconds[first : first + STEPS_OF_ROW]
            suite.add(
                f"decode/drain {kind}", f"{sizes} step={first + 1}", [sum(some) / len(some)], items=1, unit="steps/s",
                notes=f"mean of {len(some)} steps",
            )  # fmt: skip


def refill(bench: DecodeBench) -> None:
    """Rows: translations of many lengths, in batches that keep their rows, drain, or are refilled."""
    suite, shape = bench.suite, bench.system.shape
    count = min(REFILLED[suite.device], 4 * bench.sentences)
    sentences = scheduled_sentences(count, shape.vocab_size)
    ids = [sentence.ids for sentence in sentences]
    rates: dict[str, float] = {}
    for kind in ("drain", "refill", "naive"):
        suite.say(f"many lengths, {kind}")
        batching = Batching(SENTENCES_AT_ONCE[suite.device] // 4, kind=kind)
        row = suite.run(
            f"decode/refill {kind}", sizes_of(shape, ids, REFILL_BEAM, batching),
            lambda batching=batching: scheduled(bench, sentences, REFILL_BEAM, batching),
            check=lambda found: check_scheduled(found, sentences, bench, REFILL_BEAM), items=words_in(ids),
            unit=SOURCE_WORDS_PER_SECOND,
        )  # fmt: skip
        rates[kind] = row.rate or 0.0
        if kind == "refill" and rates["drain"]:
            row.baseline, row.speedup = "decode/refill drain", rates[kind] / rates["drain"]
            row.target = REFILL_TARGET * rates["drain"] if bench.is_full else None
