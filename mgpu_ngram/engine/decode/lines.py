"""Decode consecutive lines of text on one worker."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from mgpu_ngram.core.errors import InputError, RunError, warn
from mgpu_ngram.engine.decode import output as decode_output
from mgpu_ngram.engine.decode.batch import Batching, Forced
from mgpu_ngram.engine.decode.nmt_weights import MAX_TABLE_BYTES
from mgpu_ngram.engine.decode.open_translation import Translation, TranslationFiles, open_translation
from mgpu_ngram.engine.decode.search_options import Hypothesis, SearchOptions
from mgpu_ngram.engine.memory.stopwatch import Stopwatch

TEXT_ERRORS = "surrogateescape"  # bytes that are not UTF-8 pass through


@dataclass(frozen=True)
class LineFormat:
    """The format of the results.

    n_best     write a list of the results of each sentence; else only the best one
    scores     write only scores, without words
    alignment  "", "hard", "soft" or "nematus"
    wipo       write lists with their sizes; each line begins with "OUT: "
    join_bpe   join split words
    names      names of the sums in lists
    """

    n_best: bool = False
    scores: bool = False
    alignment: str = ""
    wipo: bool = False
    join_bpe: bool = False
    names: tuple[str, ...] = ("F0",)


@dataclass(frozen=True)
class DecodeOptions:
    """Options for decoding lines; the same for all tasks of a run. Picklable.

    files       absolute paths of the files of the translation system
    identity    identity of these files; the files of a worker must have the same one
    weights     weights of the models; () for 1 each
    max_length  number of words of a column to read; 0: all
    """

    files: TranslationFiles
    identity: dict[str, str]
    search: SearchOptions
    batching: Batching
    format: LineFormat
    weights: tuple[float, ...] = ()
    lm_weight: float = 0.0
    max_length: int = 0
    device: str = "cpu"
    dtype: str = "float32"
    table_bytes: int = MAX_TABLE_BYTES
    threads: int = 1


class DecodeCounts(NamedTuple):
    """Numbers of decoded words and sentences.

    source_words  words of the first column that the models read, without the ends of sentences
    words         words of the best results, without the ends of sentences
    cut           sentences with more words than the models read
    """

    sentences: int = 0
    source_words: int = 0
    words: int = 0
    cut: int = 0

    def plus(self, other: DecodeCounts) -> DecodeCounts:
        """Return the sums of both."""
        return DecodeCounts(*(a + b for a, b in zip(self, other, strict=True)))


@dataclass
class DecodedLines:
    """Results of consecutive sentences; `text` has the lines to write, each with its newline."""

    text: bytes
    counts: DecodeCounts
    seconds: dict[str, float] = field(default_factory=dict)


_held: dict[tuple[str, str, int], tuple[TranslationFiles, dict[str, str], Translation]] = {}  # by device, dtype, tables
_loading = threading.Lock()


def translation_of(options: DecodeOptions) -> Translation:
    """Return this process's replica of a translation system, loaded at first use; others are dropped."""
    key = options.device, options.dtype, options.table_bytes
    with _loading:
        held = _held.get(key)
        if held and held[:2] == (options.files, options.identity):
            return held[2]
        _held.clear()
        found = options.files.identity()
        changed = next((path for path, value in found.items() if options.identity.get(path) != value), None)
        if changed is not None:
            raise RunError(
                f"{changed} is {found[changed]} on this worker but was {options.identity.get(changed)} at the start; "
                "run again with the same file on all workers"
            )
        translation = open_translation(
            options.files, options.device, options.dtype, options.threads, table_bytes=options.table_bytes
        )
        _held[key] = options.files, options.identity, translation
        return translation


