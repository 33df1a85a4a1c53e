"""The settings of a decode job."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import Bytes, check_at_least, check_name


@dataclass(frozen=True)
class DecodeConfig:
    """Settings of a decode job; the keys of its YAML."""

    models: list[str]  # .npz files of one model, or of the models of an ensemble
    text: list[str]  # paths, globs, directories or fsspec URLs; one sentence per line, columns between tabs
    source_vocab: list[Any]  # vocabulary (JSON, YAML or plain list of words) of each column, or of each factor of a
    # word. A list in the list: the vocabularies of the factors of a column
    target_vocab: str  # vocabulary of the output, in the same formats
    bpe: list[str] = field(default_factory=list)  # BPE codes of each column; empty: the text is already split
    debpe: bool = True  # join split words of the output; only with bpe
    columns: list[int] = field(default_factory=list)  # number of the column that each model reads, from 0; empty: 0 for
    # all
    names: list[str] = field(default_factory=list)  # names of the models in n-best lists; empty: F0, F1, ...
    weights: list[float] = field(default_factory=list)  # weights of the models; empty: 1 each
    lm: str | None = None  # n-gram model for the search, of any format, or the name of an earlier job
    lm_weight: float = 0.2  # weight of the n-gram model
    beam_size: int = 1  # hypotheses for each sentence
    n_best: int = 0  # results for each sentence in an n-best list, at most beam_size; 0: only the best result, as plain
    # text
    length_penalty: float = 0.0  # a of score = (sum - word_penalty * length) / length^a; 1: Amun's normalize
    word_penalty: float = 0.0  # penalty for each word
    max_length: int = 200  # words of a sentence to read at most; 0: all
    max_length_multiple: float = 2.0  # maximum words of a result for each word of the source
    max_steps: int = 0  # maximum words of any result; 0: only max_length_multiple limits them
    allow_unk: bool = False  # whether a result may have <unk>
    early_stopping: Literal["amun", "first", "bound"] = "amun"  # when the search of a sentence ends: beam_size
    # hypotheses have ended; one has ended; no better result is possible
    sample: bool = False  # sample beam_size results
    top_k: int = 0  # sample from the k most probable words; 0: all
    top_p: float = 1.0  # sample from the most probable words with this total probability
    temperature: float = 1.0  # divide log-probabilities by this before sampling
    seed: int = 0  # seed of the random numbers
    prefixes: str | None = None  # file with the first words to force, a line for each sentence
    targets: str | None = None  # file with translations to score, a line for each sentence
    softmax_filter: str | None = None  # lexical shortlist: lines "target source p", or with tabs "source target p"
    first_words: int = 10_000  # number of most frequent target words that the shortlist always has
    most_translations: int = 1_000  # maximum translations of each source word that the shortlist has
    alignment: Literal["none", "hard", "soft", "nematus"] = "none"  # attention to write after each result
    wipo: bool = False  # n-best lists with their sizes, "OUT: " before each line
    mini_batch: int | None = None  # sentences decoded at once; auto: by device and beam size
    mini_batch_words: int | None = None  # maximum source words decoded at once; 0: no limit; auto: by device, if
    # mini_batch is auto, too
    maxi_batch: int = 0  # number of sentences to sort by length together; 0: all of a task
    batching: Literal["refill", "drain", "naive"] = "refill"  # refill: new sentences take the places of finished ones;
    # drain: the batch shrinks; naive: it keeps its size
    dtype: Literal["float32", "tf32", "float16", "bfloat16"] = "float32"  # number format of matrix products; see
    # docs/decode.md
    table_bytes: Bytes = 64 << 20  # device memory for each model's tables of word products; 0: no tables
    chunk_sentences: int | None = None  # sentences in one task; auto: by device and text
    text_column: str | None = None  # Parquet column (auto: text, or the only one of text) or JSON key (auto: text)
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
            raise InputError("wipo is a format of n-best lists but n_best is 0; give --n-best (in YAML n_best: N)")
        if self.alignment == "nematus" and self.n_best:
            raise InputError("the Nematus alignment is only for the best result; give hard or soft with n_best")
        if self.prefixes and self.targets:
            raise InputError("prefixes and targets are given but a target has its own first words; give one of them")
        if self.targets and (self.sample or self.n_best > 1):
            raise InputError("targets are scored without a search; leave out sample, and n_best above 1")
        for name in ("top_k", "top_p", "temperature", "seed"):
            if not self.sample and getattr(self, name) != getattr(type(self), name):
                raise InputError(f"{name} is for samples; add --sample (in YAML sample: true), or leave it out")

    @property
    def line_names(self) -> tuple[str, ...]:
        """Return the names of the sums in n-best lists."""
        names = self.names or [f"F{i}" for i in range(len(self.models))]
        return (*names, "LM") if self.lm else tuple(names)
