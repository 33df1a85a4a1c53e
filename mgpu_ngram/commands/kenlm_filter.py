"""KenLM's program filter: models and lines of n-grams, restricted to the words of a text."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import ExitStack, redirect_stdout
from dataclasses import dataclass
from pathlib import Path

from mgpu_ngram.commands.kenlm_stages import folder_of, regular_file, run_stage
from mgpu_ngram.commands.stage import file_for
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.inputs.corpus import open_list
from mgpu_ngram.core.inputs.read_text import read_blocks, read_list
from mgpu_ngram.core.memory_config import MemoryConfig
from mgpu_ngram.core.ngrams.line_words import LineWords, allowed_lines
from mgpu_ngram.core.storage.output import check_not_input
from mgpu_ngram.core.storage.scratch import scratch_folder
from mgpu_ngram.stages.contract import Target

USAGE = (
    "usage: kenlm-filter copy|single|union|multiple [context] [phrase] [raw|arpa] [threads:N] [batch_size:N] "
    "[vocab:|model:]INPUT OUTPUT < OTHER_INPUT"
)
FILTER_MODES = ("copy", "single", "union", "multiple")
BLOCK_BYTES = 4 << 20  # bytes of raw n-grams that are read at once
HELD_BYTES = 64 << 20  # bytes of raw n-grams that wait to be written to the files of lines


@dataclass(frozen=True)
class Filter:
    """The arguments of the program. Either model or vocabulary is "-", standard input; copy needs no vocabulary."""

    mode: str
    context: bool
    phrase: bool
    raw: bool
    model: str
    vocabulary: str
    output: str


def run_filter(argv: list[str]) -> None:
    """Run kenlm-filter: write a model, or lines of n-grams, restricted to the words of a text."""
    wanted = _parsed(argv)
    folder = folder_of(wanted.output, "output")
    check_not_input(wanted.output, [path for path in (wanted.model, wanted.vocabulary) if path != "-"])
    with ExitStack() as stack:
        scratch = Path(scratch_folder(folder))
        stack.callback(shutil.rmtree, scratch, ignore_errors=True)
        model = stack.enter_context(regular_file(_as_file(wanted.model, scratch / "model"), folder))
        text = b"" if wanted.mode == "copy" else read_list(_as_file(wanted.vocabulary, scratch / "text"))
        if wanted.raw:
            _filter_raw(wanted, model, text, scratch)
            return
        if wanted.mode == "copy":
            with file_for(wanted.output, "model.arpa", None) as path:
                run_stage("convert", {"model": model, "format": "arpa"}, path, MemoryConfig())
            return
        lines = [line for line in text.split(b"\n") if line.split()]  # KenLM does not count others
        if wanted.mode == "multiple" and not lines:
            return  # it writes one file for each line, so none
        (scratch / "words").write_bytes(b"".join(line + b"\n" for line in lines))
        settings = {
            "model": model, "vocabulary": str(scratch / "words"), "vocabulary_mode": wanted.mode,
            "context": wanted.context, "phrases": wanted.phrase, "format": "arpa",
        }  # fmt: skip
        if wanted.mode != "multiple":
            with file_for(wanted.output, "model.arpa", None) as path:
                run_stage("prune", settings, path, MemoryConfig())
            return
        with redirect_stdout(sys.stderr):
            run_stage("prune", settings, Target(scratch / "models", single_file=False), MemoryConfig())
        _move([scratch / "models" / f"{k}.arpa" for k in range(len(lines))], wanted.output)


def _parsed(argv: list[str]) -> Filter:
    if len(argv) < 3:
        raise InputError(USAGE)
    *words, source, output = argv
    modes = [word for word in words if word in FILTER_MODES]
    for word in words:
        name, colon, number = word.partition(":")
        if word in (*FILTER_MODES, "context", "phrase", "raw", "arpa"):
            continue
        if name not in ("threads", "batch_size") or not colon or not number.isdigit():
            raise InputError(f"{word!r} is not an option; {USAGE}")
    if not modes:
        raise InputError(f"no mode is given; {USAGE}")
    if "phrase" in words and modes[-1] not in ("union", "multiple"):
        raise InputError(f"phrase needs the mode union or multiple, but the mode is {modes[-1]}; change one of them")
    kind, colon, path = source.partition(":")
    if colon and kind not in ("vocab", "model"):
        raise InputError(f"the input is {source!r}; put vocab: or model: before the name of the file")
    model, vocabulary = ("-", path) if kind == "vocab" and colon else (path if colon else source, "-")
    formats = [word for word in words if word in ("raw", "arpa")]
    return Filter(modes[-1], "context" in words, "phrase" in words, formats[-1:] == ["raw"], model, vocabulary, output)


def _as_file(path: str, kept: Path) -> str:
    """Return the path of an input; standard input is kept in a file."""
    if path != "-":
        return path
    if sys.stdin is None:
        raise InputError("standard input is closed; pipe the other input to it")
    with open(kept, "wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file, 1 << 20)
    return str(kept)


def _move(files: list[Path], output: str) -> None:
    """Move files to OUTPUT0, OUTPUT1 and so on. Raises InputError before the first one if one of these is a folder."""
    targets = [f"{output}{k}" for k in range(len(files))]
    if folder := next((target for target in targets if os.path.isdir(target)), None):
        raise InputError(f"output {folder} is a folder; remove it or give another path")
    for file, target in zip(files, targets, strict=True):
        os.replace(file, target)


def _filter_raw(wanted: Filter, model: str, text: bytes, scratch: Path) -> None:
    words = LineWords.of(text, wanted.mode != "single", wanted.phrase)
    if wanted.mode == "multiple":
        held = [bytearray() for _ in range(words.lines)]
        for k in range(words.lines):
            (scratch / str(k)).write_bytes(b"")
        size = 0
        for line, found in allowed_lines(_lines(model), words, wanted.context):
            while found:
                k = found.bit_length() - 1
                held[k] += line + b"\n"
                found ^= 1 << k
                size += len(line) + 1
            if size > HELD_BYTES:
                _append(held, scratch)
                size = 0
        _append(held, scratch)
        _move([scratch / str(k) for k in range(words.lines)], wanted.output)
        return
    with file_for(wanted.output, "ngrams", None) as path, open(path, "wb") as file:
        lines = _lines(model)
        if wanted.mode != "copy":
            lines = (line for line, _ in allowed_lines(lines, words, wanted.context))
        for line in lines:
            file.write(line + b"\n")


def _append(held: list[bytearray], folder: Path) -> None:
    for k, data in enumerate(held):
        if data:
            with open(folder / str(k), "ab") as file:
                file.write(data)
            data.clear()


def _lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file, plain or compressed."""
    for chunk in open_list(path).chunks(1 << 62):
        for block in read_blocks(chunk, "word", BLOCK_BYTES):
            yield from block.data.tobytes()[:-1].split(b"\n")
