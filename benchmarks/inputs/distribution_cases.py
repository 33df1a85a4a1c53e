"""The subjects of `bench distribution`: models of generated text, histories of more text, room for rows."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.suite import Suite
from mgpu_ngram.benchmarks.inputs.frequency_models import trie_of, zipf_codes, zipf_words
from mgpu_ngram.benchmarks.inputs.scoring_subjects import ORDER, Subject
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.models.row_options import ROW_ALIGNMENT_BYTES, ROW_DTYPES, RowOptions
from mgpu_ngram.engine.distribution.next_word import NextWordModel
from mgpu_ngram.engine.distribution.row_maker import FoundHistories
from mgpu_ngram.engine.memory.device import to_device
from mgpu_ngram.kernels.dispatch import array_module, to_host

FOUND_HISTORIES = {"gpu": 1_000_000, "cpu": 20_000}  # histories of one search
LOOKED_AT = 10_000  # histories, for one that is long
WRITES = {"gpu": "16-byte kernel writes", "cpu": "writes of all cores"}  # the ceiling
UNTOUCHED = 0x7F
TEXT_WORDS = {"gpu": 2_500_000, "cpu": 40_000}  # words whose histories are looked up


@dataclass(frozen=True)
class ModelSize:
    """A model to be made: words of its vocabulary, and of its text; None: as many as the run asks for."""

    symbols: int
    tokens: int | None = None


SMALL, MIDDLE, LARGE, LARGEST = "small", "middle", "large", "largest"
SHAPES = {
    SMALL: ModelSize(1_350, 6_150),  # about 23,120 n-grams: the small model of Li (2018)
    MIDDLE: ModelSize(10_000, 1_000_000),
    LARGE: ModelSize(101_359),  # the vocabulary of Li's large model
    LARGEST: ModelSize(296_484),  # that of the peers' model of 23 M n-grams
}


@dataclass(frozen=True)
class Case:
    """A model on a device, ready to find histories, and the text that they are taken from."""

    subject: Subject
    model: NextWordModel

    @classmethod
    def make(cls, shape: ModelSize, tokens: int, text_words: int, device: str, text_seed: int = 1) -> Case:
        """Return the subject with a vocabulary of all words of the language, also words that the text lacks."""
        xp, language = array_module(to_device(np.empty(0), device)), shape.symbols - 3
        training_T = zipf_codes(tokens, language, xp=xp)
        text_T = zipf_codes(text_words, language, text_seed, xp)
        trie = trie_of(training_T, shape.symbols, ORDER)
        return cls.of(Subject(trie, zipf_words(language), training_T, text_T), device)

    @classmethod
    def of(cls, subject: Subject, device: str) -> Case:
        return cls(subject, NextWordModel(BackoffModel(subject.trie, subject.words, ""), device, cpu_cores()))

    @property
    def symbols(self) -> int:
        return self.model.symbols

    @property
    def order(self) -> int:
        return self.model.order

    def options(self, **options: Any) -> RowOptions:
        return RowOptions.of(self.order, **options)

    def sizes(self, histories: int) -> str:
        return f"{self.subject.model_sizes} V={self.symbols} H={histories}"

    def positions(self, histories: int) -> Any:
        """Return the positions of the first tokens of the text."""
        return array_module(self.subject.text_T).arange(histories)

    def longest_history(self) -> Any:
        """(1,): the position of the first history of order - 1 words that has children; 0 if none has."""
        found = self.find_first(min(LOOKED_AT, len(self.subject.text_T)))
        has_children_H = to_host(found.end_HK[:, -1] > found.first_HK[:, -1])
        return array_module(self.subject.text_T).array([int(has_children_H.argmax())])

    def find(self, positions_H: Any, scale: str = "log10") -> FoundHistories:
        return self.model.find(self.subject.text_T, positions_H, True, scale)

    def find_first(self, histories: int, scale: str = "log10") -> FoundHistories:
        """The histories before the first tokens of the text."""
        return self.find(self.positions(histories), scale)


@dataclass
class DistributionBench:
    """The rows so far, room for rows of probabilities, and models that are made once, for all parts of the bench."""

    suite: Suite
    tokens: int
    size_bytes: int
    clusters: list[int]
    folder: Path
    cases: dict[ModelSize, Case] = field(default_factory=dict)

    def case(self, shape: ModelSize) -> Case:
        if shape not in self.cases:
            tokens = min(self.tokens, shape.tokens or self.tokens)
            self.suite.say(f"a model of {tokens:,} words, {shape.symbols:,} of them different")
            self.cases[shape] = Case.make(shape, tokens, TEXT_WORDS[self.suite.device], self.suite.device)
            self.suite.release()
        return self.cases[shape]

    @cached_property
    def room(self) -> Any:
        """Whole units of alignment of size_bytes, uint8 on the device: parts write rows here, one after the other."""
        return self.suite.xp.zeros(self.size_bytes - self.size_bytes % ROW_ALIGNMENT_BYTES, np.uint8)

    def most(self, case: Case, options: RowOptions) -> int:
        """Histories of the text whose rows the room holds."""
        fit = self.size_bytes // padded_bytes(case.symbols, options)
        if not fit:
            raise InputError(
                f"size is {self.size_bytes:,} bytes but the rows of one history take "
                f"{padded_bytes(case.symbols, options):,}; give a larger one (--size)"
            )
        return min(fit, len(case.subject.text_T))

    def target(self, rate: float) -> float | None:
        """Return a target on a GPU, None on a CPU."""
        return rate if self.suite.device == "gpu" else None

    def written(self, share: float, case: Case, options: RowOptions) -> float | None:
        """The target, in rows a second, of writing as fast as a share of the ceiling."""
        row_bytes = options.row_bytes(case.symbols) // len(options.orders)
        return self.target(share * self.suite.ceilings[WRITES[self.suite.device]] / row_bytes)

    def rows(self, histories: int, case: Case, options: RowOptions, packed: bool = False) -> Any:
        """(H, orders, V or more) of the room, for `Rows.dense`: rows as it makes them, or without bytes between them.

        They are filled with bytes UNTOUCHED, so that what is not written is found.
        """
        dtype, V = ROW_DTYPES[options.dtype], case.symbols
        width = V if packed else padded_bytes(V, options) // len(options.orders) // dtype.itemsize
        rows = self.room.view(dtype)[: histories * len(options.orders) * width]
        rows.view(np.uint8).fill(UNTOUCHED)
        return rows.reshape(histories, len(options.orders), width)


def padded_bytes(symbols: int, options: RowOptions) -> int:
    """Of the rows of one history, each padded to where the next may begin."""
    row_bytes = symbols * ROW_DTYPES[options.dtype].itemsize
    return len(options.orders) * -(-row_bytes // ROW_ALIGNMENT_BYTES) * ROW_ALIGNMENT_BYTES
