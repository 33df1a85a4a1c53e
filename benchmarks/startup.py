"""`mgpu-ngram bench startup`: from Enter to the answer. Every measurement is a command in a process of its own."""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import Any

from mgpu_ngram.benchmarks.decode.generated_model import GRUShape, System
from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.origin import PACKAGE_PARENT
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult, open_suite
from mgpu_ngram.benchmarks.inputs.corpora import zipf_text
from mgpu_ngram.core.errors import RunError
from mgpu_ngram.stages.registry import ENTRIES

FLAGS = {"tokens", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "startup/": ("cli",),
    "startup/info": ("cli", "commands.info"),
    "startup/peer": (),
    **{f"startup/{name}": ("cli", f"stages.{name}") for name in ENTRIES},
}
RUNS = 5
TOKENS = {"gpu": 8_000_000, "cpu": 1_000_000}  # tokens of the text that a model is made from
MIN_TOKENS = 1_000
SCORED_TOKENS = {"gpu": 1_000_000, "cpu": 1_000_000}
VOCABULARY = 50_000
TRANSLATION = GRUShape(100, 32, 64)
LINES = b"the cat sat on the mat\nthe dog sat on the log\nthe cat ate the dog\n"
HELP_SECONDS, INFO_SECONDS = 0.2, 0.4  # CPU time at most
STAGE_SECONDS = {"gpu": 1.3, "cpu": 0.8}  # at most
SCORE_SECONDS, ESTIMATE_SECONDS = {"gpu": 1.5, "cpu": None}, {"gpu": 2.2, "cpu": None}
PEER, PEER_PROGRAMS = "peer query", ("build_binary", "query")  # of KenLM
PEER_TIMES = 1.5  # most wall time on the CPU, as a multiple of query's
FIRST_RUNS, FIRST_TOKENS = 3, 100_000
FIRST_KERNEL_SECONDS = 2.0  # at most
CACHES = ("XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "CUPY_CACHE_DIR", "CUDA_CACHE_PATH")  # folders of compiled kernels
WITH_FIRST_KERNEL = """
import sys, time
from mgpu_ngram.kernels import launch
launches, launch_now = [], launch.launch
def launch_and_record(*args, **options):
    launches or launches.append(time.time())
    launch_now(*args, **options)
launch.launch = launch_and_record
from mgpu_ngram.entry import main
status = main()
print(*launches[:1], file=sys.stderr)
sys.exit(status)
"""  # runs a command, then prints when its first CUDA kernel started

Seconds = tuple[float, float]  # wall time and CPU time of a run


class StartupBench:
    """The rows, and a folder with texts and models.

    tokens  words of the text that the large model is made of
    """

    def __init__(self, suite: Suite, tokens: int, folder: Path):
        self.suite, self.tokens, self.folder = suite, tokens, folder
        (folder / "lines.txt").write_bytes(LINES)
        lines = LINES.decode().splitlines()
        (folder / "lines.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
        lists = (f"{i} ||| {line} ||| F0= -1 ||| -1\n" for i, line in enumerate(lines))
        (folder / "lists.txt").write_text("".join(lists))

    def first_run(self, words: list[str]) -> tuple[Seconds, float]:
        """Run a command without compiled kernels; return its seconds, and those to its first CUDA kernel, or 0."""
        with tempfile.TemporaryDirectory(dir=self.folder) as caches:
            variables = {name: os.path.join(caches, name) for name in CACHES}
            begin = time.time()
            command = [sys.executable, "-c", WITH_FIRST_KERNEL, *words]
            seconds, _, printed = self.program(command, f"mgpu-ngram {' '.join(words)}", variables=variables)
        to_kernel = float(printed.splitlines()[-1]) - begin if self.suite.device == "gpu" else 0.0
        return seconds, to_kernel

    def run(self, *words: str) -> Seconds:
        """Run a command; return its seconds and its CPU seconds. Raises RunError when it fails."""
        return self.program([sys.executable, "-m", "mgpu_ngram", *words], f"mgpu-ngram {' '.join(words)}")[0]

    def program(
        self, command: list[str], name: str, stdin: Path | None = None, variables: dict[str, str] | None = None
    ) -> tuple[Seconds, str, str]:
        """Run a program; return (its seconds, its CPU seconds), its stdout and its stderr.

        variables  further environment variables

        Raises RunError when it fails.
        """
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}  # as installed
        environment |= variables or {}
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [PACKAGE_PARENT, environment.get("PYTHONPATH")]))
        with open(stdin or os.devnull, "rb") as file:
            before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            done = subprocess.run(
                command, cwd=self.folder, env=environment, stdin=file, capture_output=True, text=True
            )  # fmt: skip
            seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode:
            raise RunError(f"'{name}' ended with {done.returncode}: {done.stderr.strip()}")
        cpu_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        return (seconds, cpu_seconds), done.stdout, done.stderr

    def measure(
        self,
        name: str,
        sizes: str,
        words: list[str],
        cpu_target: float | None = None,
        target: float | None = None,
        peer_seconds: Seconds | None = None,
    ) -> None:
        """Add the rows of a command, its wall time and its CPU time, after a run that warms the caches.

        cpu_target, target  seconds at most, CPU time and wall time
        peer_seconds        wall time and CPU time of KenLM's program for the same work
        """
        self.run(*words)
        self.add(name, sizes, [self.run(*words) for _ in range(RUNS)], cpu_target, target, peer_seconds)

    def add(
        self,
        name: str,
        sizes: str,
        runs: list[Seconds],
        cpu_target: float | None = None,
        target: float | None = None,
        peer_seconds: Seconds | None = None,
    ) -> None:
        """Add the rows of runs; see `measure`."""
        limits, peers = (target, cpu_target), peer_seconds or (None, None)
        for time_of, seconds, limit, peer in zip(
            ("wall", "CPU time"), zip(*runs, strict=True), limits, peers, strict=True
        ):
            self.suite.add(
                f"startup/{name}", f"{sizes}, {time_of}", seconds, items=1, unit="runs/s",
                target=1 / limit if limit else None, notes="" if limit is None else f"at most {limit:.3g} s",
                baseline="" if peer is None else f"startup/{PEER}", baseline_seconds=peer,
            )  # fmt: skip

    def measure_default(
        self, name: str, sizes: str, words: list[str], target: float | None, peer_seconds: Seconds | None = None
    ) -> None:
        """Add the rows of small work; with a GPU, by default, which is on the CPU, and as asked for on the GPU."""
        asked = ["--device", self.suite.device]
        if self.suite.device == "gpu":
            self.measure(name, f"{sizes}, --device gpu", [*words, *asked])
            asked = []
        self.measure(name, sizes, [*words, *asked], target=target, peer_seconds=peer_seconds)

    def estimate(self, text: str, model: str) -> list[str]:
        """Return the command that makes a model of a text; its last two words name the device."""
        flags = ["--order", "5", "--discount-fallback", "--overwrite", "--device", self.suite.device]
        return ["estimate", text, "-o", model, *flags]

    @cached_property
    def small_model(self) -> str:
        """The path of a model of three lines."""
        self.run(*self.estimate("lines.txt", "small.safetensors"))
        return "small.safetensors"

    @cached_property
    def small_counts(self) -> str:
        """The path of counts of three lines, which a model can be adapted from."""
        flags = ["--order", "5", "--sentence-markers", "--device", self.suite.device]
        self.run("count", "lines.txt", "-o", "small_counts", *flags)
        return "small_counts"

    @cached_property
    def translation_model(self) -> list[str]:
        """The arguments that name a small translation model."""
        files = System.make(TRANSLATION, self.folder).files
        vocabularies = ["--source-vocab", files.source_vocabs[0][0], "--target-vocab", files.target_vocab]
        return [*files.models, *vocabularies]

    @cached_property
    def text(self) -> str:
        """The path of a generated text of `tokens` words."""
        self.suite.say(f"writing a text of {self.tokens:,} words")
        zipf_text(self.folder / "text.txt", self.tokens, VOCABULARY)
        return "text.txt"


