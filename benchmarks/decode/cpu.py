"""Lines to lines on the cores of this host, beside the CPU program of the original Amun."""

from __future__ import annotations

import re
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mgpu_ngram.benchmarks.decode.generated_model import (
    SENTENCE_WORDS,
    SOURCE_WORDS_PER_SECOND,
    DecodeBench,
    GRUShape,
    System,
    random_sources,
)
from mgpu_ngram.benchmarks.decode.workers import decoded
from mgpu_ngram.benchmarks.harness.suite import WrongResult
from mgpu_ngram.benchmarks.inputs.corpora import ENGLISH_FILE
from mgpu_ngram.cluster.devices import cpu_cores
from mgpu_ngram.cluster.local import LocalExecutor
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.core.nmt.vocabulary import load_nmt_vocabulary
from mgpu_ngram.jobs.decode.config import DecodeConfig

KERNEL, AMUN_CPU = "decode/cpu", "decode/cpu Amun"
PROGRAM = "amun"
BEAMS = (1, 6)
SHAPE = GRUShape(8_000, 256, 512)
EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "g2p"
SENTENCES_OF_EACH = 4  # in the text of the generated model, for each sentence of the whole decode
ROUNDS = 5
MIN_EQUAL = 0.99  # of the lines: Amun approximates exponentials and tangents, so that close words may change places
SECONDS = re.compile(r"Total time:\s*([0-9.]+)s wall")  # from the first line that it reads; models are loaded by then
CONFIG = """scorers:
  F0:
    path: {model}
    type: Nematus
weights:
  F0: 1.0
source-vocab: {source}
target-vocab: {target}
"""


@dataclass(frozen=True)
class CpuWork:
    """A model and its text.

    most  words of a result for each word of the source, the end of the sentence included
    """

    name: str
    model: Path
    source_vocab: Path
    target_vocab: Path
    text: str
    most: float


def cpu(bench: DecodeBench) -> None:
    """Rows of a trained and of a generated model, by beam size and threads: Amun, then this engine."""
    suite = bench.suite
    if suite.device != "cpu":
        suite.say("the part cpu is of CPUs, so it is left out")
        return
    if shutil.which(PROGRAM) is None:
        suite.say(f"{PROGRAM} is not on the PATH, so the part cpu is left out; the part whole is beside PyTorch")
        return
    works = [_generated(bench)]
    if EXAMPLE.is_dir():
        works.insert(0, trained(bench))
    else:
        suite.say(f"{EXAMPLE} is not here, so the trained model is left out; run the bench in a checkout")
    for work in works:
        for beam_size in BEAMS:
            for threads in sorted({1, cpu_cores()}):
                suite.say(f"{work.name}, beam {beam_size}, {threads} threads")
                add_rows(bench, work, beam_size, threads)


def trained(bench: DecodeBench) -> CpuWork:
    """Return the model of letters to phonemes that comes with the examples, and the words of English text."""
    words = sorted(set(re.findall(r"\b[a-z]{2,22}\b", ENGLISH_FILE.read_text())))
    text = "".join(f"{' '.join(word)}\n" for word in words)
    model = bench.folder / "g2p.npz"
    with np.load(EXAMPLE / "model.npz") as tensors:
        np.savez(model, **tensors)  # Amun reads no compressed files
    letters, phonemes = (EXAMPLE / f"{name}.json" for name in ("letters", "phonemes"))
    return CpuWork("examples/g2p", model, letters, phonemes, text, 2.0)


def _generated(bench: DecodeBench) -> CpuWork:
    """Return a model of random weights, which does not end a sentence itself."""
    system = System.make(SHAPE, bench.folder)
    vocabulary = Path(system.files.target_vocab)
    words = load_nmt_vocabulary(str(vocabulary))
    sources = random_sources([SENTENCE_WORDS] * SENTENCES_OF_EACH * bench.sentences, SHAPE.vocab_size)
    text = "".join(f"{' '.join(words.decode(ids))}\n" for ids in sources)
    return CpuWork(str(SHAPE), Path(system.files.models[0]), vocabulary, vocabulary, text, 1.0)


def add_rows(bench: DecodeBench, work: CpuWork, beam_size: int, threads: int) -> None:
    """Add the rows of Amun and of this engine, in turns, after their lines have been compared."""
    suite, text = bench.suite, bench.folder / "cpu.txt"
    text.write_text(work.text)
    config = bench.folder / "amun.yml"
    config.write_text(CONFIG.format(model=work.model, source=work.source_vocab, target=work.target_vocab))
    command = [
        PROGRAM, "-c", str(config), "-i", str(text), "--cpu-threads", str(threads), "--beam-size", str(beam_size),
        "--max-length-multiple", str(work.most), "--log-progress", "off",
    ]  # fmt: skip
    job = DecodeConfig(
        [str(work.model)], [str(text)], [str(work.source_vocab)], str(work.target_vocab), beam_size=beam_size,
        max_length_multiple=work.most,
    )  # fmt: skip
    executor = LocalExecutor("cpu", threads)

    def ours() -> tuple[str, float]:
        begin = time.perf_counter()
        lines = decoded(executor, job).decode()
        return lines, time.perf_counter() - begin

    programs: dict[str, Callable[[], tuple[str, float]]] = {AMUN_CPU: lambda: run_amun(command), KERNEL: ours}
    seconds: dict[str, list[float]] = {name: [] for name in programs}
    try:
        equal = share_of_equal(*(program()[0] for program in programs.values()))  # also loads and compiles
        for _ in range(ROUNDS):
            for name, program in programs.items():
                seconds[name].append(program()[1])
    finally:
        executor.close()
    sentences, words = work.text.count("\n"), len(work.text.split())
    sizes = f"{work.name} sentences={sentences} words={words} beam={beam_size} threads={threads}"
    amun = suite.add(
        AMUN_CPU, sizes, seconds[AMUN_CPU], items=words, unit=SOURCE_WORDS_PER_SECOND,
        notes="without the loading of the model",
    )  # fmt: skip
    suite.add(
        KERNEL, sizes, seconds[KERNEL], items=words, unit=SOURCE_WORDS_PER_SECOND, baseline=AMUN_CPU,
        baseline_seconds=amun.median_seconds, notes=f"{equal:.2%} of the lines equal",
    )  # fmt: skip


def run_amun(command: list[str]) -> tuple[str, float]:
    """Run Amun; return its lines, and the seconds that it prints."""
    ended = subprocess.run(command, capture_output=True, text=True)
    found = SECONDS.search(ended.stderr)
    if ended.returncode or found is None:
        raise RunError(
            f"{PROGRAM} ended with status {ended.returncode} and {'no' if found is None else 'a'} time; take it off "
            f"the PATH to go on without. It says: {ended.stderr.strip()[-200:]}"
        )
    return ended.stdout, float(found[1])


def share_of_equal(theirs: str, ours: str) -> float:
    """Return the share of equal lines; raise WrongResult below MIN_EQUAL."""
    lines, others = ours.splitlines(), theirs.splitlines()
    share = sum(a == b for a, b in zip(lines, others, strict=False)) / len(lines)
    if share < MIN_EQUAL or len(lines) != len(others):
        raise WrongResult(
            f"{share:.2%} of {len(lines)} lines are as the {len(others)} of Amun; {MIN_EQUAL:.0%} must be; not timed"
        )
    return share
