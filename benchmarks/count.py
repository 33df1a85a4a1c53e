"""`mgpu-ngram bench count`: the experiments of "Ngrams with CUDA" and counting words, beside ceilings and peers."""

from __future__ import annotations

import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks import byte_histograms, byte_ngrams, word_codes, word_parquet, word_run, word_text
from mgpu_ngram.benchmarks.corpora import english_text, zipf_text
from mgpu_ngram.benchmarks.suite import Suite
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import parse_bytes
from mgpu_ngram.engine.device import to_device

SIZE = {"gpu": "1 GiB", "cpu": "16 MiB"}
TOKENS = {"gpu": 220_000_000, "cpu": 2_000_000}
MIN_SIZE, MIN_TOKENS = 1 << 10, 1_000


def bench(
    device: str, text: str | None, size: str | int | None, tokens: int | None, results: str | Path
) -> list[dict[str, Any]]:
    """Measure counting, write count.csv and the figures to the folder `results`, and return the rows.

    device  "cpu" or "gpu"
    text    file to draw lines of real text from; the standard library's documentation when None
    size    bytes of text, such as "1 GiB"; by device when None
    tokens  words of the generated corpus; by device when None

    Every result is compared with an oracle before it is timed, and WrongResult raised when one differs.
    Rows are saved part by part, so that one that fails does not take the others with it.
    """
    try:
        from mgpu_ngram.benchmarks import figures
    except ImportError as error:
        raise InputError(f"the figures need matplotlib ({error}); pip install 'mgpu-ngram[bench]'") from None
    size_bytes = parse_bytes(SIZE[device] if size is None else size, "size")
    tokens = TOKENS[device] if tokens is None else tokens
    if size_bytes < MIN_SIZE:
        raise InputError(f"size is {size_bytes} bytes but must be at least {MIN_SIZE}")
    if tokens < MIN_TOKENS:
        raise InputError(f"tokens is {tokens} but must be at least {MIN_TOKENS}")
    if text is not None and not Path(text).is_file():
        raise InputError(f"{text}: no such file; give a text file or leave it out")
    folder = Path(results)
    suite = Suite(device, folder / "count.csv")
    suite.say(f"{suite.name}; {suite.version}")
    suite.measure_ceilings()
    _bytes(suite, size_bytes, text)
    suite.release()
    _words(suite, tokens)
    figures.draw(suite.rows, folder)
    suite.say(f"wrote {folder}/count.csv and figures")
    return [asdict(row) for row in suite.rows]


def _bytes(suite: Suite, size_bytes: int, source_file: str | None) -> None:
    suite.say(f"drawing {size_bytes:,} bytes of English")
    text = byte_ngrams.Text.of(to_device(english_text(size_bytes, source_file), suite.device))
    byte_histograms.run(suite, text)
    byte_ngrams.run(suite, text)
    suite.save()


def _words(suite: Suite, tokens: int) -> None:
    expected_counts = word_codes.run(suite, tokens)
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-") as folder:
        path = Path(folder) / "corpus.txt"
        suite.say(f"writing a corpus of {tokens:,} words")
        zipf_text(path, tokens, word_codes.VOCABULARY)
        counted = word_text.run(suite, path, tokens, expected_counts)
        suite.save()
        word_parquet.run(suite, counted, Path(folder))
        del counted
        suite.release()
        if suite.device == "cpu":
            word_run.run(suite, path, tokens)
    suite.save()
