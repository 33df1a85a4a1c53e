"""The decode job on several workers."""

from __future__ import annotations

import time

from mgpu_ngram.api.executors import open_executor
from mgpu_ngram.benchmarks.decode.generated_model import (
    SENTENCE_WORDS,
    SENTENCES_AT_ONCE,
    SOURCE_WORDS_PER_SECOND,
    DecodeBench,
    check_results,
    random_sources,
    words_in,
)
from mgpu_ngram.benchmarks.harness.side_by_side import TARGET_SPEEDUP
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.cluster.executor import Executor
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.engine.decode.search_options import Hypothesis
from mgpu_ngram.jobs.context import RunContext
from mgpu_ngram.jobs.decode import run as job
from mgpu_ngram.jobs.decode.config import DecodeConfig
from mgpu_ngram.stages.run_file import ClusterConfig

BEAM = 6
SENTENCES = {"gpu": 80_000, "cpu": 400}
TASKS = 40  # tasks of a run, the same for any number of workers
ROUNDS = 3
KERNEL = "decode/workers"


def workers(bench: DecodeBench) -> None:
    """A row for each number of workers: one text, its tasks shared out, its results in order."""
    suite, files = bench.suite, bench.system.files
    count = min(SENTENCES[suite.device], 30 * bench.sentences)
    sources = random_sources([SENTENCE_WORDS] * count, bench.system.shape.vocab_size)
    vocabulary = load_nmt_vocabulary(files.target_vocab)
    text = bench.folder / "workers.txt"
    text.write_text("".join(f"{' '.join(vocabulary.decode(ids))}\n" for ids in sources))
    config = DecodeConfig(
        list(files.models), [str(text)], [files.target_vocab], files.target_vocab, beam_size=BEAM,
        max_length_multiple=1.0, mini_batch=SENTENCES_AT_ONCE[suite.device], chunk_sentences=-(-count // TASKS),
    )  # fmt: skip
    found: list[bytes] = []
    for G in bench.clusters:
        suite.say(f"{KERNEL}: {G} at once")
        executor = open_executor(ClusterConfig(device=suite.device, workers=G))  # type: ignore[arg-type]
        try:
            add_row(bench, executor, config, found, words_in(sources))
        finally:
            executor.close()


def add_row(bench: DecodeBench, executor: Executor, config: DecodeConfig, found: list[bytes], words: int) -> None:
    """Add the row of the workers of an executor; `found` is the text that others have written, [] before the first."""
    suite, seconds = bench.suite, []
    decoded(executor, config)  # opens the model on each worker
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        text = decoded(executor, config)
        seconds.append(time.perf_counter() - begin)
        if not found:
            check_text(bench, text)
            found.append(text)
        if text != found[0]:
            raise WrongResult(f"{executor.workers} workers write another text than {bench.clusters[0]}; not timed")
    alone = next((row for row in suite.rows if row.kernel == KERNEL and row.sizes.endswith(" workers=1")), None)
    speedup = TARGET_SPEEDUP.get(executor.workers) if bench.is_full else None
    row = suite.add(
        KERNEL, f"{bench.system.shape} words={words} beam={BEAM} workers={executor.workers}", seconds, items=words,
        unit=SOURCE_WORDS_PER_SECOND, target=speedup * alone.rate if speedup and alone and alone.rate else None,
        notes=f"{TASKS} tasks, lines to lines; transport {executor.transport}",
    )  # fmt: skip
    if alone and alone.rate and row.rate:
        row.baseline, row.speedup = "workers=1", row.rate / alone.rate


def decoded(executor: Executor, config: DecodeConfig) -> bytes:
    """Return the lines of a run."""
    parts: list[bytes] = []
    job.run(config, RunContext(executor, None), take=parts.append)
    return b"".join(parts)


def check_text(bench: DecodeBench, text: bytes) -> None:
    """Raise WrongResult unless the first lines are what plain NumPy finds, by their costs."""
    vocabulary, plain = load_nmt_vocabulary(bench.system.files.target_vocab), bench.system.plain
    sources = random_sources([SENTENCE_WORDS] * 2, bench.system.shape.vocab_size)
    results = []
    for source, line in zip(sources, text.decode().splitlines(), strict=False):
        words = vocabulary.encode(line, bench.system.shape.vocab_size)[:-1].tolist()
        cost = plain.cost(source, words)
        results.append([Hypothesis(tuple(words), cost, cost, ())])
    check_results(results, sources, plain, BEAM, "float32")