def commands(bench: StartupBench) -> None:
    """Rows: help and info."""
    for words in (["--help"], ["score", "--help"], ["estimate", "--help"]):
        bench.measure(" ".join(words), "warm caches", words, HELP_SECONDS)
    bench.measure("info", "a model of three lines", ["info", bench.small_model], INFO_SECONDS)


def stages(bench: StartupBench) -> None:
    """Rows: each stage of counts and n-gram models on three lines."""
    model = bench.small_model
    _measure_stages(
        bench,
        {
            "count": ["count", "lines.txt", "-o", "counts"],
            "estimate": bench.estimate("lines.txt", "again.safetensors")[:-2],
            "adapt": ["adapt", bench.small_counts, "lines.txt", "-o", "adapted", "--discount-fallback"],
            # Rows keep the older name of the stage, so that they are compared with stored rows.
            "trie": ["convert", model, "-o", "trie.safetensors"],
            "prune": ["prune", model, "--max-ngrams", "30", "-o", "pruned.safetensors"],
            "mix": ["mix", model, model, "--weights", "0.5", "0.5", "-o", "mixed.safetensors"],
            "score": ["score", model, "lines.txt"],
            "compare": ["compare", model, model, "lines.txt"],
            "distribution": ["distribution", model, "lines.txt", "-o", "rows", "--top-k", "5"],
            "filter": ["filter", "lines.jsonl", "-o", "filtered", "--model", model, "--max-perplexity", "100"],
        },
    )


def topics(bench: StartupBench) -> None:
    """Rows: each stage of topic models on three lines."""
    _measure_stages(
        bench,
        {
            "lda": ["lda", "lines.txt", "-o", "topics.lda", "--topics", "2"],
            "topics": ["topics", "topics.lda", "lines.txt", "-o", "topics.parquet"],
        },
    )


