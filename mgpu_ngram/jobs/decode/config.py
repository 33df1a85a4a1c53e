"""The settings of a decode job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name


@dataclass(frozen=True)
class DecodeConfig:
    """Settings of a decode job; the keys of its YAML."""

    models: list[str]  # .npz files of one model, or of an ensemble
    text: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line, columns between tabs
    source_vocab: list[Any]  # JSON, YAML or plain list of words: of each column, or of each factor of a word. A list
    # in the list: of the factors of a column
    target_vocab: str  # likewise, of the output
    bpe: list[str] = field(default_factory=list)  # byte pair codes of each column; without them text is split already
    debpe: bool = True  # join split words of the output; only with bpe
    columns: list[int] = field(default_factory=list)  # column that each model reads, from 0; empty: all the first
    names: list[str] = field(default_factory=list)  # of the models in n-best lists; empty: F0, F1, ...
    weights: list[float] = field(default_factory=list)  # of the models' log-probabilities; empty: 1 each
    lm: str | None = None  # n-gram model that takes part, of any format, or the name of an earlier job
    lm_weight: float = 0.2  # of its log-probabilities
    beam_size: int = 1  # hypotheses of a sentence
    n_best: int = 0  # results of a sentence in an n-best list, at most beam_size; 0: the best alone, as plain text
    length_penalty: float = 0.0  # a of score = (sum - word_penalty * length) / length^a; 1: Amun's normalize
    word_penalty: float = 0.0  # for each word
    max_length: int = 200  # words of a sentence that are read; 0: all
    max_length_multiple: float = 2.0  # most words of a result for each word of the source
    max_steps: int = 0  # most words of any result; 0: no other limit
    allow_unk: bool = False  # whether a result may have <unk>
    early_stopping: Literal["amun", "first", "bound"] = "amun"  # when a sentence is done: its beam is used up; it has
    # one result; no other result can be better
    sample: bool = False  # draw beam_size results at random
    top_k: int = 0  # draw from the k most probable words; 0: all
    top_p: float = 1.0  # draw from the most probable words that hold this probability
    temperature: float = 1.0  # divides log-probabilities before a draw
    seed: int = 0  # of the random numbers
    prefixes: str | None = None  # file with the first words of the results, a line for each sentence
    targets: str | None = None  # file with results to score, a line for each sentence
    softmax_filter: str | None = None  # lexical shortlist: lines "target source p", or with tabs "source target p"
    first_words: int = 10_000  # most frequent target words that the shortlist always allows
    most_translations: int = 1_000  # of a source word that the shortlist allows
    alignment: Literal["none", "hard", "soft", "nematus"] = "none"  # attention that is written after a result
    wipo: bool = False  # n-best lists with their sizes, each line after "OUT: "
    mini_batch: int | None = None  # sentences that are searched at once; auto: by device and beam
    mini_batch_words: int | None = None  # most source words that are searched at once; 0: no limit; auto: by device,
    # if mini_batch is auto, too
    maxi_batch: int = 0  # sentences that are sorted by length together; 0: all of a task
    batching: Literal["refill", "drain", "naive"] = "refill"  # whether other sentences take the places of finished ones
    dtype: Literal["float32", "tf32", "float16", "bfloat16"] = "float32"  # of products; see docs/decode.md
    table_bytes: Bytes = 64 << 20  # memory of the device for each model's tables of products of words; 0: no tables
    chunk_sentences: int | None = None  # sentences of one task; auto: by device and text
    text_column: str = "text"  # column of Parquet inputs
    name: str = "decode"  # folder of the result, in the run's output

    def __post_init__(self) -> None:
        check_name(self.name)
        check_at_least(self, 1, "beam_size", "chunk_sentences", "mini_batch")
        check_at_least(self, 0, "max_length", "n_best", "seed", "table_bytes")
        M = len(self.models)
        for name in ("names", "weights"):
            if getattr(self, name) and len(getattr(self, name)) != M:
                raise InputError(f"there are {M} models but {len(getattr(self, name))} {name}; give one for each model")
        if self.n_best > self.beam_size:
            raise InputError(f"n_best is {self.n_best} but must be at most beam_size, {self.beam_size}")
        if self.wipo and not self.n_best:
            raise InputError("wipo is a form of n-best lists but n_best is 0; give --n-best (in YAML n_best: N)")
        if self.alignment == "nematus" and self.n_best:
            raise InputError("the Nematus alignment is of the best result alone; give hard or soft with n_best")
        if self.prefixes and self.targets:
            raise InputError("prefixes and targets are given but a target has its own first words; give one of them")
        if self.targets and (self.sample or self.n_best > 1):
            raise InputError("targets are scored, not searched for; leave sample and n_best out, or n_best: 1")
        for name in ("top_k", "top_p", "temperature", "seed"):
            if not self.sample and getattr(self, name) != getattr(type(self), name):
                raise InputError(f"{name} is for samples; add --sample (in YAML sample: true), or leave it out")

    @property
    def line_names(self) -> tuple[str, ...]:
        """Return the names of the sums in n-best lists."""
        names = self.names or [f"F{i}" for i in range(len(self.models))]
        return (*names, "LM") if self.lm else tuple(names)
