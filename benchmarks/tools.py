"""`mgpu-ngram bench tools`: models that are mixed and pruned on the device, and KenLM binaries that it reads."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np

from mgpu_ngram.benchmarks.harness.options import BenchOptions
from mgpu_ngram.benchmarks.harness.suite import Suite, WrongResult
from mgpu_ngram.benchmarks.harness.units import NGRAMS_PER_SECOND, QUERIES_PER_SECOND, TOKENS_PER_SECOND
from mgpu_ngram.benchmarks.tools_models import SKEW, node_of, row_of, sparse_model, word_names
from mgpu_ngram.core.counts.vocabulary import END_ID, START_ID
from mgpu_ngram.core.models.model_file import BackoffModel
from mgpu_ngram.core.ngrams.trie import Trie
from mgpu_ngram.core.ngrams.words import Words
from mgpu_ngram.engine.model_tools.backoff_nodes import nodes_of
from mgpu_ngram.engine.model_tools.mix import mix, mix_log_linear, tune_weights
from mgpu_ngram.engine.model_tools.prune import prune
from mgpu_ngram.engine.model_tools.restrict import AllowedWords, restrict
from mgpu_ngram.engine.model_tools.write_kenlm import write_kenlm
from mgpu_ngram.engine.score.replica import Replica
from mgpu_ngram.engine.trie.open_model import open_keyed
from mgpu_ngram.jobs.one_model import listed_counts
from mgpu_ngram.kernels.dispatch import to_host

NGRAMS = {"gpu": 100_000_000, "cpu": 500_000}  # n-grams of each model
MIN_NGRAMS = 2_000
NGRAMS_PER_WORD = 100
BINARY_NGRAMS = {"gpu": 51_000_000, "cpu": 500_000}  # n-grams of a KenLM probing file; 1 GB
QUERIES = {"gpu": 9_000_000, "cpu": 100_000}  # words that the file scores
TUNE_TOKENS = {"gpu": 20_000_000, "cpu": 200_000}
FLAGS = {"tokens", "only", "folder"}
MEASURES: dict[str, tuple[str, ...]] = {
    "ceiling/": (),
    "tools/": ("engine.model_tools.mix", "engine.model_tools.prune", "engine.model_tools.restrict"),
    "tools/mix": ("engine.model_tools.mix",),
    "tools/nodes": ("engine.model_tools.backoff_nodes",),
    "tools/open": ("engine.trie.open_model", "engine.score.replica"),
    "tools/prune": ("engine.model_tools.prune", "engine.model_tools.restrict"),
    "tools/score": ("engine.trie.open_model", "engine.score.replica"),
    "tools/sort": (),
    "tools/tune": ("engine.model_tools.mix",),
}
WEIGHTS = [0.4, 0.6]
TARGET_SECONDS = 5.0  # to mix two models of 100 M n-grams
OPEN_SECONDS = 2.0  # to a replica, of a probing file of 1 GB
WORDS_PER_SENTENCE = 20
SAMPLED = 20  # histories whose whole rows are checked
ROUNDING = 1e-5  # tolerance of sums of rows: values are float32 logarithms


class ToolsBench:
    """The rows, and two models that are made once, for all parts of the bench."""

    def __init__(self, suite: Suite, ngrams: int, folder: Path):
        self.suite, self.ngrams, self.folder, self.xp = suite, ngrams, folder, suite.xp

    @cached_property
    def models(self) -> list[tuple[Trie, Words]]:
        """The same words with other ids; few n-grams are in both."""
        V = max(16, self.ngrams // NGRAMS_PER_WORD)
        self.suite.say(f"two models of {self.ngrams:,} n-grams of {V:,} words")
        made = [
            (sparse_model(self.ngrams, V, seed, self.xp), word_names(V, reverse=seed == 1))
            for seed in range(len(WEIGHTS))
        ]
        for trie, _ in made:
            self.check_rows(trie)
        self.suite.release()
        return made

    def sizes(self, models: int) -> str:
        trie = self.models[0][0]
        return f"models={models} ngrams={len(trie)} order={trie.order} V={trie.symbols}"

    def bytes_of(self, *tries: Trie) -> int:
        return sum(array.nbytes for trie in tries for array in trie.arrays().values())

    def histories(self, trie: Trie) -> list[tuple[int, int]]:
        """Return some pairs of words, evenly spaced."""
        nodes = np.linspace(trie.starts[1], trie.starts[2] - 1, SAMPLED).astype(np.int64)
        first_child = trie.first_child_M[: trie.symbols + 1].astype(np.int64)
        nodes = self.xp.asarray(nodes)
        parents = self.xp.searchsorted(first_child, nodes, "right") - 1
        return list(zip(to_host(parents).tolist(), to_host(trie.word_G[nodes]).tolist(), strict=True))

    def check_rows(self, trie: Trie) -> None:
        """Raise WrongResult unless the probabilities after some histories sum to 1."""
        for history in [(), (START_ID,), *self.histories(trie)]:
            total = float(row_of(trie, history, self.xp).sum())
            if not abs(total - 1) <= ROUNDING:
                raise WrongResult(f"after the words {history} probabilities sum to {total}, not 1")

    def check_mixture(self, made: tuple[Trie, Words, int]) -> None:
        """Raise WrongResult unless rows sum to 1, and listed probabilities are weighted sums."""
        trie, words, overfull = made
        self.check_rows(trie)
        ids = [self.xp.asarray(words.ids(own.offsets_V, own.data).astype(np.int64)) for _, own in self.models]
        for history in self.histories(trie):
            node = node_of(trie, history, self.xp)
            begin, end = (int(trie.first_child_M[m]) for m in (node, node + 1))
            listed = trie.word_G[begin:end]
            expected = self.xp.zeros(trie.symbols)
            for weight, (part, own), ids_V in zip(WEIGHTS, self.models, ids, strict=True):
                spelled = [own.id(words.symbol(w)) for w in history]
                expected[ids_V] += weight * row_of(part, spelled, self.xp)
            found = 10.0 ** trie.prob_G[begin:end].astype(np.float64)
            if overfull or not self.xp.allclose(found, expected[listed], rtol=1e-5, atol=0):
                raise WrongResult(f"after the words {history} the mixture has other probabilities than its models")

    def check_pruned(self, made: tuple[Trie, int, float], most: int) -> None:
        """Raise WrongResult unless rows sum to 1 and at most so many n-grams stay."""
        self.check_rows(made[0])
        stayed = sum(listed_counts(made[0]))
        if stayed > most:
            raise WrongResult(f"{stayed:,} n-grams stayed, but {most:,} may")


def _mix(bench: ToolsBench) -> None:
    suite, xp, models = bench.suite, bench.xp, bench.models
    items, sizes = sum(len(trie) for trie, _ in models), bench.sizes(len(models))
    suite.say("mixing")
    made = mix(models, WEIGHTS)
    moved = bench.bytes_of(*(trie for trie, _ in models), made[0])
    bench.check_mixture(made)
    out = f"{len(made[0]):,} n-grams out"
    del made
    suite.release()
    keys = xp.asarray(np.random.default_rng(0).integers(0, 1 << 47, 1 << 20)).repeat(max(1, items >> 20))[:items]
    suite.run("tools/sort of the keys", sizes, partial(xp.sort, keys), items=len(keys), unit="keys/s", notes="a bound")
    del keys
    how: dict[str, Any] = {"items": items, "unit": NGRAMS_PER_SECOND, "bytes_moved": moved, "ceiling": "copy"}
    target = items / TARGET_SECONDS if bench.ngrams == NGRAMS["gpu"] else None
    suite.run("tools/mix", sizes, partial(mix, models, WEIGHTS), target=target, notes=out, **how)
    suite.release()
    suite.run("tools/mix log-linear", sizes, partial(mix_log_linear, models, WEIGHTS), target=target, **how)
    suite.release()
    trie = models[0][0]
    suite.run("tools/nodes of a trie", bench.sizes(1), partial(nodes_of, trie), items=len(trie), unit=NGRAMS_PER_SECOND)


def _tune(bench: ToolsBench) -> None:
    xp, T = bench.xp, TUNE_TOKENS[bench.suite.device]
    rng = xp.random.default_rng(0)
    log10_MT, codes_MT = (-5 * rng.random((2, T))).astype(np.float32), xp.full((2, T), 2, np.uint32)
    rounds = len(tune_weights(codes_MT, log10_MT).weights)
    bench.suite.run(
        "tools/tune", f"models=2 tokens={T}", partial(tune_weights, codes_MT, log10_MT), items=T * rounds,
        unit=TOKENS_PER_SECOND, bytes_moved=2 * 8 * T * rounds, ceiling="read", notes=f"{rounds} iterations",
    )  # fmt: skip


def _prune(bench: ToolsBench) -> None:
    suite, (trie, words) = bench.suite, bench.models[0]
    sizes, most = bench.sizes(1), trie.symbols + len(trie) // 2
    small = prune(trie, START_ID, END_ID, None, most)
    bench.check_pruned(small, most)
    how: dict[str, Any] = {
        "items": len(trie),
        "unit": NGRAMS_PER_SECOND,
        "bytes_moved": bench.bytes_of(trie, small[0]),
        "ceiling": "copy",
    }
    limit = small[2]
    del small
    suite.release()
    suite.run("tools/prune to a size", sizes, partial(prune, trie, START_ID, END_ID, None, most), **how)
    suite.run("tools/prune by entropy", sizes, partial(prune, trie, START_ID, END_ID, limit, None), **how)
    half = np.arange(0, trie.symbols, 2)
    pairs_P2 = np.stack([np.zeros(len(half), np.int64), half], axis=1)
    allowed = AllowedWords(pairs_P2, np.arange(trie.symbols) <= END_ID)
    kept = restrict(trie, words, allowed, "single")[0]
    how["bytes_moved"] = bench.bytes_of(trie, kept)
    del kept
    suite.release()
    suite.run("tools/prune by vocabulary", sizes, partial(restrict, trie, words, allowed, "single"), **how)


def _binary(bench: ToolsBench) -> None:
    """A probing file in the page cache, which becomes a replica that scores with the file's own tables."""
    suite, xp, device = bench.suite, bench.xp, bench.suite.device
    ngrams = min(bench.ngrams, BINARY_NGRAMS[device])
    V = max(16, ngrams // NGRAMS_PER_WORD)
    suite.say(f"a KenLM probing file of {ngrams:,} n-grams of {V:,} words")
    trie, path = sparse_model(ngrams, V, 0, xp), bench.folder / "model.binary"
    model = BackoffModel.of(trie.map_arrays(to_host), word_names(V, reverse=False))
    size_bytes = write_kenlm(path, model, "kenlm-probing")
    sizes = f"bytes={size_bytes} ngrams={len(trie)} order={trie.order} V={V}"
    rng = xp.random.default_rng(0)
    codes_T = (1 + V * rng.random(QUERIES[device]) ** SKEW).astype(np.uint32)
    codes_T[rng.random(len(codes_T)) < 1 / WORDS_PER_SENTENCE] = 0
    codes_T[-1] = 0
    expected = Replica(model, device).score_codes(codes_T).total_S

    def opened() -> Replica:
        return Replica(open_keyed(path), device)

    def check(replica: Replica) -> None:
        if not xp.array_equal(replica.score_codes(codes_T).total_S, expected):
            raise WrongResult("a probing file gives other scores than the model that was written; not timed")

    target = 1e9 / OPEN_SECONDS if ngrams == BINARY_NGRAMS["gpu"] else None
    suite.run(
        "tools/open a probing file", sizes, opened, check=check, items=size_bytes, unit="B/s", target=target,
        notes="from the page cache, ready to score",
    )  # fmt: skip
    replica = opened()
    suite.run(
        "tools/score by a probing file", f"{sizes} T={len(codes_T)}", partial(replica.score_codes, codes_T),
        items=len(codes_T), unit=QUERIES_PER_SECOND,
    )  # fmt: skip


PARTS: dict[str, Callable[[ToolsBench], None]] = {"mix": _mix, "tune": _tune, "prune": _prune, "binary": _binary}


def bench(options: BenchOptions) -> list[dict[str, Any]]:
    """Measure mixing and pruning of models in memory, and reading of a KenLM binary; write tools.csv to the folder of
    results, and return the rows.

    tokens  n-grams of each model

    Models are drawn at random. Rows of probabilities are compared with plain array code before a part is timed, and
    WrongResult is raised when one differs.
    """
    parts = options.parts(PARTS)
    ngrams = options.num_tokens(NGRAMS, MIN_NGRAMS)
    suite = Suite(options.device, Path(options.results) / "tools.csv", options.command("tools"))
    suite.say(f"{suite.name}; {suite.version}")
    suite.measure_ceilings()
    suite.release()
    with tempfile.TemporaryDirectory(prefix="mgpu-ngram-bench-", dir=options.folder) as place:
        shared = ToolsBench(suite, ngrams, Path(place))
        for part in parts:
            suite.measure_part(PARTS[part], shared)
    return [asdict(row) for row in suite.rows]