def decoders(bench: StartupBench) -> None:
    """Rows: each stage that decodes or sorts n-best lists, on three lines; tune where RapidFuzz is installed."""
    model = bench.small_model
    commands = {
        "decode": ["decode", *bench.translation_model, "lines.txt"],
        "rescore": ["rescore", "lists.txt", "--lm", model, "--weights", "F0=1", "small=0.5", "-o", "sorted.txt"],
    }
    if find_spec("rapidfuzz"):
        weights = ["--weights", "F0=1", "small=0.5", "--references", "lines.txt", "--metric", "wer"]
        commands["tune"] = ["tune", "lists.txt", "--lm", model, *weights, "-o", "weights.yaml"]
    else:
        bench.suite.say("RapidFuzz is not installed, so the time of tune is left out")
    _measure_stages(bench, commands)


def _measure_stages(bench: StartupBench, commands: dict[str, list[str]]) -> None:
    for name, words in commands.items():
        writes = ["--overwrite"] if "-o" in words and "--overwrite" not in words else []
        bench.measure_default(name, "three lines", [*words, *writes], STAGE_SECONDS[bench.suite.device])


def estimate(bench: StartupBench) -> None:
    """Rows: a generated text to a model file."""
    words = bench.estimate(bench.text, "large.safetensors")
    bench.measure("estimate", f"tokens={bench.tokens}", words, target=ESTIMATE_SECONDS[bench.suite.device])


def score(bench: StartupBench) -> None:
    """Rows: the summary of a text, with a large model."""
    tokens = SCORED_TOKENS[bench.suite.device]
    bench.run(*bench.estimate(bench.text, "large.safetensors"))
    zipf_text(bench.folder / "scored.txt", tokens, VOCABULARY, seed=1)
    size = (bench.folder / "large.safetensors").stat().st_size
    words = ["score", "large.safetensors", "scored.txt", "-v", "summary"]
    sizes = f"tokens={tokens} model_bytes={size}"
    peer, target = query(bench, tokens, words), SCORE_SECONDS[bench.suite.device]
    if peer and bench.suite.device == "cpu":
        target = PEER_TIMES * peer[0]
    bench.measure_default("score -v summary", sizes, words, target, peer)


def query(bench: StartupBench, tokens: int, words: list[str]) -> Seconds | None:
    """Rows: KenLM's query for the same text and model, whose summary must be the same; returns its median seconds.

    words  our command
    """
    missing = [name for name in PEER_PROGRAMS if shutil.which(name) is None]
    if missing:
        bench.suite.say(f"{' and '.join(missing)} not on the PATH, so query's time is left out")
        return None
    bench.run(*bench.estimate(bench.text, "large.arpa"))
    bench.program(["build_binary", "probing", "large.arpa", "large.binary"], "build_binary")
    command, text = ["query", "-v", "summary", "large.binary"], bench.folder / "scored.txt"
    found = [bench.program(command, "query", text)[:2] for _ in range(RUNS + 1)][1:]
    ours = bench.program([sys.executable, "-m", "mgpu_ngram", *words], "mgpu-ngram score")[1].splitlines()
    if not set(ours) <= set(found[0][1].splitlines()):
        raise WrongResult(f"query prints {found[0][1]!r} but this engine {ours} for the same text; not timed")
    size = (bench.folder / "large.binary").stat().st_size
    runs = [seconds for seconds, _ in found]
    bench.add(PEER, f"tokens={tokens} model_bytes={size}", runs)
    return median(wall for wall, _ in runs), median(cpu for _, cpu in runs)


def first(bench: StartupBench) -> None:
    """Rows: first runs of a few stages on a machine: the whole run, and the time to its first CUDA kernel."""
    zipf_text(bench.folder / "first.txt", FIRST_TOKENS, VOCABULARY)
    device = ["--device", bench.suite.device]
    commands = {
        "count": ["count", "first.txt", "-o", "counts", "--overwrite", *device],
        "estimate": bench.estimate("first.txt", "first.safetensors"),
        "score": ["score", "first.safetensors", "first.txt", *device],
    }
    for name, words in commands.items():
        runs = [bench.first_run(words) for _ in range(FIRST_RUNS)]
        sizes = f"tokens={FIRST_TOKENS}, no compiled kernels"
        bench.add(f"first {name}", sizes, [seconds for seconds, _ in runs])
        if bench.suite.device == "gpu":
            bench.suite.add(
                f"startup/first {name}", f"{sizes}, to the first kernel", [seconds for _, seconds in runs], items=1,
                unit="runs/s", target=1 / FIRST_KERNEL_SECONDS, notes=f"at most {FIRST_KERNEL_SECONDS:.3g} s",
            )  # fmt: skip


PARTS: dict[str, Callable[[StartupBench], None]] = {
    "commands": commands,
    "stages": stages,
    "topics": topics,
    "decoders": decoders,
    "estimate": estimate,
    "score": score,
    "first": first,
}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure commands as a user waits for them, write startup.csv to the folder of results, and return the rows.

    tokens  words of the text that the large model is made of

    Each row is the median of 5 runs with warm caches: of wall time, or of CPU time. The rows of `first` are the medians
    of 3 runs without compiled kernels.
    """
    parts = options.parts(PARTS)
    tokens = options.num_tokens(TOKENS, MIN_TOKENS)
    suite = open_suite("startup", options)
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = StartupBench(suite, tokens, Path(place))
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    return [asdict(row) for row in suite.rows]
