"""Filter documents in memory: texts, pandas DataFrames, and the partitions of Dask bags and DataFrames."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mgpu_ngram.cluster.devices import resolve_device
from mgpu_ngram.core.documents.buckets import read_cutoffs
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import check_path
from mgpu_ngram.core.models.model_head import identify
from mgpu_ngram.core.typed_config import fill
from mgpu_ngram.engine.filter.files import LINES_FIELD
from mgpu_ngram.engine.filter.score_documents import DocumentScores
from mgpu_ngram.engine.filter.shard import DocumentModel, FilterOptions, Scorers, judge, new_columns
from mgpu_ngram.engine.filter.subwords import open_subwords
from mgpu_ngram.engine.memory.out_of_memory import memory_guard
from mgpu_ngram.engine.memory.stopwatch import Stopwatch
from mgpu_ngram.engine.score.score_chunk import LESS_TO_SCORE, ScoreOptions
from mgpu_ngram.jobs.filter.config import FilterConfig
from mgpu_ngram.jobs.filter.models import ModelPaths, model_paths
from mgpu_ngram.jobs.filter.run import BLOCK_BYTES, check
from mgpu_ngram.jobs.score.run import model_options

if TYPE_CHECKING:
    import pandas as pd

FILE_SETTINGS = ("text", "name", "report", "block_bytes", "sample")  # settings that documents in memory do not have
WHOLE_FIELDS = ("words", "oovs")  # fields that are whole numbers


@dataclass(frozen=True)
class Filtered:
    """The new fields of D documents, each with D values, and whether each is kept; None: no words, or no figure."""

    columns: dict[str, list[Any]]
    kept_D: Sequence[bool]


class DocumentFilter:
    """Adds perplexities to documents in memory and drops documents by them, as `mgpu-ngram filter` does.

    model    path of a model file, an ARPA file, a KenLM binary or a table of models; with {language}, one for each
             language
    device   "auto", "cpu" or "gpu"; the process that scores chooses for "auto"
    threads  threads that a tokeniser may use
    options  the settings of `FilterConfig`: contrast_model, text_column, tokenizer, normalize, sentences,
             min_perplexity, max_perplexity, min_difference, max_difference, fixed_buckets, buckets with cutoffs,
             bucket_by, language_column, only, keep, verify

    Picklable and small: each process opens the model at first use. Raises InputError for a model or an option that
    cannot be used.
    """

    def __init__(self, model: str | os.PathLike[str], device: str = "auto", threads: int = 1, **options: Any):
        for name in FILE_SETTINGS:
            if name in options:
                raise InputError(f"{name} is for files; leave it out, or give paths and output=FOLDER")
        check_path(model, "model")
        self.config = config = fill(FilterConfig, {"text": [], "model": os.fspath(model), **options}, "filter")
        if config.buckets and not config.cutoffs:
            raise InputError(
                "buckets at percentiles need the scores of all documents, not only of those in memory; "
                "give fixed_buckets instead of "
                "buckets, a table with cutoffs, or files"
            )
        if device not in ("auto", "cpu", "gpu"):
            raise InputError(f"device is {device!r} but must be auto, cpu or gpu")
        check(config)
        paths = model_paths(config)
        ends = tuple(config.bucket_ends.values())
        cutoffs: dict[str | None, tuple[float, ...]] = {None: ends} if ends else {}
        if config.cutoffs:
            cutoffs = read_cutoffs(config.cutoffs, ends)
        self.device = device
        self.fields = config.fields(any(some.contrast_model for some in paths.values()))
        self.rules = config.rules(cutoffs)
        self._models = tuple((name, self._model(some, threads)) for name, some in paths.items())

    def check_files(self) -> None:
        """Raise InputError unless this process sees the same models and tokenisers."""
        for _, model in self._models:
            for scoring in (model.scoring, model.contrast):
                if scoring and identify(scoring.model) != scoring.identity:
                    raise InputError(f"{scoring.model} is another file on a worker; give all workers the same file")
            if model.tokenizer:
                open_subwords(model.tokenizer)

    def __call__(self, texts: list[str], languages: Sequence[Any] | None = None) -> Filtered:
        """Return the new fields of some documents, and which of them are kept.

        languages  of the documents, for models or cut-offs of languages; None: unknown
        """
        device = resolve_device(self.device)
        scorers = _scorers(self._models, self.config.language, self.config.normalize, self.config.unit, device)
        watch = Stopwatch(device)
        languages = [None] * len(texts) if languages is None else languages
        parts = [DocumentScores.none(0)]
        with memory_guard("scoring", device, LESS_TO_SCORE):
            for start, end in _blocks(texts, BLOCK_BYTES[device]):
                parts.append(scorers.score(texts[start:end], languages[start:end], watch))
        scores = DocumentScores.joined(parts)
        judged = judge(scores, languages, self.rules)
        columns = new_columns(scores, judged, self.fields)
        return Filtered({name: list(values) for name, values in columns.items()}, judged.kept_D.tolist())

    def _model(self, paths: ModelPaths, threads: int) -> DocumentModel:
        def scoring(path: str) -> ScoreOptions:
            return model_options(path, sys.maxsize, None, self.config.verify, read_threads=threads)  # of any size

        tokenizer = os.path.abspath(paths.tokenizer) if paths.tokenizer else ""
        contrast = scoring(paths.contrast_model) if paths.contrast_model else None
        return DocumentModel(scoring(paths.model), tokenizer, contrast)


@functools.lru_cache(2)
def _scorers(
    models: tuple[tuple[str, DocumentModel], ...], language: str, normalize: Any, sentences: Any, device: str
) -> Scorers:
    """Return the scorers of this process, which other partitions have used before."""

    def here(scoring: ScoreOptions) -> ScoreOptions:
        return replace(scoring, device=device)

    opened = {
        name: replace(model, scoring=here(model.scoring), contrast=model.contrast and here(model.contrast))
        for name, model in models
    }
    return Scorers(FilterOptions(opened, language, (), normalize, sentences, BLOCK_BYTES[device], device))


def _blocks(texts: list[str], characters: int) -> Iterator[tuple[int, int]]:
    """Yield start and end of texts with about so many characters."""
    start = size = 0
    for i, text in enumerate(texts):
        size += len(text)
        if size >= characters:
            yield start, i + 1
            start, size = i + 1, 0
    if start < len(texts):
        yield start, len(texts)


def filter_frame(frame: pd.DataFrame, documents: DocumentFilter) -> pd.DataFrame:
    """Return the kept rows of a pandas DataFrame, with new columns and their old index.

    A row without a figure has NaN, and 0 words.
    """
    import pandas as pd

    config = documents.config
    texts = [_text(value, f"row {i}", config.text_column) for i, value in enumerate(frame[config.text_column])]
    languages = frame[config.language].tolist() if config.language else None
    found = documents(texts, languages) if texts else Filtered({name: [] for name in documents.fields}, [])
    new = {}
    for name, values in found.columns.items():
        if name in WHOLE_FIELDS:
            new[name] = pd.Series([value or 0 for value in values], frame.index, "int64")
        else:
            kind = {"bucket": str, LINES_FIELD: object}.get(name, "float64")
            new[name] = pd.Series(values, frame.index, kind)
    return frame.assign(**new)[pd.Series(found.kept_D, frame.index, bool)]


def filter_records(records: Iterable[Any], documents: DocumentFilter) -> list[dict[str, Any]]:
    """Return the kept records, with new fields: dicts, or texts, which become dicts.

    A document without words has only the new field bucket. Old values of the new fields are left out.
    """
    config = documents.config
    column = config.text_column
    dicts = [{column: record} if isinstance(record, str) else record for record in records]
    texts = []
    for i, record in enumerate(dicts):
        if not isinstance(record, dict) or column not in record:
            what = f"no key {column!r}" if isinstance(record, dict) else f"the type {type(record).__name__}"
            raise InputError(f"element {i} of a partition has {what}; give dicts with this key, or texts (text_column)")
        texts.append(_text(record[column], f"element {i}", column))
    found = documents(texts, [record.get(config.language) for record in dicts] if config.language else None)
    kept = []
    for d, record in enumerate(dicts):
        if found.kept_D[d]:
            old = {name: value for name, value in record.items() if name not in found.columns}
            kept.append(old | {name: values[d] for name, values in found.columns.items() if values[d] is not None})
    return kept


def _text(value: Any, where: str, column: str) -> str:
    """Return a text; a missing one is empty."""
    if isinstance(value, str):
        return value
    if value is None or type(value).__name__ == "NAType" or value != value:  # NaN
        return ""
    raise InputError(f"{where} has the {type(value).__name__} {value!r} as {column!r}, not text; convert the column")


def check_column_names(names: Sequence[Any], config: FilterConfig) -> None:
    """Raise InputError unless a DataFrame has the columns that the settings name."""
    for setting, name in (("text_column", config.text_column), ("language_column", config.language)):
        if name and name not in names:
            known = ", ".join(map(str, names))
            raise InputError(f"the DataFrame lacks the column {name!r}; name one with {setting}: {known}")
        if name and list(names).count(name) > 1:
            raise InputError(f"the DataFrame has two columns {name!r}; rename one of them or leave it out")
