"""`mgpu-ngram bench count`: the experiments of "Ngrams with CUDA" and counting words, beside ceilings and peers."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from mgpu_ngram.benchmarks.count import byte_histograms, byte_ngrams, words_codes, words_parquet, words_run, words_text
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, open_suite
from mgpu_ngram.benchmarks.inputs.corpora import english_like_text, shuffled_lines, zipf_text
from mgpu_ngram.core.errors import InputError
from mgpu_ngram.core.typed_config import parse_bytes
from mgpu_ngram.engine.memory.device import to_device

SIZE = {"gpu": "1 GiB", "cpu": "16 MiB"}
TOKENS = {"gpu": 220_000_000, "cpu": 2_000_000}
MIN_SIZE, MIN_TOKENS = 1 << 10, 1_000
FLAGS = {"text", "size", "tokens", "only"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "bytes/": ("engine.count.count_chunk",),
    "bytes/count_bytes": ("kernels.count.histogram_private",),
    "bytes/histogram_": ("kernels.count.histogram_global", "kernels.count.histogram_private"),
    "bytes/peer": (),
    "bytes/python loop": (),
    "words/": ("jobs.count.run",),
    "words/codes to tables": ("engine.count.count_chunk",),
    "words/join_ranges": ("kernels.count.join_ranges",),
    "words/ngram_keys": ("kernels.count.ngram_keys",),
    "words/peer": (),
    "words/prefix_runs": ("kernels.count.count_prefixes",),
    "words/radix_sort": ("kernels.common.radix_sort",),
    "words/stage": ("engine.count.count_chunk", "engine.count.tokenise", "engine.count.number_symbols"),
    "words/tables to": ("engine.count.write_counts",),
    "words/text to": ("engine.count.count_chunk", "engine.count.tokenise", "engine.count.number_symbols"),
}


@dataclass
class CountBench:
    """What the parts measure with: bytes of a text, made once, and words of a corpus.

    source_file  file to draw lines from; English-like text by a fixed model when None
    """

    suite: Suite
    size_bytes: int
    source_file: str | None
    tokens: int

    @cached_property
    def text(self) -> byte_ngrams.Text:
        self.suite.say(f"making {self.size_bytes:,} bytes of text")
        size, file = self.size_bytes, self.source_file
        text_B = shuffled_lines(size, file) if file else english_like_text(size)
        return byte_ngrams.Text.of(to_device(text_B, self.suite.device))

    def drop_text(self) -> None:
        """Give the device's memory of the text back."""
        self.__dict__.pop("text", None)
        self.suite.release()


def words(bench: CountBench) -> None:
    """Rows: words from ids and from text, and Parquet."""
    suite, tokens = bench.suite, bench.tokens
    bench.drop_text()
    expected_counts = words_codes.run(suite, tokens)
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-") as folder:
        path = Path(folder) / "corpus.txt"
        suite.say(f"writing a corpus of {tokens:,} words")
        zipf_text(path, tokens, words_codes.VOCABULARY)
        counted = words_text.run(suite, path, tokens, expected_counts)
        suite.save()
        words_parquet.run(suite, counted, Path(folder))
        del counted
        suite.release()
        if suite.device == "cpu":
            words_run.run(suite, path, tokens)
        else:
            words_run.run_on_gpu(suite, path, tokens, expected_counts)


PARTS: dict[str, Callable[[CountBench], None]] = {
    "histograms": lambda bench: byte_histograms.run(bench.suite, bench.text),
    "a": lambda bench: byte_ngrams.experiment_a(bench.suite, bench.text),
    "b": lambda bench: byte_ngrams.experiment_b(bench.suite, bench.text),
    "words": words,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure counting, write count.csv and the figures to the folder of results, and return the rows.

    text    file to draw lines from; English-like text by a fixed model when None
    size    bytes of that text, such as "1 GiB"
    tokens  words of the generated corpus
    only    parts to measure; the rates at which the device copies, reads and sorts are always measured

    Every result is compared with an oracle before it is timed, and WrongResult raised when one differs.
    Rows are saved part by part, so a part that fails does not lose the rows of others.
    """
    parts = options.parts(PARTS)
    size_bytes = parse_bytes(SIZE[options.device] if options.size is None else options.size, "size")
    if size_bytes < MIN_SIZE:
        raise InputError(f"size is {size_bytes} bytes but must be at least {MIN_SIZE}")
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    suite, folder = open_suite("count", options), Path(options.results)
    suite.measure_ceilings()
    shared = CountBench(suite, size_bytes, options.text, tokens)
    for part in parts:
        suite.measure_part(PARTS[part], shared)
    from mgpu_ngram.benchmarks.count import figures

    figures.draw(suite.rows, folder)
    suite.say(f"wrote {folder}/count.csv and figures")
    return [asdict(row) for row in suite.rows]