def decode_lines(
    first: int,
    lines: Sequence[bytes],
    prefixes: Sequence[bytes] | None,
    targets: Sequence[bytes] | None,
    options: DecodeOptions,
) -> DecodedLines:
    """Decode lines of text without their newlines; `first` is the number of the first line in the run.

    prefixes  first words of the results of each line, or None
    targets   a result to score for each line, or None
    """
    watch = Stopwatch(options.device)
    try:
        translation = translation_of(options)
        watch.lap("load")
        if options.search.alignments and not translation.has_attention:
            raise InputError(
                f"{translation.models[0].name!r} has no attention to write; leave out "
                "--return-alignment (in YAML alignment)"
            )
        read, sources, cut = _read(first, _text(lines), translation, options.max_length)
        begins, wanted = (None if given is None else _text(given) for given in (prefixes, targets))
        forced = _forced(first, begins, wanted, translation)
        watch.lap("read")
        weights = options.weights or None
        found = translation.decode(
            sources, options.search, options.batching, weights, options.lm_weight, forced, first
        )  # fmt: skip
        watch.lap("decode")
    except OSError as error:  # so the driver does not mistake it for an output error
        raise RunError(f"decoding failed: {type(error).__name__}: {error}; run again") from error
    written: list[str] = []
    for i, (hypotheses, pieces) in enumerate(zip(found, read, strict=True)):
        written += _written(first + i, hypotheses, pieces[0], translation, options.format)
    text = "".join(f"{line}\n" for line in written).encode("utf-8", TEXT_ERRORS)
    best = [hypotheses[0].words for hypotheses in found if hypotheses]
    words = sum(len(ids) - (ids[-1] == translation.target.eos) for ids in best)
    watch.lap("write")
    counts = DecodeCounts(len(lines), sum(len(pieces[0]) for pieces in read), words, cut)
    return DecodedLines(text, counts, watch.seconds)


def find_results(
    first: int,
    lines: Sequence[str],
    prefixes: Sequence[str] | None,
    targets: Sequence[str] | None,
    options: DecodeOptions,
    translation: Translation | None = None,
) -> list[list[Hypothesis]]:
    """Return the results of lines, best first; no results for an empty line. Arguments are those of `decode_lines`.

    translation  None: this process's replica of the system in the options' files
    """
    translation = translation or translation_of(options)
    _, sources, cut = _read(first, lines, translation, options.max_length)
    if cut:
        warn(f"sentences with more than {options.max_length} words were cut; max_length=0 reads all of their words")
    forced = _forced(first, prefixes, targets, translation)
    weights = options.weights or None
    return translation.decode(sources, options.search, options.batching, weights, options.lm_weight, forced, first)


def _text(lines: Sequence[bytes]) -> list[str]:
    return [line.decode("utf-8", TEXT_ERRORS) for line in lines]


def _read(
    first: int, lines: Sequence[str], translation: Translation, max_length: int
) -> tuple[list[list[list[str]]], list[Any], int]:
    """Return (words of the columns of each line, sources, lines that were cut). Errors name the line."""
    read, sources, cut = [], [], 0
    for i, line in enumerate(lines):
        try:
            columns = translation.pieces(line)
            if max_length and max(map(len, columns)) > max_length:
                columns = [words[:max_length] for words in columns]
                cut += 1
            read.append(columns)
            sources.append(translation.encode(read[-1]))
        except InputError as error:
            raise InputError(f"line {first + i + 1} of the text: {error}") from None
    return read, sources, cut


def _forced(
    first: int, prefixes: Sequence[str] | None, targets: Sequence[str] | None, translation: Translation
) -> Forced:
    """Return the ids of forced words. Errors name the line."""
    return Forced(
        *(
            None if lines is None else [_ids(first + i, name, line, translation) for i, line in enumerate(lines)]
            for name, lines in (("prefixes", prefixes), ("targets", targets))
        )
    )


def _ids(number: int, name: str, line: str, translation: Translation) -> list[int]:
    ids = translation.encode_target(line).tolist()
    if translation.target.eos in ids:
        raise InputError(f"line {number + 1} of the {name} has </s> but words are forced before the end; remove it")
    return ids


def _written(
    number: int, hypotheses: list[Hypothesis], source: list[str], translation: Translation, how: LineFormat
) -> list[str]:
    """Return the lines of a sentence. For an empty sentence they have no words."""
    target = translation.target
    if how.n_best and how.wipo and not hypotheses:
        return decode_output.wipo_lines([])  # their number, 0, keeps lists in step
    if how.n_best:
        lines = decode_output.n_best_lines(
            number, hypotheses, target, how.names, how.alignment, join_bpe=how.join_bpe, is_empty=not source
        )  # fmt: skip
        return decode_output.wipo_lines(lines) if how.wipo else lines
    if not hypotheses:
        nothing = "-inf" if how.scores else ""  # a shortlist leaves a word of the target out
        return [f"{number} ||| {nothing} ||| 0 |||  ||| 1 0", ""] if how.alignment == "nematus" else [nothing]
    best = hypotheses[0]
    text = f"{best.score:.6f}" if how.scores else decode_output.text_of(best, target, how.join_bpe)
    if how.alignment == "nematus":
        return decode_output.nematus_alignment(number, best, text, " ".join(source))
    if how.alignment:
        return [f"{text} ||| {decode_output.LINE_ALIGNMENTS[how.alignment](best, target.eos)}"]
    return [text]
