"""Options for the tasks of a decode job, and checks of its files."""

from __future__ import annotations

import os
from collections.abc import Collection
from dataclasses import replace
from typing import Any

from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.files import find_files
from mgpu_ngram.core.models.model_head import check_models
from mgpu_ngram.core.nmt.files import factors_in
from mgpu_ngram.engine.decode.batch import POSITIONS, Batching, sentences_at_once
from mgpu_ngram.engine.decode.best_words import Sampling
from mgpu_ngram.engine.decode.ensemble import check_weights
from mgpu_ngram.engine.decode.lines import DecodeOptions, LineFormat
from mgpu_ngram.engine.decode.open_translation import TranslationFiles
from mgpu_ngram.engine.decode.search_options import SearchOptions
from mgpu_ngram.jobs.budget import SHORT_TEXT_CHUNKS
from mgpu_ngram.jobs.decode.config import DecodeConfig

CHUNK_SENTENCES = {"cpu": (256, 1024), "gpu": (2048, 16384)}  # least and most of a task
SHORT_CHUNKS, SHORT_SENTENCES = 16, 64  # tasks of a short text, and sentences of each task at least


def check(config: DecodeConfig, made: Collection[str] = ()) -> None:
    """Raise InputError for settings that contradict each other, and for a file that does not exist.

    made  files that an earlier job writes
    """
    search_of(config)
    batching_of(config, "cpu")
    if config.lm is None and config.lm_weight != DecodeConfig.lm_weight:
        raise InputError(
            f"lm_weight is {config.lm_weight:g} but there is no n-gram model; give --lm FILE (in YAML lm), or leave it "
            "out"
        )
    check_weights((*config.weights, config.lm_weight))
    check_models([config.lm] if config.lm else [], made)
    beside = [path for path in (config.prefixes, config.targets) if path]
    for path in (*files_of(config).paths, *beside):
        if path not in made:
            find_files([path])


def files_of(config: DecodeConfig) -> TranslationFiles:
    """Return the files of a config.

    A flat list of source vocabularies has one for each column; for a single column, one for each factor of its words.
    """
    given = config.source_vocab
    wrong = next((item for item in given if not _is_vocabulary(item)), None)
    if wrong is not None:
        raise InputError(f"source_vocab has {wrong!r} but must hold paths, or lists with a path for each factor")
    vocabs = tuple(tuple(item) if isinstance(item, list) else (item,) for item in given)
    is_flat = len(given) > 1 and not config.columns and all(isinstance(item, str) for item in given)
    if is_flat and factors_in(config.models[0]) == len(given):
        vocabs = (tuple(given),)
    return TranslationFiles(
        models=tuple(config.models), source_vocabs=vocabs, target_vocab=config.target_vocab, bpe=tuple(config.bpe),
        columns=tuple(config.columns), lm=config.lm or "", shortlist=config.softmax_filter or "",
        first_words=config.first_words, most_translations=config.most_translations,
    )  # fmt: skip


def absolute_files(files: TranslationFiles) -> TranslationFiles:
    """Return the files with absolute paths: workers may have another current directory."""
    vocabs = tuple(tuple(map(absolute_path, factors)) for factors in files.source_vocabs)
    return replace(
        files,
        models=tuple(map(absolute_path, files.models)),
        source_vocabs=vocabs,
        target_vocab=absolute_path(files.target_vocab),
        bpe=tuple(map(absolute_path, files.bpe)),
        lm=absolute_path(files.lm),
        shortlist=absolute_path(files.shortlist),
    )


def absolute_path(path: str) -> str:
    """Return a path that does not depend on the current directory; URLs and "" are unchanged."""
    return path if not path or "://" in path else os.path.abspath(os.path.expanduser(path))


def _is_vocabulary(item: Any) -> bool:
    return isinstance(item, str) or (isinstance(item, list) and bool(item) and all(isinstance(p, str) for p in item))


def search_of(config: DecodeConfig) -> SearchOptions:
    """Return the options of the search."""
    sampling = Sampling(config.top_k, config.top_p, config.temperature, config.seed) if config.sample else None
    is_ensemble = len(config.models) > 1 or bool(config.weights) or config.lm is not None
    return SearchOptions(
        beam_size=config.beam_size, n_best=max(1, config.n_best), length_penalty=config.length_penalty,
        word_penalty=config.word_penalty, max_length_multiple=config.max_length_multiple, max_steps=config.max_steps,
        allow_unk=config.allow_unk, early_stopping=config.early_stopping, sampling=sampling,
        alignments=config.alignment != "none", breakdown=is_ensemble and config.n_best > 0,
    )  # fmt: skip


def batching_of(config: DecodeConfig, device: str) -> Batching:
    """Return the batching options."""
    sentences, words = config.mini_batch, config.mini_batch_words
    if words is None:
        words = 0 if sentences else POSITIONS[device]
    return Batching(sentences or sentences_at_once(device, config.beam_size), words, config.maxi_batch, config.batching)


def format_of(config: DecodeConfig) -> LineFormat:
    """Return the format of the results."""
    alignment = "" if config.alignment == "none" else config.alignment
    scores = config.targets is not None and not config.n_best
    join = bool(config.bpe) and config.debpe
    return LineFormat(config.n_best > 0, scores, alignment, config.wipo, join, config.line_names)


def sentences_of_task(config: DecodeConfig, sentences: int, device: str) -> int:
    """Return the number of sentences of a task, which does not depend on the workers, so neither do results."""
    least, most = CHUNK_SENTENCES[device]
    if device == "cpu":  # no fewer than 64: small models take twice the time with 64 sentences at once as with 256
        least = max(SHORT_SENTENCES, min(least, -(-sentences // SHORT_CHUNKS)))
    return config.chunk_sentences or max(least, min(most, -(-sentences // SHORT_TEXT_CHUNKS)))


def options_of(config: DecodeConfig, identity: dict[str, str], device: str, threads: int) -> DecodeOptions:
    """Return the options of tasks on a device; `identity` is the identity of the config's files."""
    return DecodeOptions(
        files=absolute_files(files_of(config)),
        identity={absolute_path(path): value for path, value in identity.items()},
        search=search_of(config),
        batching=batching_of(config, device),
        format=format_of(config),
        weights=tuple(config.weights),
        lm_weight=config.lm_weight,
        max_length=config.max_length,
        device=device,
        dtype=config.dtype,
        table_bytes=config.table_bytes,
        threads=threads,
    )
