"""Open a translation system: check that models, vocabularies, BPE codes and an n-gram model fit each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.small_files import crc_of, read_lines
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.nmt.bpe import Bpe
from mgpu_ngram.core.nmt.files import load_nmt_model
from mgpu_ngram.core.nmt.model import NmtModel
from mgpu_ngram.core.nmt.shortlist import Shortlist, load_shortlist
from mgpu_ngram.core.nmt.vocabulary import NmtVocabulary, load_nmt_vocabulary
from mgpu_ngram.engine.decode.batch import Batching, Forced, decode
from mgpu_ngram.engine.decode.ensemble import Ensemble, WeightedModel
from mgpu_ngram.engine.decode.ngram_rows import NgramRows
from mgpu_ngram.engine.decode.nmt_steps import NmtSteps
from mgpu_ngram.engine.decode.nmt_weights import MAX_TABLE_BYTES, ready
from mgpu_ngram.engine.decode.search_options import Hypothesis, SearchOptions
from mgpu_ngram.engine.decode.shortlist_steps import ShortlistSteps
from mgpu_ngram.engine.decode.source_columns import ColumnSources, ColumnSteps, SourceColumn
from mgpu_ngram.engine.decode.step_function import StepFunction
from mgpu_ngram.engine.distribution.next_word import NextWordModel, next_word_model_of
from mgpu_ngram.engine.memory.copies import to_device_fast
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.kernels.decode.activations import singles, stored

COMPUTE_DTYPES = ("float32", "tf32", "float16", "bfloat16")
TF32_DTYPES = ("tf32", "bfloat16")  # dtypes whose products a GPU makes of TF32 numbers; TF32 holds every bfloat16
START_TOKEN = "<s>"  # before the first word of models without attention; </s> where the vocabulary lacks it
LESS_MEMORY = "use smaller batches, fewer models, or dtype float16"
FIRST_WORDS, MAX_TRANSLATIONS = 10_000, 1_000  # defaults of a shortlist, as in Amun


@dataclass(frozen=True)
class TranslationFiles:
    """The files of a translation system. Picklable.

    models         .npz files of an ensemble
    source_vocabs  for each column of the input, the vocabularies of the factors of its words
    target_vocab   vocabulary of the output
    bpe            byte pair codes of each column; () for none
    columns        column of the input that each model reads, from 0; () for the first column
    lm             file of an n-gram model; "" for none
    shortlist      file of translation probabilities; "" for none. See `load_shortlist` for the other two
    """

    models: tuple[str, ...]
    source_vocabs: tuple[tuple[str, ...], ...]
    target_vocab: str
    bpe: tuple[str, ...] = ()
    columns: tuple[int, ...] = ()
    lm: str = ""
    shortlist: str = ""
    first_words: int = FIRST_WORDS
    most_translations: int = MAX_TRANSLATIONS

    def __post_init__(self) -> None:
        M, columns = len(self.models), len(self.source_vocabs)
        if not M:
            raise InputError("the list of models is empty; give the .npz file of a model")
        if not columns:
            raise InputError("there is no source vocabulary; give --source-vocab (in Python source_vocab=FILE)")
        if self.columns and len(self.columns) != M:
            raise InputError(f"there are {M} models but {len(self.columns)} columns; give one for each model")
        for column in self.columns:
            if not 0 <= column < columns:
                raise InputError(
                    f"a model reads column {column} but there are source vocabularies for {columns}, from 0; add one"
                )
        if self.bpe and len(self.bpe) != columns:
            raise InputError(f"there are {len(self.bpe)} files of BPE codes but {columns} columns; give one for each")
        if self.shortlist and columns > 1:
            raise InputError(f"a shortlist is for one column of source words but there are {columns}; leave it out")
        if self.first_words < 0 or self.most_translations < 0:
            raise InputError(
                f"the shortlist's words are {self.first_words} and {self.most_translations} but must be 0 or more"
            )

    @property
    def reads(self) -> tuple[int, ...]:
        """Return the column that each model reads."""
        return self.columns or (0,) * len(self.models)

    @property
    def paths(self) -> tuple[str, ...]:
        """Return all paths except the path of the n-gram model."""
        vocabs = [path for factors in self.source_vocabs for path in factors]
        return tuple(path for path in (*self.models, *vocabs, self.target_vocab, *self.bpe, self.shortlist) if path)

    def identity(self) -> dict[str, str]:
        """Return the identity of the contents of each file, by path."""
        return {path: crc_of(path) for path in self.paths} | ({self.lm: identify(self.lm)} if self.lm else {})


class Translation:
    """A translation system on a device, ready to decode; threads may share it.

    models   models on the device, in the order of their files
    columns  columns of the input
    target   vocabulary of the output
    """

    def __init__(
        self,
        models: Sequence[NmtModel],
        columns: Sequence[SourceColumn],
        target: NmtVocabulary,
        files: TranslationFiles,
        lm: NgramRows | None = None,
        shortlist: Shortlist | None = None,
        threads: int = 1,
    ):
        self.models, self.columns, self.target, self.files = models, columns, target, files
        self._lm, self._shortlist, self._threads = lm, shortlist, threads
        rows = [tuple(len(embedding) for embedding in model.source_embeddings) for model in models]
        parts = list(zip(files.reads, rows, strict=True))
        shown = next((i for i, model in enumerate(models) if model.attention is not None), 0)
        self._parts = list(dict.fromkeys([parts[shown], *parts]))  # distinct (column, rows), attended one first
        self._part_of = [self._parts.index(part) for part in parts]

    @property
    def vocab_size(self) -> int:
        """V of the target."""
        return self.models[0].vocab_size

    @property
    def has_attention(self) -> bool:
        """Whether any of the models has attention."""
        return any(model.attention is not None for model in self.models)

    def pieces(self, line: str) -> list[list[str]]:
        """Return the words of each column of a line as models read them.

        Raises InputError for a wrong number of columns.
        """
        texts = line.split("\t") if "\t" in line or len(self.columns) > 1 else [line]
        if len(texts) != len(self.columns):
            raise InputError(
                f"a line has {len(texts)} columns between tabs but {len(self.columns)} have a source vocabulary; "
                f"the line is {line[:80]!r}"
            )
        return [column.pieces(text) for column, text in zip(self.columns, texts, strict=True)]

    def encode(self, pieces: Sequence[Sequence[str]]) -> np.ndarray | ColumnSources:
        """Return the source that `decode` takes for the words of each column."""
        parts = [self.columns[column].encode(pieces[column], rows) for column, rows in self._parts]
        return parts[0] if len(parts) == 1 else ColumnSources(parts)

    def encode_target(self, line: str) -> np.ndarray:
        """Return the ids of words of the target, without the end of the sentence."""
        return self.target.encode(line, self.vocab_size)[:-1]

    def steps(self) -> list[StepFunction]:
        """Return the models as step functions with their own pools, for one search."""
        found: list[StepFunction] = []
        for model, part in zip(self.models, self._part_of, strict=True):
            steps: StepFunction = NmtSteps(model)
            if self._shortlist is not None:
                steps = ShortlistSteps(steps, self._shortlist)
            found.append(steps if len(self._parts) == 1 else ColumnSteps(steps, part))
        return found

    def decode(
        self,
        sources: Sequence[np.ndarray | ColumnSources],
        options: SearchOptions | None = None,
        batching: Batching | None = None,
        weights: Sequence[float] | None = None,
        lm_weight: float = 0.0,
        forced: Forced | None = None,
        first: int = 0,
    ) -> list[list[Hypothesis]]:
        """Return the results of each source from `encode`, best first; `first` is the number of the first sentence.

        weights    weights of the models, 1 each by default
        lm_weight  weight of the n-gram model
        """
        lm = None if self._lm is None else WeightedModel(self._lm, lm_weight)
        with memory_guard("decoding", self._device, LESS_MEMORY):
            models = Ensemble(self.steps(), weights or [1.0] * len(self.models), lm, self._threads)
            return decode(models, sources, options, batching, forced=forced, first=first)

    @property
    def _device(self) -> str:
        return "cpu" if isinstance(self.models[0].target_embedding, np.ndarray) else "gpu"


def open_translation(
    files: TranslationFiles,
    device: str = "cpu",
    dtype: str = "float32",
    threads: int = 1,
    lm: NextWordModel | None = None,
    table_bytes: int = MAX_TABLE_BYTES,
) -> Translation:
    """Return the system in files, on a device.

    dtype        "float32"; "tf32": a GPU rounds the factors of products to TF32 (10 bits); "float16", on a GPU also
                 for states and products; "bfloat16": weights are rounded to it, and products are those of "tf32".
                 Other products and states are float32
    threads      threads that parse an ARPA file, and choose words on a CPU
    lm           the n-gram model, if it is already loaded
    table_bytes  memory for each model's tables of products of words; see `ready`

    Raises InputError for files that are damaged or do not fit each other.
    """
    if dtype not in COMPUTE_DTYPES:
        raise InputError(f"dtype is {dtype!r} but must be one of {', '.join(COMPUTE_DTYPES)}")
    models = [load_nmt_model(path) for path in files.models]
    first = models[0]
    for model in models[1:]:
        if model.vocab_size != first.vocab_size:
            raise InputError(
                f"{model.name!r} has {model.vocab_size:,} target words but {first.name!r} has {first.vocab_size:,}; an "
                "ensemble needs one target vocabulary"
            )
    named = all(model.kind == "gru_seq2seq" for model in models)
    known = {path: load_nmt_vocabulary(path, named) for factors in files.source_vocabs for path in factors}
    target = load_nmt_vocabulary(files.target_vocab, named)
    bpe: list[Bpe | None] = [Bpe(read_lines(path, "BPE codes")[1], path) for path in files.bpe]
    bpe = bpe or [None] * len(files.source_vocabs)
    columns = [
        SourceColumn(tuple(known[path] for path in factors), codes)
        for factors, codes in zip(files.source_vocabs, bpe, strict=True)
    ]
    if not named:
        pairs = zip(models, files.reads, strict=True)
        models = [_with_ids(model, columns[at].vocabularies[0], target) for model, at in pairs]
    _check_vocabularies(models, columns, target, files)
    shortlist = None
    if files.shortlist:
        source = columns[0].vocabularies[0]
        shortlist = load_shortlist(files.shortlist, source, target, files.first_words, files.most_translations)
    if lm is None and files.lm:
        lm = next_word_model_of(files.lm, identify(files.lm), device, threads)
    tokens = [target.tokens[i] if i < len(target.tokens) else "" for i in range(first.vocab_size)]
    if lm is not None and not any(lm.words.id(token) for i, token in enumerate(tokens) if i != first.eos):
        raise InputError(
            f"the n-gram model {files.lm!r} knows no word of vocabulary {files.target_vocab!r}, such as "
            f"{tokens[-1]!r}; estimate one from text of the target, split into the same pieces"
        )
    rows = None if lm is None else NgramRows(lm, tokens, first.eos)
    with memory_guard("loading a translation model", device, LESS_MEMORY):
        placed = [
            ready(
                model.map_arrays(lambda array: to_device_fast(_rounded(array, dtype, device), device)),
                dtype in TF32_DTYPES,
                table_bytes,
            )
            for model in models
        ]
    return Translation(placed, columns, target, files, rows, shortlist, threads)


def _rounded(array: np.ndarray, dtype: str, device: str) -> np.ndarray:
    """Return weights, float32, rounded to a dtype: as float16 for a GPU that computes in it, else as float32."""
    if dtype == "bfloat16":
        return singles(stored(array, np.dtype(np.uint16)))
    if dtype == "float16":
        halves = array.astype(np.float16)
        return halves if device == "gpu" else halves.astype(np.float32)
    return array


def _with_ids(model: NmtModel, source: NmtVocabulary, target: NmtVocabulary) -> NmtModel:
    """Return the model; a model without attention gets the ids of the vocabularies."""
    if model.kind != "gru_seq2seq":
        return model
    start = target.ids.get(START_TOKEN, target.eos)
    start = start if start < model.vocab_size else target.eos  # the vocabulary may have more words than the model
    return replace(model, source_eos=source.eos, eos=target.eos, unk=target.unk, start=start)


def _check_vocabularies(
    models: Sequence[NmtModel], columns: Sequence[SourceColumn], target: NmtVocabulary, files: TranslationFiles
) -> None:
    """Raise InputError for vocabularies that do not fit the models."""
    for model, at in zip(models, files.reads, strict=True):
        vocabularies = columns[at].vocabularies
        if len(vocabularies) != len(model.source_embeddings):
            raise InputError(
                f"{model.name!r} has {len(model.source_embeddings)} factors in a source word but column {at} has "
                f"{len(vocabularies)} source vocabularies; give one for each factor"
            )
        of_factors = zip(files.source_vocabs[at], vocabularies, model.source_embeddings, strict=True)
        pairs = [(path, vocabulary, len(rows)) for path, vocabulary, rows in of_factors]
        for path, vocabulary, rows in (*pairs, (files.target_vocab, target, model.vocab_size)):
            if 2 * len(vocabulary.tokens) < rows:
                raise InputError(
                    f"vocabulary {path!r} has {len(vocabulary.tokens):,} words but {model.name!r} has {rows:,}; "
                    "give the vocabulary of this model, and check that source and target are not exchanged"
                )
        for path, vocabulary, eos in ((pairs[0][0], vocabularies[0], model.source_eos), ("", target, model.eos)):
            if vocabulary.eos != eos:
                raise InputError(
                    f"vocabulary {path or files.target_vocab!r} has </s> as {vocabulary.eos} but {model.name!r} ends "
                    f"sentences with {eos}; give the vocabulary of this model"
                )
